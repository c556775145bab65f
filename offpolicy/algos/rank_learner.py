"""What every learner does the same way: its books, its state, and what ranks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from offpolicy.algos.learner import LearnerState, LiveState
from offpolicy.algos.metrics import MetricSums
from offpolicy.algos.optim import OptimizerStep
from offpolicy.nets.normalizer import RunningMoments, joined_moments
from offpolicy.nets.policy import Policy
from offpolicy.protocols import Exchange
from offpolicy.types import MetricTotals


class Algorithm(Protocol):
    """One algorithm, as far as every learner asks."""

    policy: Policy
    metrics: MetricSums
    descent: OptimizerStep
    generator: torch.Generator

    def named_tensors(self) -> dict[str, Tensor]:
        """The live tensors of networks and optimisers by flat name."""
        ...

    def normalizers(self) -> Mapping[str, RunningMoments]:
        """Its running statistics, by the names under which their rows are shown."""
        ...


class RankLearner:
    """The part of a `Learner` that does not depend on where its batches come from.

    `average_every` is 0 where the rule averages its gradients over the ranks before each step, so that the ranks never
    differ. Else every rank steps by itself and the networks are averaged every `average_every` iterations (local SGD,
    arXiv:1805.09767); the optimisers' moments stay each rank's own.
    """

    def __init__(self, rule: Algorithm, exchange: Exchange, average_every: int = 0) -> None:
        self.policy = rule.policy
        self.num_updates = 0
        self._books, self._exchange, self._average_every = rule, exchange, average_every
        self._iterations_since = 0
        self._tensors = {**rule.named_tensors(), "diverged": rule.descent.guard.flag}
        self._live_state = LiveState(self._tensors, rule.metrics, rule.generator)
        self._normalizers = dict(rule.normalizers())
        self._pending: dict[str, Tensor] = {}  # moments of rows that a normaliser has not absorbed, by its name

    def show(self, name: str, moments: Tensor) -> None:
        """Keep the `moments` of fresh rows for the normaliser `name`, if there is one, until they are absorbed."""
        if name in self._normalizers:
            before = self._pending.get(name)
            self._pending[name] = moments if before is None else joined_moments(before, moments)

    def absorb_shown(self) -> None:
        """Let the normalisers see every rank's fresh rows, once; between averagings of the networks, wait for those."""
        if not self._average_every:
            self._absorb()

    def end_iteration(self) -> None:
        """Average the networks if it is time."""
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
        return self._books.metrics.totals()

    def has_diverged(self) -> bool:
        """Whether a loss was not finite; the parameters are those from before it. Waits for the device."""
        return self._books.descent.guard.has_tripped()

    def is_origin(self) -> bool:
        """Whether it was this rank's own loss. Waits for the device."""
        descent = self._books.descent
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
        return self._books.generator

    def _networks(self) -> dict[str, Tensor]:
        """Parameters and targets, without normalisers, optimiser state and flags."""
        return {
            name: tensor
            for name, tensor in self._tensors.items()
            if not name.partition(".")[0].endswith("optimizer") and ".normalizer." not in name and name != "diverged"
        }

    def _absorb(self) -> None:
        for name, moments in self._pending.items():
            blocks = self._exchange.gather(moments)
            self._books.descent.guard.watch(blocks)  # a NaN of one rank is a NaN on all of them
            for block in blocks:
                self._normalizers[name].absorb(block)
        self._pending.clear()
