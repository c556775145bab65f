"""The learner of the algorithms that learn from replayed rows: it feeds an update rule and keeps its books."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from offpolicy.algos.learner import LearnerState, LiveState
from offpolicy.algos.metrics import MetricSums
from offpolicy.algos.optim import Descent
from offpolicy.nets.normalizer import block_moments, joined_moments
from offpolicy.nets.policy import Policy
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, Batches, MetricTotals


class UpdateRule(Protocol):
    """One algorithm: its networks, and what one gradient update does to them."""

    policy: Policy
    metrics: MetricSums
    descent: Descent
    generator: torch.Generator

    def update_once(self, batch: Batch, num_updates: int) -> None:
        """The update number `num_updates` (from 1), on a batch of normalised observations."""
        ...

    def named_tensors(self) -> dict[str, Tensor]:
        """The live tensors of networks and optimisers by flat name."""
        ...


class ReplayLearner:
    """A `Learner` around an update rule.

    `average_every` is 0 where the rule averages its gradients over the ranks before each step, so that the ranks never
    differ. Else every rank steps by itself and the networks are averaged every `average_every` iterations (local SGD,
    arXiv:1805.09767); the optimisers' moments stay each rank's own.
    """

    def __init__(self, rule: UpdateRule, exchange: Exchange, average_every: int = 0) -> None:
        self.policy = rule.policy
        self.num_updates = 0
        self._rule, self._exchange, self._average_every = rule, exchange, average_every
        self._iterations_since = 0
        self._tensors = {**rule.named_tensors(), "diverged": rule.descent.guard.flag}
        self._live_state = LiveState(self._tensors, rule.metrics, rule.generator)
        self._pending: Tensor | None = None  # moments of observations that the normaliser has not absorbed

    def update(self, batches: Batches) -> None:
        """Absorb the fresh observations, then make one gradient update per batch; never waits for the device."""
        if batches.fresh_obs is not None:
            block = block_moments(batches.fresh_obs)
            self._pending = block if self._pending is None else joined_moments(self._pending, block)
        if not self._average_every:
            self._absorb()
        for batch in batches.updates:
            self.num_updates += 1
            self._rule.update_once(self._normalized(batch), self.num_updates)
        self._iterations_since += 1
        if self._average_every and self._iterations_since >= self._average_every:
            self.settle()

    def settle(self) -> None:
        """Make the ranks' networks and statistics equal, where they may differ between two averagings."""
        if self._average_every and self._iterations_since:
            self._exchange.average(tuple(self._networks().values()))
            self._absorb()
            self._iterations_since = 0

    def shared_tensors(self) -> dict[str, Tensor]:
        """The live tensors that are equal on all ranks: after every update, or after `settle`."""
        if self._average_every:
            statistics = {name: tensor for name, tensor in self._tensors.items() if ".normalizer." in name}
            return self._networks() | statistics
        return dict(self._tensors)

    def start_tensors(self) -> dict[str, Tensor]:
        """The live tensors that every rank starts from: all of them."""
        return dict(self._tensors)

    def read_metrics(self) -> MetricTotals:
        """The cumulative metrics. Waits for the device."""
        return self._rule.metrics.totals()

    def has_diverged(self) -> bool:
        """Whether a loss was not finite; the parameters are those from before it. Waits for the device."""
        return self._rule.descent.guard.has_tripped()

    def is_origin(self) -> bool:
        """Whether it was this rank's own loss. Waits for the device."""
        descent = self._rule.descent
        return (descent.origin if descent.exchange.num_ranks > 1 else descent.guard).has_tripped()

    def state(self) -> LearnerState:
        """A copy of everything. Waits for the device."""
        return self._live_state.save(self.num_updates)

    def load_state(self, state: LearnerState) -> None:
        """Become that learner. Raises `CheckpointError` naming the first misfit, and then changes nothing."""
        self.num_updates = self._live_state.load(state)

    @property
    def generator(self) -> torch.Generator:
        """The random numbers of the updates: each rank has its own."""
        return self._rule.generator

    def _networks(self) -> dict[str, Tensor]:
        """Parameters and targets, without normaliser, optimiser moments and flags."""
        return {
            name: tensor
            for name, tensor in self._tensors.items()
            if not name.partition(".")[0].endswith("optimizer") and ".normalizer." not in name and name != "diverged"
        }

    def _absorb(self) -> None:
        """Show every rank's fresh observations to the normaliser once; the statistics then rest for the iteration."""
        if self.policy.normalizer is None or self._pending is None:
            return
        blocks = self._exchange.gather(self._pending)
        self._rule.descent.guard.watch(blocks)  # a NaN of one rank is a NaN on all of them
        for block in blocks:
            self.policy.normalizer.absorb(block)
        self._pending = None

    def _normalized(self, batch: Batch) -> Batch:
        """The batch as the networks see it."""
        if self.policy.normalizer is None:
            return batch
        return batch._replace(obs=self.policy.normalize(batch.obs), next_obs=self.policy.normalize(batch.next_obs))
