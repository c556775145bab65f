"""Rows of a batch from slots that are on the device: what `Ring.read` does on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import IS_TERMINATED, OFFSET_SHIFT


def batch_rows(kind: Ring, store: Tensor, ring: Tensor, index: Tensor) -> Tensor:
    """Returns the rows `index` [n] of the rings `ring` [n] as rows of a batch [n, W].

    `store` [R, capacity, width] is a copy of R rings of the kind of `kind`; row i is at `i % capacity`.
    """
    capacity = store.shape[1]
    rows, base = store.flatten(0, 1), ring * capacity
    slot = base + index % capacity
    if not isinstance(kind, ReplayRing):
        return rows.index_select(0, slot)
    offset = torch.bitwise_right_shift(rows.view(torch.int32)[slot, -1], OFFSET_SHIFT)
    pair = torch.stack([slot, base + (index + offset * kind.num_envs) % capacity], dim=1)
    return _joined(kind, rows.index_select(0, pair.flatten()).view(len(index), 2, -1))


def are_transitions(store: Tensor, ring: Tensor, index: Tensor) -> Tensor:
    """Returns a mask [n] of the rows that are transitions; arguments as those of `batch_rows`, of a `ReplayRing`."""
    return store.view(torch.int32)[ring, index % store.shape[1], -1] != 0


def _joined(kind: ReplayRing, slots: Tensor) -> Tensor:
    """Returns rows of a batch [n, W] from slots [n, 2, slot_width], in the same memory where it has room."""
    layout, codes = kind.layout, slots.view(torch.int32)[:, 0, -1]
    flags = (codes & IS_TERMINATED).to(torch.float32)
    if layout.obs_dtype == "float32":
        rows = slots.flatten(1)
    else:
        rows = slots.new_zeros((len(slots), layout.width))
        obs = slots.view(getattr(torch, layout.obs_dtype))[:, :, : layout.obs_dim]
        rows[:, layout.obs], rows[:, layout.next_obs] = obs[:, 0], obs[:, 1]
        rows[:, layout.obs_dim : layout.terminated] = slots[:, 0, layout.obs_words : -1]
    rows[:, layout.terminated] = flags
    return rows
