"""Writing transitions into the replay ring: the one place that decides which rows exist and what they hold.

A row of n-step replay spans k <= n steps of one environment: it ends at the n-th step or at the episode's end,
whichever comes first, and stores `discount = gamma ** k` for the k it really has. Rows become visible only when
complete, so no window ever crosses the write head (SB3's NStepReplayBuffer cuts there instead).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from offpolicy.errors import NumericsError
from offpolicy.replay.demonstrations import Transitions
from offpolicy.replay.ring import Ring, RowLayout
from offpolicy.types import Bool, Choice, Float32, Float64, StepOutcome


class Writer(Protocol):
    """Stores the collector's vector steps."""

    def wants_fresh_policy(self, version: int) -> bool:
        """True if the next step may be acted by newer weights than those of `version`, which acted last."""
        ...

    def handed_over(self, env_steps: int) -> int:
        """Returns how much the learner was given, after `env_steps` own transitions; a change wakes it."""
        ...

    def may_step(self, env_steps: int, granted: int) -> bool:
        """True if the next step is within what the learner granted, and has a place."""
        ...

    def begin(self, env_steps: int) -> None:
        """Begins after `env_steps` own transitions."""
        ...

    def take_over(self, env_steps: int) -> int:
        """Continues in place of a writer that died and had announced so many; returns its own transitions."""
        ...

    def write(self, obs: Float32, choice: Choice, outcome: StepOutcome, env_steps: int) -> int:
        """Stores one vector step, taken after `env_steps` own transitions; returns its number of transitions.

        Raises `BadRowError` on NaN or Inf.
        """
        ...

    def abandon(self, envs: Sequence[int]) -> None:
        """Drops what is open of the running episodes of `envs`, which end here without a last row."""
        ...

    def open_windows(self) -> tuple[Float32, Float64]:
        """Returns what no learner can have seen yet, for a snapshot: rows [n, W] and numbers of them [m, ...]."""
        ...

    def reopen_windows(self, rows: Float32, facts: Float64) -> None:
        """Restores what `open_windows` returned."""
        ...


@dataclass(slots=True)
class _Window:
    """A row that still sums rewards."""

    row: Float32  # [W]
    reward: float = 0.0
    discount: float = 1.0
    num_steps: int = 0


class ReplayWriter:
    """Turns vector steps into rows of one ring."""

    def __init__(self, ring: Ring, layout: RowLayout, *, gamma: float, n_step: int, num_envs: int) -> None:
        self._ring, self._layout = ring, layout
        self._gamma, self._n_step = gamma, n_step
        self._windows: list[deque[_Window]] = [deque() for _ in range(num_envs)]

    def wants_fresh_policy(self, version: int) -> bool:
        """Always true: any step of a replay may be acted by any weights."""
        return True

    def handed_over(self, env_steps: int) -> int:
        """Returns the transitions."""
        return env_steps

    def may_step(self, env_steps: int, granted: int) -> bool:
        """True below the granted env steps; there is always room, as the oldest rows are recycled."""
        return env_steps < granted

    def begin(self, env_steps: int) -> None:
        """Begins after `env_steps` own transitions."""
        self._ring.begin(env_steps)

    def take_over(self, env_steps: int) -> int:
        """Continues in place of a writer that died and had announced so many; returns its own transitions."""
        return self._ring.take_over(env_steps)

    def write(self, obs: Float32, choice: Choice, outcome: StepOutcome, env_steps: int = 0) -> int:
        """Stores the valid transitions of one vector step, taken after `env_steps` own ones; returns their number.

        obs: [N, O] acted on, action: [N, A] in [-1, 1]. Raises `BadRowError` on NaN or Inf; the sound rows of the
        step are committed, the bad ones never are.
        """
        layout = self._layout
        rows: Float32 = np.empty((len(obs), layout.width), dtype=np.float32)
        rows[:, layout.obs] = obs
        rows[:, layout.next_obs] = outcome.next_obs
        rows[:, layout.action] = choice.action
        rows[:, layout.REWARD] = outcome.reward
        rows[:, layout.TERMINATED] = outcome.terminated
        rows[:, layout.TRUNCATED] = outcome.truncated
        rows[:, layout.DISCOUNT] = self._gamma
        if not outcome.is_valid.all():
            rows = rows[outcome.is_valid]
        envs = np.flatnonzero(outcome.is_valid)
        bad = ~np.isfinite(rows).all(axis=1) if not np.isfinite(rows.sum(dtype=np.float64)) else None
        if bad is not None and bad.any():
            self._store(rows[~bad], envs[~bad], env_steps)
            columns: dict[str, slice | int] = {
                "obs": layout.obs, "next_obs": layout.next_obs, "action": layout.action, "reward": layout.REWARD,
            }  # fmt: skip
            found = [BadRow(int(envs[index]), fields_of(rows[index], columns)) for index in np.flatnonzero(bad)]
            raise BadRowError(found, num_stored=int((~bad).sum()))
        self._store(rows, envs, env_steps)
        return len(rows)

    def _store(self, rows: Float32, envs: NDArray[np.int64], env_steps: int) -> None:
        env_steps += len(rows)
        if self._n_step > 1:
            rows = self._accumulate(rows, envs)
        if len(rows):
            self._ring.append(rows, env_steps)

    def _accumulate(self, rows: Float32, envs: NDArray[np.int64]) -> Float32:
        """Adds one step of each environment to its open windows; returns the rows that became complete."""
        layout, complete = self._layout, list[Float32]()
        for row, env in zip(rows, envs, strict=True):
            windows = self._windows[env]
            windows.append(_Window(row.copy()))
            reward, is_end = float(row[layout.REWARD]), row[layout.TERMINATED] or row[layout.TRUNCATED]
            for window in windows:
                window.reward += window.discount * reward
                window.discount *= self._gamma
                window.num_steps += 1
            while windows and (windows[0].num_steps == self._n_step or is_end):
                window = windows.popleft()
                for column in (layout.next_obs, layout.TERMINATED, layout.TRUNCATED):  # its span ends with this step
                    window.row[column] = row[column]
                window.row[layout.REWARD], window.row[layout.DISCOUNT] = window.reward, window.discount
                complete.append(window.row)
        return np.array(complete, dtype=np.float32).reshape(-1, layout.width)

    def abandon(self, envs: Sequence[int]) -> None:
        """Drops the open rows of `envs`, whose episodes end here without a last row."""
        for env in envs:
            self._windows[env].clear()

    def open_windows(self) -> tuple[Float32, Float64]:
        """Returns the open rows [n, W] and, per row, env index, reward, discount and steps [n, 4]; for a snapshot."""
        open_rows = [(env, window) for env, windows in enumerate(self._windows) for window in windows]
        rows = np.array([window.row for _, window in open_rows], dtype=np.float32).reshape(-1, self._layout.width)
        sums = [(env, window.reward, window.discount, window.num_steps) for env, window in open_rows]
        return rows, np.array(sums, dtype=np.float64).reshape(-1, 4)

    def reopen_windows(self, rows: Float32, facts: Float64) -> None:
        """Restores what `open_windows` returned."""
        for row, (env, reward, discount, num_steps) in zip(rows, facts.tolist(), strict=True):
            self._windows[int(env)].append(_Window(row.copy(), reward, discount, int(num_steps)))


