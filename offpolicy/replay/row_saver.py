"""Saving the rows of the rings, in checkpoints that each hold all of them but write only the new ones.

A save has two halves. `capture` runs while the collectors stand still and takes milliseconds: it notes which rows the
checkpoint holds and copies the first of the new ones, those that a collector would recycle first. `write` may run
beside training. It reads the other new rows from the ring: a row stays as it is until its slot is recycled, which takes
a collector far longer than the disk takes for the rows. Where it does not, `must_be_written_soon` says so before a row
is lost. The files to link are looked at there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offpolicy.checkpoint import Checkpoint, Draft
from offpolicy.checkpoint.content import Segment, ahead_name, segment_name, segments_of
from offpolicy.checkpoint.manifest import open_checkpoint
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.types import Float32

COPIED_BYTES = 16 << 20  # of the new rows of all rings, while the collectors stand still: a few milliseconds
CHUNK_BYTES = 4 << 20  # of a ring that are read at once
# A smaller file is written again with the rows after it. Else a slow environment that is saved once a minute would have
# a file for every minute, and each of them costs every save a tenth of a millisecond.
SMALL_BYTES = 1 << 20


@dataclass(slots=True)
class CapturedRing:
    """The rows of a ring as of one instant: `linked` segments of the checkpoint before, and new rows [start, stop)."""

    ring: ReplayRing
    oldest: int  # as of then
    linked: Sequence[Segment]
    start: int
    stop: int
    copied: Float32  # the first of the new rows
    next: int  # the first row that is not read yet
    spare: int  # that many rows before it is to be recycled, it must be read
    ahead: Float32  # what the last rows refer to


class RowSaver:
    """Saves the rows of `rings` in one checkpoint after the other. All rings together copy `copied_bytes` at most.

    The newest file of a ring grows until it holds `small_bytes`; so a ring has few files, however often it is saved.
    """

    def __init__(
        self, rings: Sequence[ReplayRing], copied_bytes: int = COPIED_BYTES, small_bytes: int = SMALL_BYTES
    ) -> None:
        self._rings, self._copied_bytes = tuple(rings), copied_bytes // max(len(rings), 1)
        self._small_bytes = small_bytes
        self._base: Checkpoint | None = None

    def continue_after(self, base: Checkpoint | None) -> None:
        """Sets the checkpoint whose rows the next one takes over: the one just written, or the one that was read.

        Reads no file. None: the next one writes all rows.
        """
        self._base = base

    def forget_lost_base(self) -> None:
        """Lets the next save write all rows where files of the base are gone: this one failed, and so would all."""
        if not self._has_base():
            self._base = None

    def capture(self) -> list[CapturedRing]:
        """Notes the rows that the rings hold now, reading no file. The collectors must stand still until it returns."""
        captured = []
        for index, ring in enumerate(self._rings):
            first, stop, row_bytes = ring.oldest, ring.committed, 4 * ring.width
            segments = [] if self._base is None else segments_of(self._base, index, ring.width)
            linked = [segment for segment in segments if first < segment.end <= stop]
            start = max(linked[-1].end if linked else 0, first)
            if linked and start < stop and (linked[-1].end - linked[-1].first) * row_bytes < self._small_bytes:
                start = max(linked.pop().first, first)
            copied_stop = min(stop, start + self._copied_bytes // row_bytes)
            copied = ring.read_range(start, copied_stop)
            spare, ahead = (copied_stop - start) // 2, ring.copy_open()
            captured.append(CapturedRing(ring, first, linked, start, stop, copied, copied_stop, spare, ahead))
        return captured

    def must_be_written_soon(self, captured: Sequence[CapturedRing]) -> bool:
        """True if a collector will soon recycle a row that is not read yet."""
        return any(
            part.next < part.stop and part.oldest < oldest and oldest + part.spare >= part.next
            for part in captured
            for oldest in (part.ring.oldest,)
        )

    def write(self, captured: Sequence[CapturedRing], draft: Draft) -> None:
        """Links the old rows and writes the new ones, once. Raises `SaveError`.

        Where files of the base are gone, all rows are written: from the rings, which may recycle the oldest meanwhile
        and then fail the save, but not the next one (`forget_lost_base`).
        """
        has_base = self._has_base()
        for index, part in enumerate(captured):
            if part.linked and not has_base:
                part.start = part.next = part.oldest
                part.linked, part.copied, part.spare = (), part.copied[:0], 0
            for segment in part.linked:
                assert self._base is not None, "segments are of a checkpoint"
                draft.add_link(segment.file_name, self._base, segment.file_name)
            if part.stop > part.start:
                draft.add_rows(segment_name(index, part.start), _blocks(part))
            if len(part.ahead):
                draft.add_rows(ahead_name(index), [part.ahead])

    def _has_base(self) -> bool:
        """True if the files of the base are what they were when it was written."""
        if self._base is None:
            return False
        try:
            return open_checkpoint(self._base.path, self._base.env_steps).files == self._base.files
        except CheckpointError:
            return False


def _blocks(part: CapturedRing) -> Iterator[Float32]:
    """Returns the new rows. Raises `SaveError` if one of them was recycled before it was read."""
    yield part.copied
    part.copied = part.copied[:0].copy()  # its memory
    chunk = max(CHUNK_BYTES // (4 * part.ring.width), 1)
    while part.next < part.stop:
        end = min(part.next + chunk, part.stop)
        rows: Float32 = part.ring.read_range(part.next, end)
        if len(rows) < end - part.next:
            raise SaveError(f"replay rows from {part.next} on were recycled before the disk had taken them")
        part.next = end
        yield rows
