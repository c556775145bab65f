"""The rows of a replay in checkpoints: files of consecutive rows, which one checkpoint takes over from the one before.

A checkpoint holds the rows [first, end) of each ring, as its `state.json` says, in one or more segments. A segment is a
file `replay-<ring>-<index of its first row>.f32`. Its oldest rows may be older than `first`: the ring has recycled them
since. So a checkpoint writes only the rows that are new since the last one, and links the other segments.

Since layout 4 a row holds its observation only, that of the next vector step is `replay_envs` rows further, and
`ahead-<ring>.f32` has the observations behind the last row. Before, a row held all of a transition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offpolicy.checkpoint.content import MOST_ENVS, state_fields
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
    num_envs: int  # rows of a vector step; 0: each row is a transition by itself
    num_written: int  # transitions that the ring was ever given


def segment_name(ring: int, first: int) -> str:
    """Returns the name, without suffix, of the segment of a ring that begins with row `first`."""
    return f"replay-{ring}-{first:015d}"


def ahead_name(ring: int) -> str:
    """Returns the name, without suffix, of the file of what the last rows of a ring refer to."""
    return f"ahead-{ring}"


def saved_num_envs(checkpoint: Checkpoint) -> int:
    """Returns the rows of a vector step; 0 if each row is a transition by itself, as it was before layout 4."""
    fields = state_fields(checkpoint)
    return fields.count("replay_envs", MOST_ENVS) if "replay_envs" in fields else 0


def has_replay(checkpoint: Checkpoint) -> bool:
    """True if the rows of the replay were saved, and are whole."""
    fields = state_fields(checkpoint)
    return not checkpoint.has_lost_rows and (
        fields.flag("has_replay") if "has_replay" in fields else checkpoint.has("replay-0")
    )  # layout 2 does not say so


def segments_of(checkpoint: Checkpoint, ring: int, width: int) -> list[Segment]:
    """Returns the segments of a ring [rows, width], oldest first. Raises `CheckpointError` if they leave rows out."""
    fields = state_fields(checkpoint)
    firsts = fields.counts("replay_first")
    if ring >= len(firsts):
        return []
    first, end = firsts[ring], fields.counts("replay_end", len(firsts))[ring]
    segments = listed_segments(checkpoint, ring, width, first)
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
    first, ends = fields.counts("replay_first")[ring], fields.counts("replay_end")
    written = fields.counts("replay_written", len(ends)) if "replay_written" in fields else ends
    blocks = [
        checkpoint.rows(segment.file_name.removesuffix(ROWS), width)[max(first - segment.first, 0) :]
        for segment in segments
    ]
    behind = checkpoint.rows(ahead, width) if checkpoint.has(ahead) else np.empty((0, width), np.float32)
    return SavedRows(first, blocks, behind, saved_num_envs(checkpoint), written[ring])


def listed_segments(checkpoint: Checkpoint, ring: int, width: int, first: int = 0) -> list[Segment]:
    """Returns the segments of a ring [rows, width] that the manifest lists, oldest first.

    `first`: the row that the file of a ring in layout 2 begins with, which its name does not say.
    """
    found = []
    for file_name, record in checkpoint.files.items():
        name = file_name.removesuffix(ROWS)
        match = SEGMENT.fullmatch(file_name)
        if match and int(match[1]) == ring:
            found.append((file_name, int(match[2]), record.size))
        elif name == f"replay-{ring}":  # layout 2
            found.append((file_name, first, record.size))
    found.sort(key=lambda segment: segment[1])
    return [Segment(file_name, begin, begin + size // (4 * width)) for file_name, begin, size in found]
