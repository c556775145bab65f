"""Writing transitions into the replay ring: the one place that decides which rows exist and what they hold.

A row of n-step replay spans k <= n steps of one environment: it ends at the n-th step or at the episode's end,
whichever comes first, and stores `discount = gamma ** k` for the k it really has. Rows become visible only when
complete, so no window ever crosses the write head (SB3's NStepReplayBuffer cuts there instead).

A vector step is written as one slot per environment, whether it has a row or not (`replay/replay_ring.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offpolicy.errors import EnvFailure, NumericsError
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT
from offpolicy.types import Bool, Float32, Float64, PolicyOutput, StepOutcome

NO_TAILS: Float32 = np.empty((0, 1), np.float32)  # of no slots
NUM_SUMS = 5  # numbers of an open vector step for each environment
ONE_STEP = 1 << OFFSET_SHIFT  # code of a row that ends in the next vector step
NOTHING_BAD: NDArray[np.intp] = np.empty(0, np.intp)
ONE_TERMINATED, ONE_TRUNCATED = np.uint32(IS_TERMINATED), np.uint32(IS_TRUNCATED)


class Writer(Protocol):
    """Stores the collector's vector steps. What is answered here is right for a replay, of which no step waits."""

    def wants_fresh_policy(self, version: int) -> bool:
        """True if the next step may be acted by newer weights than those of `version`, which acted last."""
        return True

    def handed_over(self, env_steps: int) -> int:
        """Returns how much the learner was given, after `env_steps` own transitions; a change wakes it."""
        return env_steps

    def may_step(self, env_steps: int, granted: int) -> bool:
        """True if the next step is within what the learner granted, and has a place."""
        return env_steps < granted

    def begin(self) -> None:
        """Begins: in the saved episodes where `reopen_windows` has restored them, else in new ones."""
        return

    def write(self, obs: Float32, output: PolicyOutput, outcome: StepOutcome) -> int:
        """Stores one vector step; returns its number of transitions. Raises `BadRowError` on NaN or Inf."""
        ...

    def abandon(self, envs: Sequence[int]) -> None:
        """Drops what is open of the running episodes of `envs`, which end here without a last row."""
        ...

    def rollout_counts(self) -> tuple[int, int]:
        """Returns how many rollouts were finished, and how many of them dropped because no slot was free."""
        return 0, 0

    def open_windows(self) -> tuple[Float32, Float64]:
        """Returns what no learner can have seen yet, for a snapshot: rows [n, W] and numbers of them [m, ...]."""
        ...

    def reopen_windows(self, rows: Float32, facts: Float64) -> None:
        """Restores what `open_windows` returned."""
        ...


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


