"""Transitions that hold NaN or Inf: dropped and counted, up to `env.max_bad_rows`; their environments are reset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offpolicy.collect.collector import Progress
from offpolicy.collect.episodes import EpisodeTracker
from offpolicy.collect.replay_writer import BadRowError, Writer
from offpolicy.envs.vector import VectorAdapter
from offpolicy.errors import NumericsError
from offpolicy.seeding import env_seed
from offpolicy.types import Float32, StepOutcome


@dataclass(slots=True)
class BadRows:
    """The bad transitions of a collector since its start. `number` counts the collectors of all hosts."""

    limit: int
    seed: int
    number: int
    env: VectorAdapter
    writer: Writer
    tracker: EpisodeTracker
    warn: Callable[[str], None]
    count: int = 0

    def drop(self, error: BadRowError, outcome: StepOutcome, progress: Progress) -> StepOutcome:
        """Resets the environments of bad transitions, or all that can only be reset together; returns the other rows.

        Raises `NumericsError` beyond the limit, and where an episode begins with NaN or Inf.
        """
        self.count += len(error.envs)
        step = int(self.tracker.ep_length[error.envs[0]])
        text = f"{error} at env step {progress.env_steps}, episode step {step}, seed {self.seed}"
        if self.count > self.limit:
            raise NumericsError(text) from None
        self.warn(f"{text}; dropped, {self.count} of env.max_bad_rows={self.limit}")
        where = np.zeros(self.env.num_envs, np.bool_)
        where[list(error.envs) if self.env.can_reset_some else slice(None)] = True
        seed = env_seed(self.seed, "bad_row", self.number, progress.env_steps, progress.vector_steps)
        numbers = range(self.env.num_envs)
        obs = self.env.reset_some(seed, numbers, where) if self.env.can_reset_some else self.env.reset(seed)
        obs = np.where(where[:, None], obs, outcome.next_obs)
        self.require_finite(obs)
        self.tracker.ep_return[where], self.tracker.ep_length[where] = 0.0, 0
        self.writer.abandon(np.flatnonzero(where).tolist())
        return outcome._replace(
            next_obs=obs,
            terminated=outcome.terminated & ~where,
            truncated=outcome.truncated & ~where,
            is_valid=outcome.is_valid & ~where,
        )

    def require_finite(self, obs: Float32) -> None:
        """Raises `NumericsError` for an episode that begins with NaN or Inf. obs: [N, O]."""
        if len(bad := np.flatnonzero(~np.isfinite(obs).all(axis=1))):
            raise NumericsError(f"NaN or Inf in the first observation of environment {bad[0]}, seed {self.seed}")
