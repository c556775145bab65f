"""Writing vector steps into the rollout ring, straight into the slot: the one place that decides what a rollout holds.

A rollout is acted by one version of the weights. It starts where the one before it ended, in the middle of an episode
if need be, and holds the autoreset rows too, marked as no transition: their observation is the final one of the episode
before, from which a truncated episode bootstraps. Environments that reset in the step that ends an episode have no such
rows; then every row holds its true successor beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from offpolicy.collect.replay_writer import BadRowError, Writer
from offpolicy.replay.rollout_ring import RolloutRing, RolloutStamp
from offpolicy.types import Float32, Float64, PolicyOutput, StepOutcome

FIRST_VERSION = 1  # version of the weights that a learner publishes when it starts


class RolloutWriter(Writer):
    """Turns vector steps into rollouts of one ring. `newest_version` returns the version of the newest weights."""

    def __init__(self, ring: RolloutRing, *, may_drop: bool, newest_version: Callable[[], int]) -> None:
        self._ring, self._may_drop, self._newest_version = ring, may_drop, newest_version
        self._rows: Float32 = np.empty((0, *ring.layout.shape[1:]), dtype=np.float32)
        self.step = 0  # next one of the open rollout
        self._stamp = RolloutStamp(0, 0, 0)
        self.rollouts = 0  # finished by this process, those dropped among them

    @property
    def open_rows(self) -> Float32:
        """Returns a view of the vector steps [t, N, W] of the open rollout."""
        return self._rows[: self.step]

    def rollout_counts(self) -> tuple[int, int]:
        """Returns how many rollouts were finished, and how many of them dropped because no slot was free."""
        return self.rollouts, self._ring.dropped

    def wants_fresh_policy(self, version: int) -> bool:
        """True if a rollout begins with the next step, or an open one was restored and no weights have acted yet."""
        return self.step == 0 or version == 0

    def handed_over(self, env_steps: int) -> int:
        """Returns the rollouts that the learner has received."""
        return self._ring.committed

    def may_step(self, env_steps: int, granted: int) -> bool:
        """True if the next step is granted and has a place: in the open rollout, or in a free slot for a new one.

        `granted` counts rollouts that the learner has, or can have: those dropped or skipped are collected again.
        """
        if self._ring.committed - self._ring.skipped >= granted:
            return False
        return self.step > 0 or self._may_drop or not self._ring.is_full

    def write(self, obs: Float32, output: PolicyOutput, outcome: StepOutcome) -> int:
        """Stores one vector step; returns its number of transitions.

        Hands the rollout over once it is full. Raises `BadRowError` on NaN or Inf; a rollout that holds one is never
        handed over.
        """
        if self.step == 0:
            self._rows = self._ring.reserve()
            self._stamp = RolloutStamp(self.rollouts, output.version, 0)
        layout = self._ring.layout
        rows = self._rows[self.step]
        assert output.log_prob is not None  # an on-policy actor returns it
        rows[:, layout.obs] = obs
        rows[:, layout.action] = output.action
        if layout.has_final_obs:
            rows[:, layout.final_obs] = outcome.next_obs
        rows[:, layout.LOG_PROB] = output.log_prob
        rows[:, layout.REWARD] = outcome.reward
        rows[:, layout.TERMINATED] = outcome.terminated
        rows[:, layout.TRUNCATED] = outcome.truncated
        rows[:, layout.IS_VALID] = outcome.is_valid
        self._require_finite(rows, outcome.next_obs)
        num_steps = int(outcome.is_valid.sum())
        self._stamp = self._stamp._replace(num_steps=self._stamp.num_steps + num_steps)
        self.step += 1
        if self.step == layout.length:
            self._rows[-1] = 0.0
            self._rows[-1, :, layout.obs] = outcome.obs_to_act_on
            self._ring.commit(self._stamp)
            self.rollouts += 1
            self.step = 0
        return num_steps

    def _require_finite(self, rows: Float32, next_obs: Float32) -> None:
        if np.isfinite(rows.sum(dtype=np.float64) + next_obs.sum(dtype=np.float64)):
            return
        bad = ~(np.isfinite(rows).all(axis=1) & np.isfinite(next_obs).all(axis=1))
        if bad.any():
            layout = self._ring.layout
            columns: dict[str, slice | int] = {
                "action": layout.action, "log_prob": layout.LOG_PROB, "reward": layout.REWARD, "obs": layout.obs,
            }  # fmt: skip
            held = {"next_obs": next_obs, **{name: rows[:, column] for name, column in columns.items()}}
            raise BadRowError(np.flatnonzero(bad), held)

    def abandon(self, envs: Sequence[int]) -> None:
        """Drops the open rollout, whichever of its environments cannot go on."""
        self.step = 0

    def open_windows(self) -> tuple[Float32, Float64]:
        """Returns the rollouts that no learner has taken, and the open one as far as it goes; for a snapshot.

        Rows [n, W] of all of them, and per rollout its number of rows, its lag behind the newest weights, transitions.
        """
        kept = [(stamp, rows) for stamp, rows in self._ring.waiting()]
        if self.step:
            kept.append((self._stamp, self._rows[: self.step]))
        width = self._ring.layout.width
        rows = [block.reshape(-1, width) for _, block in kept]
        newest = self._newest_version()
        facts = [(block.size // width, max(newest - stamp.version, 0), stamp.num_steps) for stamp, block in kept]
        joined = np.concatenate(rows) if rows else np.empty((0, width), dtype=np.float32)
        return joined, np.array(facts, dtype=np.float64).reshape(-1, 3)

    def reopen_windows(self, rows: Float32, facts: Float64) -> None:
        """Restores what `open_windows` returned; the newest weights will be the first to be published."""
        blocks = np.split(rows, np.cumsum(facts[:, 0]).astype(np.int64)[:-1]) if len(facts) else []
        for block, (_, lag, num_steps) in zip(blocks, facts.astype(np.int64).tolist(), strict=True):
            steps = block.reshape(-1, *self._ring.layout.shape[1:])
            self._rows = self._ring.reserve()
            self._rows[: len(steps)] = steps
            self._stamp = RolloutStamp(self.rollouts, FIRST_VERSION - lag, num_steps)
            if len(steps) > self._ring.layout.length:
                self._ring.commit(self._stamp)
                self.rollouts += 1
            else:
                self.step = len(steps)