class BadRow(NamedTuple):
    """A transition with NaN or Inf."""

    env: int
    fields: dict[str, list[float]]  # by name

    def __str__(self) -> str:
        culprits = [name for name, values in self.fields.items() if not np.isfinite(values).all()]
        return f"NaN or Inf in {', '.join(culprits)} of environment {self.env}"


class BadRowError(NumericsError):
    """Transitions of one vector step hold NaN or Inf; `num_stored` others of the step are stored all the same."""

    def __init__(self, rows: Sequence[BadRow], num_stored: int = 0) -> None:
        super().__init__(str(rows[0]))
        self.rows, self.envs, self.num_stored = tuple(rows), tuple(row.env for row in rows), num_stored


def fields_of(row: Float32, columns: Mapping[str, slice | int]) -> dict[str, list[float]]:
    """Returns the fields of a row [W] by name, for the dump of a bad one."""
    return {name: np.atleast_1d(row[column]).tolist() for name, column in columns.items()}


def demonstration_rows(found: Transitions, layout: RowLayout, *, gamma: float, n_step: int) -> Float32:
    """Returns one row [W] of `n_step` steps, fewer at an episode's end, for every transition. [M, W].

    Raises `ConfigError` if sums over steps are asked for and the rows of an episode do not follow each other.
    """
    if n_step > 1:
        found.require_sequences("algo.n_step")
    ring = Ring(memoryview(bytearray(Ring.nbytes(len(found), layout.width, 4))), layout.width, np.float32)
    writer = ReplayWriter(ring, layout, gamma=gamma, n_step=n_step, num_envs=len(found.first))
    if n_step == 1:
        index = np.arange(len(found))
        writer.write(found.obs, Choice(found.action, None, 0), _outcome(found, index, np.ones(len(found), np.bool_)))
    else:  # every episode is an environment: all take their step t together
        for step in range(int(found.length.max())):
            is_valid = step < found.length
            index = found.first + np.where(is_valid, step, 0)
            writer.write(found.obs[index], Choice(found.action[index], None, 0), _outcome(found, index, is_valid))
    return np.array(ring.read_range(0, ring.committed), dtype=np.float32)


def _outcome(found: Transitions, index: NDArray[np.int64], is_valid: Bool) -> StepOutcome:
    unknown = np.full(len(index), np.nan, np.float32)
    ends = found.terminated[index], found.truncated[index]
    return StepOutcome(found.next_obs[index], found.reward[index], *ends, is_valid, unknown, unknown)
