"""The running discounted returns of the environments, from the rows of the replay in the order of the steps.

G_t = gamma G_(t-1) + r_t within an episode, as Gymnasium's NormalizeReward has it and FlashSAC (arXiv:2604.04539)
section 4: not the return of a state, but a number that grows with the rewards as returns do. Every row is read once,
when it is new, so the sums are the same however often it is sampled. After a bad row (`env.max_bad_rows`) the returns
of all environments of its collector begin at 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, RowLayout
from offpolicy.types import Float64


class RunningReturns:
    """G of every environment, by ring, and the moments of those that have not been taken yet."""

    def __init__(self, rings: Sequence[ReplayRing], layout: RowLayout, discount: float) -> None:
        """`rings` hold rows of one step each."""
        self._rings, self._discount = tuple(rings), discount
        self._reward = layout.obs_words + layout.action_dim  # a column of a slot
        self._returns = [np.zeros(ring.num_envs) for ring in self._rings]
        self._fresh: list[Float64] = []

    def add_rows(self, number: int, start: int, stop: int) -> None:
        """Continues with the rows [start, stop) of a ring, whole vector steps; those recycled are left out."""
        slots = self._rings[number].read_range(start, stop)
        returns = self._returns[number]
        shape = len(slots) // len(returns), len(returns)
        rewards = slots[:, self._reward].astype(np.float64).reshape(shape)
        codes = slots.view(np.uint32)[:, -1].reshape(shape)
        is_row = codes != 0
        is_end = ~is_row | ((codes & (IS_TERMINATED | IS_TRUNCATED)) != 0)  # the row of autoreset is no step
        history = np.empty(shape)
        for step in range(shape[0]):
            returns *= self._discount
            returns += rewards[step]
            history[step] = returns
            returns[is_end[step]] = 0.0
        self._fresh.append(history[is_row])

    def take_moments(self) -> Tensor:
        """Returns number, mean, sum of squared deviations and greatest |G| of the steps since the last call. [4]."""
        fresh = np.concatenate([np.empty(0), *self._fresh])
        self._fresh.clear()
        if not len(fresh):
            return torch.zeros(4, dtype=torch.float64)
        moments = [len(fresh), fresh.mean(), np.square(fresh - fresh.mean()).sum(), np.abs(fresh).max()]
        return torch.tensor(moments, dtype=torch.float64)

    def state(self) -> list[list[float]]:
        """Returns G by ring and environment, as JSON data: float64 survive it bit for bit."""
        return [returns.tolist() for returns in self._returns]

    def set_state(self, state: list[list[float]]) -> None:
        """Continues from what `state` returned."""
        for returns, saved in zip(self._returns, state, strict=True):
            returns[:] = saved
