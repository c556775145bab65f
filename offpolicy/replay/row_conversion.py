"""Saved rows of a replay: into a ring, from checkpoints of any layout, and as transitions that hold all of themselves.

A ring of other geometry than the saved one takes its transitions, not its slots: rows of checkpoints before layout 4,
and of another number of environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from offpolicy.checkpoint import Checkpoint
from offpolicy.checkpoint.content import state_fields
from offpolicy.checkpoint.replay_rows import SavedRows, read_replay, saved_num_envs
from offpolicy.errors import CheckpointError
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import (
    IS_TERMINATED,
    IS_TRUNCATED,
    MOST_OFFSET,
    OFFSET_SHIFT,
    RowLayout,
    TransitionLayout,
)
from offpolicy.types import Float32

BLOCK_ROWS = 65_536  # transitions that are converted at once


def restore_ring(ring: ReplayRing, checkpoint: Checkpoint, index: int) -> None:
    """Fills an unused ring with the saved rows of collector `index`, if there are any. Raises `CheckpointError`.

    Besides the ring, it needs memory for `BLOCK_ROWS` rows: saved files are mapped, and those that must be converted
    are read twice, the first time to count the slots that come of them.
    """
    saved = _read(checkpoint, index, ring.layout)
    if saved is None:
        return
    if saved.num_envs == ring.num_envs:
        ring.restore_slots(saved.first, saved.blocks, saved.ahead, saved.num_written)
        return
    committed = converted_end(saved.first + sum(map(len, saved.blocks)), ring.num_envs)
    count = sum(map(len, _converted(saved, ring)))
    end = committed + (ring.num_envs if count else 0)  # the last slots are open
    ring.restore_stream((end - count, committed, end), _converted(saved, ring), saved.num_written)


def restored_ends(checkpoint: Checkpoint, num_envs: int) -> list[int]:
    """Returns `committed` of each ring of `num_envs` environments that is filled from a checkpoint."""
    ends = state_fields(checkpoint).counts("replay_end")
    return ends if saved_num_envs(checkpoint) == num_envs else [converted_end(end, num_envs) for end in ends]


def why_rows_differ(checkpoint: Checkpoint, num_envs: int) -> str:
    """Returns why a ring does not hold the very rows of a checkpoint; '' if it does."""
    before = saved_num_envs(checkpoint)
    if before == num_envs:
        return ""
    return f"env.num_envs changed from {before} to {num_envs}" if before else "its replay is of an older layout"


def converted_end(end: int, num_envs: int) -> int:
    """Returns the end of converted rows, known without reading them: room for two slots for each, and for breaks."""
    return num_envs * (4 * end // num_envs + 8) if end else 0


def _read(checkpoint: Checkpoint, index: int, layout: RowLayout) -> SavedRows | None:
    plain = TransitionLayout(layout.obs_dim, layout.action_dim)
    return read_replay(checkpoint, index, layout.slot_width if saved_num_envs(checkpoint) else plain.width)


def _as_transitions(saved: SavedRows, layout: RowLayout) -> Iterator[Float32]:
    """Returns blocks of transitions [m, 2 O + A + 4], oldest first."""
    if not saved.num_envs:
        for rows in saved.blocks:
            for begin in range(0, len(rows), BLOCK_ROWS):
                yield rows[begin : begin + BLOCK_ROWS]
        return
    blocks, num_rows = (*saved.blocks, saved.ahead), sum(map(len, saved.blocks))
    for begin in range(0, num_rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, num_rows - begin)
        slots = _slice(blocks, begin, begin + count)
        reach = saved.num_envs * min(int((slots.view(np.uint32)[:, -1] >> OFFSET_SHIFT).max()), MOST_OFFSET)
        behind = _slice(blocks, begin + count, begin + count + reach)  # what the last of them refer to
        yield transitions_of(np.concatenate([slots, behind]), np.arange(count), layout, saved.num_envs)


def _slice(blocks: Sequence[Float32], start: int, stop: int) -> Float32:
    """Returns a copy of the rows [start, stop), as far as there are any, of blocks that follow each other."""
    parts, begin = [], 0
    for rows in blocks:
        parts.append(rows[max(start - begin, 0) : max(stop - begin, 0)])
        begin += len(rows)
    return np.concatenate(parts)


def transitions_of(slots: Float32, index: np.ndarray, layout: RowLayout, num_envs: int) -> Float32:
    """Returns the transitions [m, 2 O + A + 4] among the slots `index` [n] of `slots` [M, slot_width].

    Raises `CheckpointError` for one that ends in an observation that is not there.
    """
    plain = TransitionLayout(layout.obs_dim, layout.action_dim)
    codes = slots.view(np.uint32)[:, -1]
    index = index[codes[index] != 0]
    code = codes[index]
    offset = np.minimum(code >> OFFSET_SHIFT, MOST_OFFSET).astype(np.int64)
    obs, next_index = slots.view(layout.obs_dtype)[:, : layout.obs_dim], index + offset * num_envs
    if (next_index >= len(slots)).any():
        raise CheckpointError(f"of {len(slots)} saved replay rows one ends in an observation beyond them")
    rows: Float32 = np.empty((len(index), plain.width), np.float32)
    rows[:, plain.obs], rows[:, plain.next_obs] = obs[index], obs[next_index]
    rows[:, plain.action.start : plain.reward + 1] = slots[index, layout.obs_words : -2]
    rows[:, -3], rows[:, -2] = code & IS_TERMINATED != 0, code & IS_TRUNCATED != 0
    rows[:, -1] = slots[index, -2]
    return rows


def _converted(saved: SavedRows, ring: ReplayRing) -> Iterator[Float32]:
    """Returns the transitions of other slots, or of none, as blocks of slots; the last `num_envs` are open."""
    num_envs = ring.num_envs
    step = BLOCK_ROWS // num_envs * num_envs or num_envs
    for rows in _as_transitions(saved, ring.layout):
        for begin in range(0, len(rows), step):
            yield slots_of(rows[begin : begin + step], ring.layout, num_envs)


def slots_of(rows: Float32, layout: RowLayout, num_envs: int) -> Float32:
    """Returns slots that hold transitions [m, 2 O + A + 4]; the last `num_envs` only hold the last observations.

    N transitions make a vector step. Where the next N do not begin where these end, a step of observations is between.
    """
    plain, num_steps = TransitionLayout(layout.obs_dim, layout.action_dim), -(-len(rows) // num_envs)
    padded = np.zeros((num_steps * num_envs, plain.width), np.float32)
    padded[: len(rows)] = rows
    steps = padded.reshape(num_steps, num_envs, plain.width)
    obs, next_obs = steps[:, :, plain.obs], steps[:, :, plain.next_obs]
    goes_on = (obs[1:] == next_obs[:-1]).all(axis=(1, 2))
    place = np.concatenate([[0], np.cumsum(2 - goes_on)])  # of a step among the steps of slots
    slots = np.zeros((int(place[-1]) + 2, num_envs, layout.slot_width), np.float32)
    held = slots.view(layout.obs_dtype)[:, :, : layout.obs_dim]
    held[place], held[place + 1] = obs, next_obs
    slots[place, :, layout.obs_words : -2] = steps[:, :, plain.action.start : plain.reward + 1]
    slots[place, :, -2] = steps[:, :, -1]
    code = (steps[:, :, -3] != 0) * IS_TERMINATED + (steps[:, :, -2] != 0) * IS_TRUNCATED + (1 << OFFSET_SHIFT)
    is_row = (np.arange(len(padded)) < len(rows)).reshape(num_steps, num_envs)
    slots.view(np.uint32)[place, :, -1] = code * is_row
    return slots.reshape(-1, layout.slot_width)
