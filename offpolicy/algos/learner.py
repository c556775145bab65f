"""What every learner offers to the loop, and how its state is saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from offpolicy.algos.metrics import MetricSums
from offpolicy.errors import CheckpointError
from offpolicy.nets.policy import Policy
from offpolicy.protocols import Batch_contra
from offpolicy.types import MetricTotals


class LearnerState(NamedTuple):
    """A learner between two updates, complete: a restored learner continues bit for bit. No pickle needed."""

    tensors: dict[str, Tensor]  # on the CPU, by flat name
    numbers: dict[str, int | float]


class Learner(Protocol[Batch_contra]):
    """Networks, their optimisers and their random numbers, on one device."""

    policy: Policy
    num_updates: int

    @property
    def generator(self) -> torch.Generator:
        """The random numbers of the updates: each rank has its own."""
        ...

    def update(self, batch: Batch_contra, /) -> None:
        """Learn from what one iteration consumes; never waits for the device."""
        ...

    def read_metrics(self) -> MetricTotals:
        """The cumulative metrics. Waits for the device."""
        ...

    def has_diverged(self) -> bool:
        """Whether a loss was not finite; the parameters are those from before it. Waits for the device."""
        ...

    def is_origin(self) -> bool:
        """Whether it was this rank's own loss. Waits for the device."""
        ...

    def settle(self) -> None:
        """Make the ranks' networks equal, where they may differ for a while; a collective."""
        ...

    def shared_tensors(self) -> Mapping[str, Tensor]:
        """The live tensors that are equal on all ranks: after every update, or after `settle`."""
        ...

    def start_tensors(self) -> Mapping[str, Tensor]:
        """The live tensors that every rank starts from: all of them."""
        ...

    def state(self) -> LearnerState:
        """A copy of everything. Waits for the device."""
        ...

    def load_state(self, state: LearnerState) -> None:
        """Become that learner. Raises `CheckpointError` naming the first misfit, and then changes nothing."""
        ...


class LiveState:
    """Every tensor of a learner by its flat name: saved by copying them out, restored by copying in place."""

    def __init__(self, tensors: Mapping[str, Tensor], metrics: MetricSums, generator: torch.Generator) -> None:
        self._tensors = {**tensors, "metrics.sums": metrics.sums}
        self._metrics = metrics
        self._generator = generator

    def save(self, num_updates: int) -> LearnerState:
        """Copy everything to the CPU."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tensors.items()}
        tensors["generator"] = self._generator.get_state()
        counts = {_count_name(group): count for group, count in self._metrics.counts.items()}
        return LearnerState(tensors, {"num_updates": num_updates, **counts})

    def load(self, state: LearnerState) -> int:
        """Take over a state and return its number of updates; raises `CheckpointError` before any change."""
        self._check(state)
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(state.tensors[name])
        if state.tensors["generator"].shape == self._generator.get_state().shape:
            self._generator.set_state(state.tensors["generator"])  # else it is that of another kind of device
        for group in self._metrics.counts:
            self._metrics.counts[group] = int(state.numbers[_count_name(group)])
        return int(state.numbers["num_updates"])

    def _check(self, state: LearnerState) -> None:
        expected = {**self._tensors, "generator": self._generator.get_state()}
        for name, tensor in expected.items():
            if name not in state.tensors:
                raise CheckpointError(f"learner state has no tensor {name}")
            got = state.tensors[name]
            if name != "generator" and (got.shape != tensor.shape or got.dtype != tensor.dtype):
                raise CheckpointError(
                    f"learner state: {name} is {got.dtype} {tuple(got.shape)},"
                    f" this learner needs {tensor.dtype} {tuple(tensor.shape)}"
                )
        for name in sorted(state.tensors.keys() - expected.keys()):
            raise CheckpointError(f"learner state has a tensor {name} that this learner does not know")
        for name in ("num_updates", *map(_count_name, self._metrics.counts)):
            if name not in state.numbers:
                raise CheckpointError(f"learner state has no number {name}")


def _count_name(group: str) -> str:
    return f"metrics.{group}.count"


def module_tensors(**modules: nn.Module) -> dict[str, Tensor]:
    """The live parameters and buffers of modules, by `<keyword>.<name>`."""
    return {
        f"{prefix}.{name}": tensor
        for prefix, module in modules.items()
        for name, tensor in module.state_dict(keep_vars=True).items()
    }
