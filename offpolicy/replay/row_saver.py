"""Saving the rows of the rings, in checkpoints that each hold all of them but write only the new ones.

A save has two halves. `RowSaver.capture` runs while the collectors stand still and takes milliseconds: it notes which
rows the checkpoint holds and copies the first of the new ones, those that a collector would recycle first.
`CapturedRows.write` may run beside training. It reads the other new rows from the ring: a row stays as it is until its
slot is recycled, which takes a collector far longer than the disk takes for the rows. Where it does not,
`CapturedRows.must_be_written_soon` says so before a row is lost. The files to link are looked at there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offpolicy.checkpoint import Checkpoint, Draft
from offpolicy.checkpoint.content import Segment, ahead_name, segment_name, segments_of
from offpolicy.checkpoint.manifest import open_checkpoint
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.replay.ring import Ring
from offpolicy.types import Float32

COPIED_BYTES = 16 << 20  # of the new rows of all rings, while the collectors stand still: a few milliseconds
CHUNK_BYTES = 4 << 20  # of a ring that are read at once
# A smaller file is written again with the rows after it. Else a slow environment that is saved once a minute would have
# a file for every minute, and each of them costs every save a tenth of a millisecond.
SMALL_BYTES = 1 << 20


class NewRows:
    """The rows [start, stop) of a ring as of its construction, to be read while the ring goes on being filled."""

    def __init__(self, ring: Ring, start: int, stop: int, copied_bytes: int) -> None:
        self.start, self.stop = start, stop
        self._ring, self._row_bytes, self._oldest = ring, 4 * ring.width, ring.oldest
        num_copied = min(stop - start, copied_bytes // self._row_bytes)
        self._copied: Float32 | None = ring.read_range(start, start + num_copied)
        self._spare = num_copied // 2
        self._next = start + num_copied  # the first row that is not read yet

    @property
    def must_be_written_soon(self) -> bool:
        """True if the collector will soon recycle a row that is not read yet."""
        oldest = self._ring.oldest
        return self._next < self.stop and oldest > self._oldest and oldest + self._spare >= self._next

    def blocks(self) -> Iterator[Float32]:
        """Returns the rows, once. Raises `SaveError` if one of them was recycled before it was read."""
        assert self._copied is not None, "read twice"
        yield self._copied
        self._copied = None  # its memory
        chunk = max(CHUNK_BYTES // self._row_bytes, 1)
        while self._next < self.stop:
            end = min(self._next + chunk, self.stop)
            rows: Float32 = self._ring.read_range(self._next, end)
            if len(rows) < end - self._next:
                raise SaveError(f"replay rows from {self._next} on were recycled before the disk had taken them")
            self._next = end
            yield rows


@dataclass(frozen=True, slots=True)
class CapturedRows:
    """The rows of all rings as of one instant: segments of the checkpoint `base` by ring, and the rows after them."""

    rings: Sequence[Ring]
    oldest: Sequence[int]
    base: Checkpoint | None
    linked: Sequence[Sequence[Segment]]
    new: Sequence[NewRows]
    ahead: Sequence[Float32]  # by ring: what the last rows refer to

    @property
    def must_be_written_soon(self) -> bool:
        """True if a collector will soon recycle a row that is not written yet."""
        return any(rows.must_be_written_soon for rows in self.new)

    def write(self, draft: Draft) -> None:
        """Links the old rows and writes the new ones. Raises `SaveError`.

        Where files of the base are gone, all rows are written: from the rings, which may recycle the oldest meanwhile
        and then fail the save, but not the next one (`RowSaver.forget_lost_base`).
        """
        has_base = is_intact(self.base)
        for index, (segments, new) in enumerate(zip(self.linked, self.new, strict=True)):
            for segment in segments if has_base else ():
                assert self.base is not None, "segments are of a checkpoint"
                draft.add_link(f"{segment_name(index, segment.first)}.f32", self.base, segment.file_name)
            is_whole = has_base or not segments
            rows = new if is_whole else NewRows(self.rings[index], self.oldest[index], new.stop, 0)
            if rows.stop > rows.start:
                draft.add_rows(segment_name(index, rows.start), rows.blocks())
            if len(self.ahead[index]):
                draft.add_rows(ahead_name(index), [self.ahead[index]])


class RowSaver:
    """Saves the rows of `rings` in one checkpoint after the other. All rings together copy `copied_bytes` at most.

    The newest file of a ring grows until it holds `small_bytes`; so a ring has few files, however often it is saved.
    """

    def __init__(self, rings: Sequence[Ring], copied_bytes: int = COPIED_BYTES, small_bytes: int = SMALL_BYTES) -> None:
        self._rings, self._copied_bytes = tuple(rings), copied_bytes // max(len(rings), 1)
        self._small_bytes = small_bytes
        self._base: Checkpoint | None = None
        self._segments: list[list[Segment]] = [[] for _ in rings]

    def continue_after(self, base: Checkpoint | None) -> None:
        """Sets the checkpoint whose rows the next one takes over: the one just written, or the one that was read.

        Reads no file. None: the next one writes all rows.
        """
        self._base, rings = base, enumerate(self._rings)
        self._segments = [[] if base is None else segments_of(base, index, ring.width) for index, ring in rings]

    def forget_lost_base(self) -> None:
        """Lets the next save write all rows where files of the base are gone: this one failed, and so would all."""
        if not is_intact(self._base):
            self.continue_after(None)

    def capture(self) -> CapturedRows:
        """Notes the rows that the rings hold now, reading no file. The collectors must stand still until it returns."""
        linked, new, oldest = [], [], [ring.oldest for ring in self._rings]
        for segments, ring, first in zip(self._segments, self._rings, oldest, strict=True):
            stop = ring.committed
            kept = [segment for segment in segments if first < segment.end <= stop]
            start = max(kept[-1].end if kept else 0, first)
            if kept and start < stop and self._is_small(kept[-1], ring):
                start = max(kept.pop().first, first)
            linked.append(kept)
            new.append(NewRows(ring, start, stop, self._copied_bytes))
        ahead = [ring.copy_open(rows.stop) for ring, rows in zip(self._rings, new, strict=True)]
        return CapturedRows(self._rings, oldest, self._base, linked, new, ahead)

    def _is_small(self, segment: Segment, ring: Ring) -> bool:
        return (segment.end - segment.first) * 4 * ring.width < self._small_bytes


def is_intact(base: Checkpoint | None) -> bool:
    """True if the files of a checkpoint are what they were when it was written."""
    if base is None:
        return False
    try:
        return open_checkpoint(base.path, base.env_steps).files == base.files
    except CheckpointError:
        return False
