"""The rows of a replay in checkpoints: files of consecutive rows, which one checkpoint takes over from the one before.

A checkpoint holds the rows [first, end) of each ring, as its `state.json` says, in one or more segments. A segment is a
file `replay-<ring>-<index of its first row>.f32`. Its oldest rows may be older than `first`: the ring has recycled them
since. So a checkpoint writes only the rows that are new since the last one, and links the other segments.

A row is a slot of the ring: it holds its observation only, and `ahead-<ring>.f32` has those behind the last row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offpolicy.checkpoint.content import state_fields
from offpolicy.checkpoint.formats import ROWS
from offpolicy.checkpoint.manifest import SEGMENT, Checkpoint
from offpolicy.errors import CheckpointError
from offpolicy.types import Float32


class Segment(NamedTuple):
    """A file with the rows [first, end) of a ring."""

    file_name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class SavedRows:
    """The rows of a ring in a checkpoint: `blocks` [n, width] in order, the first one's first row of index `first`."""

    first: int
    blocks: Sequence[Float32]
    ahead: Float32  # [m, width] what the last rows refer to
    num_written: int  # transitions that the ring was ever given


def segment_name(ring: int, first: int) -> str:
    """Returns the name, without suffix, of the segment of a ring that begins with row `first`."""
    return f"replay-{ring}-{first:015d}"


def ahead_name(ring: int) -> str:
    """Returns the name, without suffix, of the file of what the last rows of a ring refer to."""
    return f"ahead-{ring}"


def has_replay(checkpoint: Checkpoint) -> bool:
    """True if the rows of the replay were saved, and are whole."""
    return not checkpoint.has_lost_rows and state_fields(checkpoint).flag("has_replay")


def segments_of(checkpoint: Checkpoint, ring: int, width: int) -> list[Segment]:
    """Returns the segments of a ring [rows, width], oldest first. Raises `CheckpointError` if they leave rows out."""
    fields = state_fields(checkpoint)
    firsts = fields.counts("replay_first")
    if ring >= len(firsts):
        return []
    first, end = firsts[ring], fields.counts("replay_end", len(firsts))[ring]
    segments = listed_segments(checkpoint, ring, width)
    reached = segments[0].first if segments else end
    if reached > first:
        raise CheckpointError(
            f"{checkpoint.path}: expected replay {ring} from row {first} on, got it from {reached} on"
        )
    for segment in segments:
        if segment.first != reached:
            raise CheckpointError(f"{checkpoint.path / segment.file_name}: expected to begin with row {reached}")
        reached = segment.end
    if reached != end:
        raise CheckpointError(f"{checkpoint.path}: expected replay {ring} up to row {end}, got it up to {reached}")
    return segments


def read_replay(checkpoint: Checkpoint, ring: int, width: int) -> SavedRows | None:
    """Returns the rows of a ring [rows, width], mapped; None if none were saved. Raises `CheckpointError`."""
    segments = segments_of(checkpoint, ring, width) if has_replay(checkpoint) else []
    if not segments:
        return None
    fields, ahead = state_fields(checkpoint), ahead_name(ring)
    first, written = fields.counts("replay_first")[ring], fields.counts("replay_written")[ring]
    blocks = [
        checkpoint.rows(segment.file_name.removesuffix(ROWS), width)[max(first - segment.first, 0) :]
        for segment in segments
    ]
    behind = checkpoint.rows(ahead, width) if checkpoint.has(ahead) else np.empty((0, width), np.float32)
    return SavedRows(first, blocks, behind, written)


def listed_segments(checkpoint: Checkpoint, ring: int, width: int) -> list[Segment]:
    """Returns the segments of a ring [rows, width] that the manifest lists, oldest first."""
    found = []
    for file_name, record in checkpoint.files.items():
        match = SEGMENT.fullmatch(file_name)
        if match and int(match[1]) == ring:
            first = int(match[2])
            found.append(Segment(file_name, first, first + record.size // (4 * width)))
    return sorted(found, key=lambda segment: segment.first)
