"""The n-step rows that still sum rewards, for all environments of a collector at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import OFFSET_SHIFT
from offpolicy.types import Bool, Float32, Float64

NO_TAILS: Float32 = np.empty((0, 1), np.float32)  # of no slots
NUM_SUMS = 5  # numbers of an open vector step for each environment


@dataclass(slots=True)
class _OpenStep:
    """A vector step of which rows are open. The first slot that is not complete holds back those behind it."""

    obs: Float32  # [N, O]
    action: Float32  # [N, A]
    reward: Float64  # [N] summed so far
    discount: Float64  # [N]
    num_steps: Float64  # [N] summed so far
    is_open: Bool  # [N]
    code: NDArray[np.uint32]  # [N] zero while a row is open, and where there is none


class OpenWindows:
    """Sums the rewards of the rows of the last vector steps: `n_step` steps, or less at an episode's end."""

    def __init__(self, ring: ReplayRing, gamma: float, n_step: int) -> None:
        self._ring, self._gamma, self._n_step = ring, gamma, n_step
        self._steps = deque[_OpenStep]()

    def add(self, obs: Float32, action: Float32, reward: Float32, is_stored: Bool, ends: NDArray[np.int64]) -> Float32:
        """Adds one vector step [N]; returns the ends [m, A + 3] of the slots that became complete, oldest first.

        `ends`: flags of the episodes that ended in it. `is_stored`: where it is a transition.
        """
        zeros, ones = np.zeros(len(obs)), np.ones(len(obs))
        no_code = np.zeros(len(obs), np.uint32)
        self._steps.append(_OpenStep(obs.copy(), action.copy(), zeros, ones, zeros.copy(), is_stored.copy(), no_code))
        one_step, has_ended = reward.astype(np.float64), ends != 0
        for age, step in zip(range(len(self._steps), 0, -1), self._steps, strict=True):
            here = step.is_open & is_stored
            np.add(step.reward, step.discount * one_step, out=step.reward, where=here)
            np.multiply(step.discount, self._gamma, out=step.discount, where=here)
            step.num_steps += here
            is_complete = here & (has_ended | (step.num_steps == self._n_step))
            if is_complete.any():
                step.code[is_complete] = ends[is_complete] + (age << OFFSET_SHIFT)
                step.is_open &= ~is_complete
        return self._completed()

    def skip_step(self) -> Float32:
        """Adds a vector step that only holds its observations, those written last; returns as `add`."""
        newest = self._ring.newest_obs()
        action = np.zeros((len(newest), self._ring.layout.action_dim), np.float32)
        zeros, no_code = np.zeros(len(newest)), np.zeros(len(newest), np.uint32)
        self._steps.append(_OpenStep(newest.astype(np.float32), action, zeros, zeros, zeros, no_code != 0, no_code))
        return self._completed()

    def abandon(self, envs: Sequence[int]) -> None:
        """Drops the open rows of `envs`."""
        for step in self._steps:
            step.is_open[list(envs)] = False

    def write_obs(self) -> None:
        """Writes the observations of the open steps into the ring again, from its first open slot on."""
        for step in self._steps:
            self._ring.write(NO_TAILS, step.obs)

    def _completed(self) -> Float32:
        """Removes the steps, from the oldest on, that have no open row; returns the ends of their slots."""
        tails = []
        while self._steps and not self._steps[0].is_open.any():
            step = self._steps.popleft()
            tail: Float32 = np.empty((len(step.action), step.action.shape[1] + 3), np.float32)
            tail[:, :-3], tail[:, -3], tail[:, -2] = step.action, step.reward, step.discount
            tail.view(np.uint32)[:, -1] = step.code
            tails.append(tail)
        return np.concatenate(tails) if tails else NO_TAILS

    def state(self) -> tuple[Float32, Float64]:
        """Returns rows [n, O + A] and sums [n, NUM_SUMS], N of each for every open step."""
        layout = self._ring.layout
        rows = [np.concatenate([step.obs, step.action], axis=1) for step in self._steps]
        sums = [
            np.stack([step.reward, step.discount, step.num_steps, step.is_open, step.code], axis=1)
            for step in self._steps
        ]
        all_sums: Float64 = np.concatenate([np.empty((0, NUM_SUMS)), *sums], dtype=np.float64)
        return np.concatenate([np.empty((0, layout.reward), np.float32), *rows]), all_sums

    def set_state(self, rows: Float32, sums: Float64) -> None:
        """Restores what `state` returned."""
        self._steps.clear()
        for begin in range(0, len(rows), self._ring.num_envs):
            block = slice(begin, begin + self._ring.num_envs)
            obs, action = np.split(rows[block], [self._ring.layout.obs_dim], axis=1)
            reward, discount, num_steps, is_open, code = sums[block].T.copy()
            step = _OpenStep(
                obs.copy(), action.copy(), reward, discount, num_steps, is_open != 0, code.astype(np.uint32)
            )
            self._steps.append(step)
