"""Writing transitions into a replay ring on the learner's device, without the host waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.collect.replay_writer import NUM_SUMS, Writer
from offpolicy.replay.device_ring import DeviceRing
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT
from offpolicy.types import Float32, Float64, PolicyOutput, StepOutcome


@dataclass(slots=True)
class _OpenStep:
    """A vector step of which rows may be open: they still sum rewards."""

    rows: slice  # its slots
    reward: Tensor  # [N] float64, summed so far
    is_open: Tensor  # [N]


class DeviceWriter(Writer):
    """Turns vector steps of tensors into rows of one ring. What each method promises is in `Writer`.

    A row is visible when its code is set, of n-step replay at its end. A transition with NaN or Inf has no code; it is
    named by `is_bad` [N] until the collector reads that.
    """

    def __init__(self, ring: DeviceRing, *, gamma: float, n_step: int) -> None:
        self._ring, self._n_step = ring, n_step
        self._discounts = [gamma]  # gamma^k, as successive products
        for _ in range(n_step - 1):
            self._discounts.append(self._discounts[-1] * gamma)
        self._steps = deque[_OpenStep]()
        self.is_bad = torch.zeros(ring.num_envs, dtype=torch.bool, device=ring.store.device)

    def write(self, obs: Any, output: PolicyOutput, outcome: StepOutcome) -> int:
        """Stores one vector step of tensors; returns N: bad rows are known later, and count as collected."""
        fields: Any = outcome
        reward, terminated, truncated, next_obs = fields.reward, fields.terminated, fields.truncated, fields.next_obs
        action: Any = output.action
        columns = torch.cat([obs, next_obs, action, reward.float()[:, None]], dim=1)
        is_sound = torch.isfinite(columns).all(dim=1)
        self.is_bad |= ~is_sound
        ends = terminated * IS_TERMINATED + truncated * IS_TRUNCATED
        rows = self._ring.add_step(obs, action, next_obs)
        self._steps.append(_OpenStep(rows, torch.zeros_like(reward), torch.ones_like(is_sound)))
        for age, step in enumerate(reversed(self._steps)):  # steps since its first
            self._add(step, age, reward, ends, is_sound)
        if len(self._steps) == self._n_step:
            self._steps.popleft()  # all of its rows are complete
        return self._ring.num_envs

    def _add(self, step: _OpenStep, age: int, reward: Tensor, ends: Tensor, is_sound: Tensor) -> None:
        """Adds the rewards [N] of the newest step to the rows of the one `age` steps before it."""
        tails, codes, width = self._ring.tails, self._ring.codes, self._ring.layout.action_dim
        weight = 1.0 if age == 0 else self._discounts[age - 1]
        step.is_open = step.is_open & is_sound
        step.reward = torch.where(step.is_open, step.reward + weight * reward, step.reward)
        is_complete = step.is_open if age + 1 == self._n_step else step.is_open & (ends != 0)
        code = ends + ((2 * age + 1) << OFFSET_SHIFT)
        codes[step.rows] = torch.where(is_complete, code.int(), codes[step.rows])
        tails[step.rows, width] = torch.where(is_complete, step.reward.float(), tails[step.rows, width])
        tails[step.rows, width + 1] = torch.where(is_complete, self._discounts[age], tails[step.rows, width + 1])
        step.is_open = step.is_open & ~is_complete

    def abandon(self, envs: Sequence[int]) -> None:
        for step in self._steps:
            step.is_open[list(envs)] = False

    def open_windows(self) -> tuple[Float32, Float64]:
        """Returns no rows, which the ring holds, and of each open step [N, NUM_SUMS]: reward, open, first slot."""
        sums = [np.zeros((0, NUM_SUMS))]
        for step in self._steps:
            facts = np.zeros((self._ring.num_envs, NUM_SUMS))
            facts[:, 0], facts[:, 1], facts[:, 2] = step.reward.cpu(), step.is_open.cpu(), step.rows.start
            sums.append(facts)
        return np.zeros((0, self._ring.layout.reward), np.float32), np.concatenate(sums)

    def reopen_windows(self, rows: Float32, facts: Float64) -> None:
        num_envs, device = self._ring.num_envs, self._ring.store.device
        for block in facts.reshape(-1, num_envs, NUM_SUMS):
            first = int(block[0, 2])
            reward, is_open = torch.from_numpy(block[:, 0].copy()), torch.from_numpy(block[:, 1] != 0)
            self._steps.append(_OpenStep(slice(first, first + num_envs), reward.to(device), is_open.to(device)))
