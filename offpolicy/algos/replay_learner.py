"""The learner of the algorithms that learn from replayed rows: it feeds an update rule."""

from __future__ import annotations

from typing import Protocol

from offpolicy.algos.rank_learner import Algorithm, RankLearner
from offpolicy.nets.normalizer import block_moments
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, Batches


class UpdateRule(Algorithm, Protocol):
    """One algorithm: its networks, and what one gradient update does to them."""

    def follow(self, env_steps: int) -> None:
        """Take what is scheduled as it is at an env step of the run."""
        ...

    def update_once(self, batch: Batch, num_updates: int) -> None:
        """The update number `num_updates` (from 1), on a batch of normalised observations."""
        ...


class ReplayLearner(RankLearner):
    """A `Learner` around an update rule."""

    def __init__(self, rule: UpdateRule, exchange: Exchange, average_every: int = 0) -> None:
        super().__init__(rule, exchange, average_every)
        self._rule = rule

    def update(self, batches: Batches) -> None:
        """Absorb the fresh observations, then make one gradient update per batch; never waits for the device."""
        if batches.fresh_obs is not None:
            self.show("obs", block_moments(batches.fresh_obs))
        self.absorb_shown()
        self._rule.follow(batches.env_steps)
        for batch in batches.updates:
            self.num_updates += 1
            self._rule.update_once(self._normalized(batch), self.num_updates)
        self.end_iteration()

    def _normalized(self, batch: Batch) -> Batch:
        """The batch as the networks see it."""
        if self.policy.normalizer is None:
            return batch
        return batch._replace(obs=self.policy.normalize(batch.obs), next_obs=self.policy.normalize(batch.next_obs))
