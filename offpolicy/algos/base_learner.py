"""The base of every learner: its state, its metrics, its normalisers, and what it shares with other ranks."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from offpolicy.algos.optim import GuardedAdam, OptimizerStep
from offpolicy.errors import CheckpointError
from offpolicy.nets.grad_mode import no_grad
from offpolicy.nets.normalizer import RunningMoments
from offpolicy.nets.policy import Policy
from offpolicy.protocols import Exchange
from offpolicy.types import MetricTotals


class LearnerState(NamedTuple):
    """A learner between two updates, complete: a restored learner continues bit for bit. No pickle needed."""

    tensors: dict[str, Tensor]  # on the CPU, by flat name
    numbers: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class TensorGroups:
    """The live tensors of an algorithm by their names in checkpoints, grouped by how ranks treat them."""

    networks: dict[str, Tensor]  # parameters and targets: averaged where ranks step by themselves
    normalizers: dict[str, Tensor]  # running statistics: every rank absorbs the rows of all
    optimizers: dict[str, Tensor]  # moments, step counts, step sizes: never averaged

    @classmethod
    def of(cls, modules: Mapping[str, nn.Module], optimizers: Mapping[str, GuardedAdam]) -> TensorGroups:
        """Parameters and buffers of modules as `<key>.<name>`, and `GuardedAdam.tensors` as `<key>.<name>`."""
        groups = cls({}, {}, {})
        for prefix, module in modules.items():
            for path, part in module.named_modules(prefix=prefix):
                group = groups.normalizers if isinstance(part, RunningMoments) else groups.networks
                own = itertools.chain(part.named_parameters(recurse=False), part.named_buffers(recurse=False))
                group.update((f"{path}.{name}", tensor) for name, tensor in own)
        for prefix, optimizer in optimizers.items():
            groups.optimizers.update((f"{prefix}.{name}", tensor) for name, tensor in optimizer.tensors().items())
        return groups

    def all(self) -> dict[str, Tensor]:
        """The tensors of all groups."""
        return self.networks | self.normalizers | self.optimizers


TEMPERATURE = "log_alpha"  # SAC's, among the networks because ranks average it with them
Measured = dict[str, tuple[Tensor, ...]]  # scalars, by the group of metrics that they are


class MetricSums:
    """Cumulative sums per metric, in float64, with the number of additions.

    Metrics come in groups that are measured together, such as those of a critic step and of a (delayed) actor step.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]], device: torch.device) -> None:
        self.names = tuple(name for names in groups.values() for name in names)
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self.counts = dict.fromkeys(groups, 0)
        self._sizes = {group: len(names) for group, names in groups.items()}
        self._group_sums = dict(zip(groups, torch.split(self.sums, list(self._sizes.values())), strict=True))

    def add(self, group: str, values: Sequence[Tensor]) -> None:
        """Adds one scalar per name of the group, in its order; no host synchronisation."""
        self.add_all({group: tuple(values)})

    def add_all(self, measured: Measured) -> None:
        """Adds what was measured together, by group: all groups at once cost as much as one."""
        self.add_to_sums(measured)
        self.count(measured)

    @no_grad
    def add_to_sums(self, measured: Measured) -> None:
        """As `add_all` on the device alone: an update that is replayed or compiled does not count."""
        if tuple(measured) == tuple(self._sizes):
            self.sums.add_(torch.stack([value for values in measured.values() for value in values]))
        else:
            for group, values in measured.items():
                self._group_sums[group].add_(torch.stack(values))

    def count(self, groups: Iterable[str]) -> None:
        """Counts one addition to each of the groups, on the host."""
        for group in groups:
            self.counts[group] += 1

    def totals(self) -> MetricTotals:
        """Returns the sums and counts so far, with one device-to-host copy."""
        counts = np.repeat(np.array(list(self.counts.values()), dtype=np.float64), list(self._sizes.values()))
        return MetricTotals(self.names, self.sums.cpu().numpy().copy(), counts)


