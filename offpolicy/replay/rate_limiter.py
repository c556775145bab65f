"""The pace of a run: how many updates the collected transitions call for, and how far each side may run ahead.

UTD counts transitions, never vector steps: update number u (from 0) is due once `start + (u + 1) / utd` transitions
exist. The three collection modes are one rule with different leads, in transitions:

    alternate   the collector stops at the transition the next update needs              lead 0
    overlap     it may collect one chunk more while the learner trains                   lead one chunk
    free        both may run ahead, the collector and the learner, by `band`             lead band, credit band
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from offpolicy.config.schema import RunConfig

MAX_UPDATES_PER_ITERATION = 64  # bounds the rows gathered at once and the time until a stop request is seen


@dataclass(frozen=True, slots=True)
class LearningStart:
    """Where learning begins: no update is owed for the transitions before it."""

    env_steps: int
    updates: int


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """Exact arithmetic of the UTD limiter; `start` and `start_updates` are the anchor."""

    utd: Fraction
    start: int
    start_updates: int
    lead: int
    credit: int
    max_updates: int
    total: int

    @classmethod
    def of(cls, mode: str, utd: float, num_envs: int, *, band: int, anchor: LearningStart, total: int) -> RateLimiter:
        """The pace of a collection mode. A chunk is what one iteration needs: a vector step, or more if utd is low."""
        ratio = Fraction(utd).limit_denominator(10_000)
        chunk = max(num_envs, math.ceil(1 / ratio))
        return cls(
            utd=ratio,
            start=anchor.env_steps,
            start_updates=anchor.updates,
            lead={"alternate": 0, "overlap": chunk, "free": band}[mode],
            credit=band if mode == "free" else 0,
            max_updates=min(max(1, math.ceil(ratio * num_envs)), MAX_UPDATES_PER_ITERATION),
            total=total,
        )

    def needed(self, updates: int) -> int:
        """Transitions that must exist before the next update, `updates` having been done."""
        return self.start + math.ceil((updates - self.start_updates + 1) / self.utd)

    def earliest(self, updates: int) -> int:
        """As `needed`, less the credit by which the learner may run ahead; never before the start of learning."""
        return max(self.needed(updates) - self.credit, self.start + 1)

    def due(self, env_steps: int, updates: int) -> int:
        """Updates to do in one iteration now."""
        allowance = self.debt(env_steps, updates) + self.credit * self.utd
        return max(0, min(math.floor(allowance), self.max_updates))

    def debt(self, env_steps: int, updates: int) -> Fraction:
        """Updates owed for `env_steps` transitions; negative when the learner is ahead."""
        return max(env_steps - self.start, 0) * self.utd - (updates - self.start_updates)

    def granted(self, updates: int) -> int:
        """Transitions up to which the collector may step."""
        return min(self.needed(updates) + self.lead, self.total)

    def is_spent(self, env_steps: int, updates: int) -> bool:
        """Whether the budget of env steps is used up and every update they call for is done."""
        return env_steps >= self.total and self.debt(env_steps, updates) < 1


def make_rate_limiter(cfg: RunConfig, anchor: LearningStart, num_hosts: int) -> RateLimiter:
    """The pace of this configuration: all collectors of all hosts step as one vector."""
    return RateLimiter.of(
        cfg.collect_mode,
        cfg.algo.utd,
        cfg.env.num_envs * cfg.collect.num_collectors * num_hosts,
        band=cfg.collect.band,
        anchor=anchor,
        total=cfg.total_timesteps,
    )


def first_learning_step(cfg: RunConfig, num_hosts: int) -> int:
    """Env steps before the first update: never before every ring can have its first n-step row, or rollout."""
    num_collectors = cfg.collect.num_collectors * num_hosts
    if cfg.algo.learns_from_rollouts:
        return cfg.rollout.length * cfg.env.num_envs * num_collectors
    return max(cfg.algo.learning_starts, cfg.algo.n_step * cfg.env.num_envs * num_collectors)