class ReplayWriter(Writer):
    """Turns vector steps into rows of one ring."""

    def __init__(self, ring: ReplayRing, *, gamma: float, n_step: int) -> None:
        self._ring, self._layout = ring, ring.layout
        self._windows = None if n_step == 1 else OpenWindows(ring, gamma, n_step)
        self._is_continued = False  # True: the saved episodes go on
        self._has_obs = False  # True: the ring holds what is acted on next
        self._is_sound = False  # True: what the ring holds of that is finite
        self._tails: Float32 = np.zeros((ring.num_envs, self._layout.action_dim + 3), np.float32)  # of one step
        self._tails[:, -2] = gamma
        self._codes = self._tails.view(np.uint32)[:, -1]

    def begin(self) -> None:
        """Begins in the saved episodes, if there are any, else in new ones."""
        if not self._is_continued:
            self._ring.break_off()
        self._ring.begin()
        if self._windows is not None:
            self._windows.write_obs()

    def write(self, obs: Float32, output: PolicyOutput, outcome: StepOutcome) -> int:
        """Stores the valid transitions of one vector step; returns their number.

        obs: [N, O] acted on, action: [N, A] in [-1, 1]. Raises `BadRowError` on NaN or Inf; the sound rows of the
        step are committed, the bad ones never are.
        """
        tails = self._tails
        with np.errstate(over="ignore"):  # a reward beyond float32 is infinite, and a bad row
            tails[:, :-3], tails[:, -3], self._codes[:] = output.action, outcome.reward, 0
        # Compared with what was stored; NaN is never equal.
        goes_on = self._has_obs and bool(np.count_nonzero(self._ring.newest_obs() == obs) == obs.size)
        was_sound, self._is_sound = self._is_sound and goes_on, _is_finite(outcome.next_obs)
        is_sound = self._is_sound and _is_finite(tails) and (was_sound or _is_finite(obs))
        columns = {"obs": obs, "next_obs": outcome.next_obs, "action": output.action, "reward": tails[:, -3]}
        bad = NOTHING_BAD if is_sound else _bad_envs(columns, outcome)
        if self._layout.obs_dtype != "float32":
            require_bytes(obs)
            require_bytes(outcome.next_obs)
        is_stored = outcome.is_valid
        if len(bad):
            is_stored = is_stored.copy()
            is_stored[bad] = False
        if not goes_on:
            self._begin_elsewhere(obs)
        num_stored = int(np.count_nonzero(is_stored))
        if self._windows is None:
            self._set_codes(outcome, is_stored)
        else:
            ends = outcome.terminated * IS_TERMINATED + outcome.truncated * IS_TRUNCATED
            tails = self._windows.add(obs, output.action, tails[:, -3], is_stored, ends)
        self._ring.write(tails, outcome.next_obs)
        if len(bad):
            raise BadRowError(bad, columns, num_stored)
        return num_stored

    def _set_codes(self, outcome: StepOutcome, is_stored: Bool) -> None:
        """Sets the codes [N] of rows of one step."""
        codes = self._codes
        codes[:] = ONE_STEP
        if np.count_nonzero(outcome.terminated):
            codes += outcome.terminated * ONE_TERMINATED
        if np.count_nonzero(outcome.truncated):
            codes += outcome.truncated * ONE_TRUNCATED
        if np.count_nonzero(is_stored) < len(codes):
            codes *= is_stored

    def _begin_elsewhere(self, obs: Float32) -> None:
        """Writes observations [N, O] that are not those to which the last vector step has led: those stay, too.

        Open rows of the environments whose observation is another one are dropped, also without a call of `abandon`.
        """
        if self._has_obs and self._windows is None:
            self._ring.break_off()
        elif self._has_obs and self._windows is not None:
            self._windows.abandon(np.flatnonzero((self._ring.newest_obs() != obs).any(axis=1)).tolist())
            self._ring.write(self._windows.skip_step(), None)
        self._ring.write(NO_TAILS, obs)
        self._has_obs = True

    def abandon(self, envs: Sequence[int]) -> None:
        """Drops the open rows of `envs`, whose episodes end here without a last row."""
        if self._windows is not None:
            self._windows.abandon(envs)

    def open_windows(self) -> tuple[Float32, Float64]:
        """Returns the open vector steps, a row for each environment: [n, O + A] and sums [n, 5]; for a snapshot."""
        if self._windows is None:
            return np.empty((0, self._layout.reward), np.float32), np.empty((0, NUM_SUMS))
        return self._windows.state()

    def reopen_windows(self, rows: Float32, facts: Float64) -> None:
        """Restores what `open_windows` returned: the episodes go on."""
        if self._windows is not None:
            self._windows.set_state(rows, facts)
        self._is_continued = True


def _bad_envs(columns: Mapping[str, NDArray[Any]], outcome: StepOutcome) -> NDArray[np.intp]:
    """Returns where a valid transition holds NaN or Inf, or an episode begins with it in a row of autoreset."""
    is_sound = [np.isfinite(values).reshape(len(values), -1).all(axis=1) for values in columns.values()]
    begins_soundly = np.isfinite(outcome.next_obs).all(axis=1)
    return np.flatnonzero(np.where(outcome.is_valid, ~np.all(is_sound, axis=0), ~begins_soundly))


def _is_finite(block: Float32) -> bool:
    """False if a number is NaN or Inf."""
    return bool(np.count_nonzero(np.isfinite(block)) == block.size)


def require_bytes(obs: Float32) -> None:
    """Raises `EnvFailure` for observations that an environment of bytes cannot have: the replay would change them."""
    is_byte = (obs >= 0) & (obs <= 255) & (np.floor(obs) == obs)
    if not (is_byte | ~np.isfinite(obs)).all():
        raise EnvFailure(
            f"observations: got {float(obs[~is_byte][0]):g}, allowed whole numbers from 0 to 255, as the environment's"
            " uint8 space says; give the space another dtype"
        )


class BadRowError(NumericsError):
    """Transitions of `envs` in one vector step hold NaN or Inf; `num_stored` others of the step are stored."""

    def __init__(self, envs: NDArray[np.intp], columns: Mapping[str, NDArray[Any]], num_stored: int = 0) -> None:
        """columns: what the transitions hold, by name, each [N] or [N, ...]."""
        bad = [name for name, values in columns.items() if not np.isfinite(values[envs[0]]).all()]
        super().__init__(f"NaN or Inf in {', '.join(bad)} of environment {envs[0]}")
        self.envs, self.num_stored = tuple(envs.tolist()), num_stored