class Absorbs(Protocol):
    """Running statistics, or what keeps them."""

    def absorb(self, moments: Tensor, /) -> None:
        """Adds the `moments` of a block of fresh rows."""
        ...

    def joined(self, first: Tensor, second: Tensor, /) -> Tensor:
        """Returns the moments of two blocks as those of one."""
        ...


class Algorithm(Protocol):
    """The update rule of an algorithm, as far as every learner uses it."""

    policy: Policy
    metrics: MetricSums
    optimizer_step: OptimizerStep
    generator: torch.Generator

    def tensor_groups(self) -> TensorGroups:
        """Returns the live tensors of networks, normalisers and optimisers."""
        ...

    def normalizers(self) -> Mapping[str, Absorbs]:
        """Returns the running statistics, by the names under which moments are queued for them."""
        ...


class BaseLearner(ABC):
    """The part of a `Learner` that does not depend on where its batches come from.

    `average_every` is 0 where the algorithm averages its gradients over the ranks before each step, so that the ranks
    never differ. Else every rank steps by itself and the networks are averaged every `average_every` iterations (local
    SGD, arXiv:1805.09767); each rank keeps its own optimiser moments.
    """

    def __init__(self, algorithm: Algorithm, exchange: Exchange, average_every: int = 0) -> None:
        self.policy = algorithm.policy
        self.num_updates = 0
        self.policy_changes = 0  # grows whenever the policy may have become another one
        self._algorithm, self._exchange, self._average_every = algorithm, exchange, average_every
        self._iterations_since = 0
        self._groups = algorithm.tensor_groups()
        self._tensors = {**self._groups.all(), "diverged": algorithm.optimizer_step.guard.flag}
        self._normalizers = dict(algorithm.normalizers())
        self._queued: dict[str, Tensor] = {}  # moments of rows that a normaliser has not absorbed, by its name

    @abstractmethod
    def update(self, batch: Any, /) -> None:  # Any: what the learner's batch source returns, Batches or Rollouts
        """Learns from what one iteration consumes; never waits for the device."""

    def queue_moments(self, name: str, moments: Tensor) -> None:
        """Keeps the `moments` of fresh rows for the normaliser `name`, if there is one, until it absorbs them."""
        if name in self._normalizers:
            before = self._queued.get(name)
            self._queued[name] = moments if before is None else self._normalizers[name].joined(before, moments)

    def update_normalizers(self) -> None:
        """Updates the normalisers with every rank's queued moments; with `average_every`, `settle` does that."""
        if not self._average_every:
            self._absorb_queued()

    def end_iteration(self) -> None:
        """Averages the networks over the ranks when `average_every` iterations have passed."""
        self._iterations_since += 1
        if self._average_every and self._iterations_since >= self._average_every:
            self.settle()

    def settle(self) -> None:
        """Makes the ranks' networks and statistics equal, where they may differ between two averagings; collective."""
        if self._average_every and self._iterations_since:
            self._exchange.average(tuple(self._groups.networks.values()))
            self._absorb_queued()
            self._iterations_since = 0
            self.policy_changes += 1

    def shared_tensors(self) -> dict[str, Tensor]:
        """Returns the live tensors that are equal on all ranks: after every update, or after `settle`."""
        return self._groups.networks | self._groups.normalizers if self._average_every else dict(self._tensors)

    def start_tensors(self) -> dict[str, Tensor]:
        """Returns the live tensors that every rank starts from: all of them."""
        return dict(self._tensors)

    def read_metrics(self) -> MetricTotals:
        """Returns the cumulative metrics. Waits for the device."""
        return self._algorithm.metrics.totals()

    def has_diverged(self) -> bool:
        """True if a loss or a gradient's norm was not finite; the parameters are those from before it.

        Waits for the device.
        """
        return self._algorithm.optimizer_step.guard.has_tripped()

    def is_origin(self) -> bool:
        """True if a loss or a gradient's norm of this rank itself was not finite. Waits for the device."""
        step = self._algorithm.optimizer_step
        return (step.origin if step.exchange.num_ranks > 1 else step.guard).has_tripped()

    @property
    def generator(self) -> torch.Generator:
        """The random numbers of the updates: each rank has its own."""
        return self._algorithm.generator

    def state(self) -> LearnerState:
        """Returns a copy of everything, on the CPU. Waits for the device."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._saved_tensors().items()}
        tensors["generator"] = self.generator.get_state()
        counts = {_count_name(group): count for group, count in self._algorithm.metrics.counts.items()}
        return LearnerState(tensors, {"num_updates": self.num_updates, **counts})

    def load_state(self, state: LearnerState) -> None:
        """Restores a saved state. Raises `CheckpointError` naming the first misfit, and then changes nothing."""
        self._check(state)
        with torch.no_grad():
            for name, tensor in self._saved_tensors().items():
                tensor.copy_(state.tensors[name])
        if state.tensors["generator"].shape == self.generator.get_state().shape:
            self.generator.set_state(state.tensors["generator"])  # else it is that of another kind of device
        counts = self._algorithm.metrics.counts
        counts.update({group: int(state.numbers[_count_name(group)]) for group in counts})
        self.num_updates = int(state.numbers["num_updates"])

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes networks and normalisers over from another learner's tensors, and leaves the rest as it is.

        Optimisers, counters and the temperature begin anew. Raises `CheckpointError` naming the first misfit, and then
        changes nothing.
        """
        own = {name: tensor for name, tensor in self._groups.networks.items() if name != TEMPERATURE}
        own |= self._groups.normalizers
        for name, tensor in own.items():
            _check_fit(name, tensor, tensors)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    def _saved_tensors(self) -> dict[str, Tensor]:
        return {**self._tensors, "metrics.sums": self._algorithm.metrics.sums}

    def _check(self, state: LearnerState) -> None:
        expected = {**self._saved_tensors(), "generator": self.generator.get_state()}
        for name, tensor in expected.items():
            _check_fit(name, tensor, state.tensors)
        for name in sorted(state.tensors.keys() - expected.keys()):
            raise CheckpointError(f"learner state has a tensor {name} that this learner does not know")
        for name in ("num_updates", *map(_count_name, self._algorithm.metrics.counts)):
            if name not in state.numbers:
                raise CheckpointError(f"learner state has no number {name}")

    def _absorb_queued(self) -> None:
        for name, moments in self._queued.items():
            blocks = self._exchange.gather(moments)
            self._algorithm.optimizer_step.guard.watch(blocks)  # a NaN of one rank is a NaN on all of them
            for block in blocks:
                self._normalizers[name].absorb(block)
        self._queued.clear()


