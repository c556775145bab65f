"""The learner of the algorithms that learn from replayed rows: it feeds an update rule and keeps its books."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from offpolicy.algos.learner import LearnerState, LiveState
from offpolicy.algos.metrics import MetricSums
from offpolicy.algos.optim import DivergenceGuard
from offpolicy.nets.policy import Policy
from offpolicy.types import Batch, Batches, MetricTotals


class UpdateRule(Protocol):
    """One algorithm: its networks, and what one gradient update does to them."""

    policy: Policy
    metrics: MetricSums
    guard: DivergenceGuard
    generator: torch.Generator

    def update_once(self, batch: Batch, num_updates: int) -> None:
        """The update number `num_updates` (from 1), on a batch of normalised observations."""
        ...

    def named_tensors(self) -> dict[str, Tensor]:
        """The live tensors of networks and optimisers by flat name."""
        ...


class ReplayLearner:
    """A `Learner` around an update rule."""

    def __init__(self, rule: UpdateRule) -> None:
        self.policy = rule.policy
        self.num_updates = 0
        self._rule = rule
        self._live_state = LiveState(
            {**rule.named_tensors(), "diverged": rule.guard.flag}, rule.metrics, rule.generator
        )

    def update(self, batches: Batches) -> None:
        """Absorb the fresh observations, then make one gradient update per batch; never waits for the device."""
        if batches.fresh_obs is not None:
            self._absorb(batches.fresh_obs)
        for batch in batches.updates:
            self.num_updates += 1
            self._rule.update_once(self._normalized(batch), self.num_updates)

    def read_metrics(self) -> MetricTotals:
        """The cumulative metrics. Waits for the device."""
        return self._rule.metrics.totals()

    def has_diverged(self) -> bool:
        """Whether a loss was not finite; the parameters are those from before it. Waits for the device."""
        return self._rule.guard.has_tripped()

    def state(self) -> LearnerState:
        """A copy of everything. Waits for the device."""
        return self._live_state.save(self.num_updates)

    def load_state(self, state: LearnerState) -> None:
        """Become that learner. Raises `CheckpointError` naming the first misfit, and then changes nothing."""
        self.num_updates = self._live_state.load(state)

    def _absorb(self, fresh_obs: Tensor) -> None:
        """Show every observation to the normaliser once; the statistics then rest until the next iteration."""
        if self.policy.normalizer is not None:
            self._rule.guard.watch(fresh_obs)
            self.policy.normalizer.update(fresh_obs)

    def _normalized(self, batch: Batch) -> Batch:
        """The batch as the networks see it."""
        if self.policy.normalizer is None:
            return batch
        return batch._replace(obs=self.policy.normalize(batch.obs), next_obs=self.policy.normalize(batch.next_obs))
