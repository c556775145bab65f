"""The rate limiter: how many updates the collected transitions require, and how far each side may run ahead.

UTD counts transitions, never vector steps: update number u (from 0) is due once `start + (u + 1) / utd` transitions
exist. The three collection modes are one rule with different leads, in transitions:

    alternate   the collector stops at the transition the next update needs              lead 0
    overlap     it may collect one chunk more while the learner trains                   lead one chunk
    free        both may run ahead, the collector and the learner, by `band`             lead band, credit band

In the words of Reverb's `SampleToInsertRatio`, with updates for samples: `utd` is samples_per_insert, `start` is
min_size_to_sample, and `lead` and `credit` are the two sides of its error buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from offpolicy.config.algorithms import exact_utd
from offpolicy.config.schema import RunConfig

MAX_UPDATES_PER_ITERATION = 64  # bounds the rows gathered at once and the time until a stop request is seen


@dataclass(frozen=True, slots=True)
class LearningStart:
    """Where learning begins: the transitions before it require no update."""

    env_steps: int
    updates: int


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """Exact arithmetic of the UTD limiter, counted from `start` transitions and `start_updates` updates.

    It is that of whole numbers: a fraction takes ten times as long, several times in every iteration.
    """

    utd: Fraction
    start: int
    start_updates: int
    lead: int
    credit: int
    max_updates: int
    total: int
    chunk: int = 1  # transitions that an iteration needs

    @classmethod
    def of(cls, mode: str, utd: float, num_envs: int, *, band: int, start: LearningStart, total: int) -> RateLimiter:
        """Returns the limiter of a mode. A chunk is what an iteration needs: a vector step, or more if utd is low."""
        ratio = exact_utd(utd)
        chunk = max(num_envs, math.ceil(1 / ratio))
        return cls(
            utd=ratio,
            start=start.env_steps,
            start_updates=start.updates,
            lead={"alternate": 0, "overlap": chunk, "free": band}[mode],
            chunk=chunk,
            credit=band if mode == "free" else 0,
            max_updates=min(max(1, math.ceil(ratio * num_envs)), MAX_UPDATES_PER_ITERATION),
            total=total,
        )

    def taking_turns(self, *, takes_turns: bool) -> RateLimiter:
        """Returns the limiter of `alternate` if the sides take turns, else that of `overlap`."""
        return replace(self, lead=0 if takes_turns else self.chunk, credit=0)

    def needed(self, updates: int) -> int:
        """Returns the transitions that must exist before the next update, after `updates` of them."""
        num_updates, num_steps = self.utd.as_integer_ratio()
        return self.start - (-(updates - self.start_updates + 1) * num_steps // num_updates)

    def earliest(self, updates: int) -> int:
        """Returns `needed` less the credit by which the learner may run ahead, but not before the start of learning."""
        return max(self.needed(updates) - self.credit, self.start + 1)

    def due(self, env_steps: int, updates: int) -> int:
        """Returns the updates to do in one iteration now."""
        num_updates, num_steps = self.utd.as_integer_ratio()
        allowed = (max(env_steps - self.start, 0) + self.credit) * num_updates // num_steps
        return max(0, min(allowed - (updates - self.start_updates), self.max_updates))

    def debt(self, env_steps: int, updates: int) -> Fraction:
        """Returns the missing updates for `env_steps` transitions; negative when the learner is ahead."""
        return max(env_steps - self.start, 0) * self.utd - (updates - self.start_updates)

    def granted(self, updates: int) -> int:
        """Returns the transitions up to which the collectors may step."""
        return min(self.needed(updates) + self.lead, self.total)

    def is_spent(self, env_steps: int, updates: int) -> bool:
        """True if the budget of env steps is used up and every update it requires is done."""
        return env_steps >= self.total and self.debt(env_steps, updates) < 1


def make_rate_limiter(cfg: RunConfig, start: LearningStart, num_hosts: int) -> RateLimiter:
    """Returns the limiter of a configuration: all collectors of all hosts step as one vector."""
    return RateLimiter.of(
        cfg.collect_mode,
        cfg.algo.utd,
        cfg.env.num_envs * cfg.num_rings * num_hosts,
        band=cfg.collect.band,
        start=start,
        total=cfg.total_timesteps,
    )


def first_learning_step(cfg: RunConfig, num_hosts: int) -> int:
    """Returns the env steps before the first update: by then every ring can have its first n-step row, or rollout."""
    num_collectors = cfg.num_rings * num_hosts
    if cfg.algo.learns_from_rollouts:
        return cfg.rollout.length * cfg.env.num_envs * num_collectors
    return max(cfg.algo.learning_starts, cfg.algo.n_step * cfg.env.num_envs * num_collectors)