def _check_fit(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Raises `CheckpointError` unless there is a saved tensor of this name, of the shape and dtype of `tensor`."""
    if name not in tensors:
        raise CheckpointError(f"learner state has no tensor {name}")
    got = tensors[name]
    if name != "generator" and (got.shape != tensor.shape or got.dtype != tensor.dtype):
        raise CheckpointError(
            f"learner state: {name} is {got.dtype} {tuple(got.shape)},"
            f" this learner needs {tensor.dtype} {tuple(tensor.shape)}"
        )
    if got.is_floating_point() and not torch.isfinite(got).all() and not name.startswith("metrics."):
        raise CheckpointError(f"learner state: {name} holds NaN or Inf, allowed finite numbers")


def _count_name(group: str) -> str:
    return f"metrics.{group}.count"


class Seeds:
    """Two independent streams of one seed: the initial weights and the random numbers of the updates."""

    def __init__(self, seed: int) -> None:
        weights, updates = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._weights, self._updates = int(weights), int(updates)

    @contextmanager
    def initial_weights(self) -> Iterator[None]:
        """Networks built on the CPU inside are a function of the seed; torch's global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._weights)
            yield

    def generator(self, device: torch.device) -> torch.Generator:
        """Returns the generator of the updates."""
        return torch.Generator(device).manual_seed(self._updates)
