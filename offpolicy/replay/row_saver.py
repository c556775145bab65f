"""Saving the rows of the rings, in checkpoints that each hold all of them but write only the new ones.

A save has two halves. `RowSaver.capture` runs while the collectors stand still and takes milliseconds: it notes which
rows the checkpoint holds and copies the first of the new ones, those that a collector would recycle first.
`CapturedRows.write` may run beside training. It reads the other new rows from the ring: a row stays as it is until its
slot is recycled, which takes a collector far longer than the disk takes for the rows. Where it does not,
`CapturedRows.is_endangered` says so before a row is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offpolicy.checkpoint import Checkpoint, Draft
from offpolicy.checkpoint.manifest import open_checkpoint
from offpolicy.checkpoint.replay_rows import Segment, has_replay, segment_name, segments_of
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.replay.ring import Ring
from offpolicy.types import Float32

COPIED_BYTES = 16 << 20  # of the new rows of a ring, while the collectors stand still: a few milliseconds
CHUNK_BYTES = 4 << 20  # of a ring that are read at once


class NewRows:
    """The rows [start, stop) of a ring as of its construction, to be read while the ring goes on being filled."""

    def __init__(self, ring: Ring, start: int, stop: int, copied_bytes: int) -> None:
        self.start, self.stop = start, stop
        self._ring, self._row_bytes = ring, 4 * ring.width
        num_copied = min(stop - start, max(copied_bytes // self._row_bytes, 1))
        self._copied: Float32 | None = ring.read_range(start, start + num_copied)
        self._spare = num_copied // 2
        self._next = start + num_copied  # the first row that is not read yet

    @property
    def is_endangered(self) -> bool:
        """True if the collector will soon recycle a row that is not read yet."""
        return self._next < self.stop and self._ring.committed + self._spare >= self._next + self._ring.capacity

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

    base: Checkpoint | None
    linked: Sequence[Sequence[Segment]]
    new: Sequence[NewRows]

    @property
    def is_endangered(self) -> bool:
        """True if a collector will soon recycle a row that is not written yet."""
        return any(rows.is_endangered for rows in self.new)

    def write(self, draft: Draft) -> None:
        """Links the old rows and writes the new ones. Raises `SaveError`."""
        for index, (segments, rows) in enumerate(zip(self.linked, self.new, strict=True)):
            for segment in segments:
                assert self.base is not None, "segments are of a checkpoint"
                draft.add_link(f"{segment_name(index, segment.first)}.f32", self.base, segment.file_name)
            if rows.stop > rows.start:
                draft.add_rows(segment_name(index, rows.start), rows.blocks())


class RowSaver:
    """Saves the rows of `rings` in one checkpoint after the other."""

    def __init__(self, rings: Sequence[Ring], copied_bytes: int = COPIED_BYTES) -> None:
        self._rings, self._copied_bytes = tuple(rings), copied_bytes
        self._base: Checkpoint | None = None
        self._segments: list[list[Segment]] = [[] for _ in rings]

    def continue_from(self, base: Checkpoint | None) -> None:
        """Sets the checkpoint whose rows the next one takes over: the last one, or the one that the rings hold.

        None: the next one writes all rows.
        """
        if base is not None and not has_replay(base):
            base = None
        rings = enumerate(self._rings)
        self._segments = [[] if base is None else segments_of(base, index, ring.width) for index, ring in rings]
        self._base = base

    def capture(self) -> CapturedRows:
        """Notes the rows that the rings hold now. The collectors must stand still until it returns."""
        base = self._base if self._is_intact(self._base) else None
        linked, new = [], []
        for segments, ring in zip(self._segments, self._rings, strict=True):
            oldest, stop = ring.oldest, ring.committed
            kept = [] if base is None else [segment for segment in segments if oldest < segment.end <= stop]
            start = max(kept[-1].end if kept else 0, oldest)
            linked.append(kept)
            new.append(NewRows(ring, start, stop, self._copied_bytes))
        return CapturedRows(base, linked, new)

    def _is_intact(self, base: Checkpoint | None) -> bool:
        """True if the files of the base are what they were; else all rows are written again."""
        if base is None:
            return False
        try:
            return open_checkpoint(base.path, base.env_steps).files == base.files
        except CheckpointError:
            return False
