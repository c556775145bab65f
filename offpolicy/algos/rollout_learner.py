"""The learner of the algorithms that learn from rollouts, each used once: it feeds a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from offpolicy.algos.rank_learner import Algorithm, RankLearner
from offpolicy.protocols import Exchange
from offpolicy.types import Rollouts


class UpdateResult(NamedTuple):
    """What came of one batch of rollouts."""

    num_updates: int  # gradient steps made
    moments: Mapping[str, Tensor]  # of the rows that the normalisers have not seen, by their names


class RolloutRule(Algorithm, Protocol):
    """One algorithm: its networks, and what a batch of rollouts does to them."""

    def learn(self, rollouts: Rollouts) -> UpdateResult:
        """Learn from rollouts of raw observations. The normalisers stay as they are: they scaled what was acted on."""
        ...


class RolloutLearner(RankLearner):
    """A `Learner` around a rule that learns from rollouts."""

    def __init__(self, rule: RolloutRule, exchange: Exchange, average_every: int = 0) -> None:
        super().__init__(rule, exchange, average_every)
        self._rule = rule

    def update(self, rollouts: Rollouts) -> None:
        """Learn, and only then let the normalisers move.

        A normaliser that moved between acting and learning would change every log-probability: ratios other than 1
        before the first step, and a KL that slams an adaptive step size to its floor.
        """
        lesson = self._rule.learn(rollouts)
        self.num_updates += lesson.num_updates
        for name, moments in lesson.moments.items():
            self.show(name, moments)
        self.absorb_shown()
        self.end_iteration()
