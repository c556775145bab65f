"""The learner: an update rule with its state, its metrics and its normalisers, from replayed rows or from rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from offpolicy.algos.optim import GuardedAdam, OptimizerStep
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.errors import CheckpointError
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import Policy, statistics_of
from offpolicy.types import Batch, Batches, MetricTotals, Rollouts

TEMPERATURE = "log_alpha"  # SAC's, as checkpoints name it
Measured = dict[str, tuple[Tensor, ...]]  # scalars, by the group of metrics that they are
Update = Callable[[Batch, bool], None]  # a batch of raw observations, and whether the actor is updated too


class LearnerState(NamedTuple):
    """A learner between two updates, complete: a restored learner continues bit for bit. No pickle needed."""

    tensors: dict[str, Tensor]  # on the CPU, by flat name
    numbers: dict[str, int | float]


class MetricSums:
    """Cumulative sums per metric, in float64, and the additions per group: of a critic step, of an actor step."""

    def __init__(self, groups: Mapping[str, Sequence[str]], device: torch.device) -> None:
        self.names = tuple(name for names in groups.values() for name in names)
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self.counts = dict.fromkeys(groups, 0)
        self._sizes = {group: len(names) for group, names in groups.items()}
        self._group_sums = dict(zip(groups, torch.split(self.sums, list(self._sizes.values())), strict=True))

    def add(self, measured: Measured) -> None:
        """Adds one scalar per name of each group, in its order; no host synchronisation."""
        self.add_to_sums(measured)
        self.count(measured)

    @torch.no_grad()
    def add_to_sums(self, measured: Measured) -> None:
        """As `add` on the device alone: an update that is captured as a graph does not count."""
        if tuple(measured) == tuple(self._sizes):  # all groups at once cost as much as one
            self.sums.add_(torch.stack([value for values in measured.values() for value in values]))
            return
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


class Rule(Protocol):
    """The update rule of an algorithm, as far as every learner uses it."""

    policy: Policy
    modules: dict[str, nn.Module]  # networks and normalisers, by their names in checkpoints
    optimizers: dict[str, GuardedAdam]  # likewise
    absorbers: dict[str, Callable[[Tensor], None]]  # take the `moments` of fresh rows, by the normaliser's name
    metrics: MetricSums
    optimizer_step: OptimizerStep
    generator: torch.Generator


class ReplayRule(Rule, Protocol):
    """An update rule that learns from replayed rows."""

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        ...

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """Makes an update on a batch of normalised observations; returns the measured metrics, by group.

        The policy may change only with an actor step: after others it is not published again.
        """
        ...


Absorb = Callable[[str, Tensor], None]  # the name of a normaliser, and the moments of fresh rows of this rank


class RolloutRule(Rule, Protocol):
    """An update rule that learns from rollouts that are used once."""

    def learn(self, rollouts: Rollouts, absorb: Absorb) -> int:
        """Learns from rollouts of raw observations; returns the number of gradient steps.

        Passes the moments of what it has seen to `absorb`, those of observations after the last step: if their
        normaliser moved between acting and learning, ratios would not be 1 before the first step.
        """
        ...


class Learner:
    """Learns by a rule, and holds everything that a checkpoint needs of it; never waits for the device to learn."""

    def __init__(self, rule: ReplayRule | RolloutRule, algo: AlgoConfig) -> None:
        self.rule, self.policy, self.generator = rule, rule.policy, rule.generator
        self.num_updates = 0
        self.policy_changes = 0  # grows whenever the policy may have become another one
        self.policy_delay = algo.policy_delay  # every so many updates of replayed rows one has an actor step
        self.kernels, self.why_textbook = "textbook", ""  # or fast; why not, where the algorithm has fast kernels
        self.run_update: Update = self.update_once  # a CUDA graph may take its place
        self._has_schedules, self._is_rounded = bool(algo.ramps), algo.precision == "bf16"
        self._step = rule.optimizer_step
        self._of_modules = dict[str, Tensor]()
        for prefix, module in rule.modules.items():
            self._of_modules.update(module.named_parameters(prefix))
            self._of_modules.update(module.named_buffers(prefix))
        self._tensors = {**self._of_modules, "diverged": self._step.guard.flag}
        for prefix, optimizer in rule.optimizers.items():
            self._tensors.update((f"{prefix}.{name}", tensor) for name, tensor in optimizer.tensors().items())
        # A normaliser absorbs fresh rows in every iteration. Ranks average statistics in every update, and may round.
        are_averaged = bool(statistics_of(self.policy)) and self.num_ranks > 1
        self._changes_always = self.policy.normalizer is not None or are_averaged

    @property
    def num_ranks(self) -> int:
        """Learner ranks that average their gradients within every update."""
        return self._step.exchange.num_ranks

    def update(self, batch: Batches | Rollouts, /) -> None:
        """Learns from what one iteration consumes."""
        if isinstance(batch, Rollouts):
            self.num_updates += cast(RolloutRule, self.rule).learn(batch, self.absorb)
            self.policy_changes += 1
            return
        if batch.fresh_obs is not None:
            self.absorb("obs", block_moments(batch.fresh_obs))
        if batch.fresh_returns is not None:
            self.absorb("returns", batch.fresh_returns)
        if self._has_schedules:
            cast(ReplayRule, self.rule).follow_schedules(batch.env_steps)
        actor_steps = self.num_updates // self.policy_delay
        for raw in batch.updates:
            self.num_updates += 1
            self.run_update(raw, self.has_actor_step(self.num_updates))
        if self._changes_always or self.num_updates // self.policy_delay > actor_steps:
            self.policy_changes += 1

    def has_actor_step(self, num_updates: int) -> bool:
        """True if update number `num_updates`, from 1, updates the actor."""
        return num_updates % self.policy_delay == 0

    def update_once(self, raw: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        """Makes one update on a batch of raw observations."""
        self.rule.metrics.count(self.update_tensors(raw, has_actor_step=has_actor_step))

    def update_tensors(self, raw: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        """Makes one update but for its counts; returns the groups of metrics to be counted.

        Reads and writes tensors at fixed places alone, and no number of the host: it can be captured as a CUDA graph.
        """
        normalize = self.policy.normalize
        batch = raw._replace(obs=normalize(raw.obs), next_obs=normalize(raw.next_obs))
        # No cache of rounded weights: it would outlive the optimiser's step between the critics and the actor.
        with torch.autocast("cuda", torch.bfloat16, enabled=self._is_rounded, cache_enabled=False):
            measured = cast(ReplayRule, self.rule).update_once(batch, has_actor_step=has_actor_step)
        self.rule.metrics.add_to_sums(measured)
        return tuple(measured)

    def absorb(self, name: str, moments: Tensor) -> None:
        """Gives the normaliser of that name, if there is one, the moments of every rank's fresh rows; collective."""
        if name not in self.rule.absorbers:
            return
        blocks = self._step.exchange.gather(moments)
        self._step.guard.watch(blocks)  # a NaN of one rank is a NaN on all of them
        for block in blocks:
            self.rule.absorbers[name](block)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the live tensors, which are equal on all ranks at the start and after every update."""
        return dict(self._tensors)

    def read_metrics(self) -> MetricTotals:
        """Returns the cumulative metrics. Waits for the device."""
        return self.rule.metrics.totals()

    def has_diverged(self) -> bool:
        """True if a loss or gradient was not finite; the parameters are from before it. Waits for the device."""
        return self._step.guard.has_tripped()

    def is_origin(self) -> bool:
        """True if a loss or a gradient's norm of this rank itself was not finite. Waits for the device."""
        return (self._step.origin if self.num_ranks > 1 else self._step.guard).has_tripped()

    def state(self) -> LearnerState:
        """Returns a copy of everything, on the CPU. Waits for the device."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._saved_tensors().items()}
        tensors["generator"] = self.generator.get_state()
        counts = {_count_name(group): count for group, count in self.rule.metrics.counts.items()}
        return LearnerState(tensors, {"num_updates": self.num_updates, **counts})

    def load_state(self, state: LearnerState) -> None:
        """Restores a saved state. Raises `CheckpointError` naming the first misfit, and then changes nothing."""
        self._check(state)
        with torch.no_grad():
            for name, tensor in self._saved_tensors().items():
                tensor.copy_(state.tensors[name])
        if state.tensors["generator"].shape == self.generator.get_state().shape:
            self.generator.set_state(state.tensors["generator"])  # else it is that of another kind of device
        counts = self.rule.metrics.counts
        counts.update({group: int(state.numbers[_count_name(group)]) for group in counts})
        self.num_updates = int(state.numbers["num_updates"])

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes networks and normalisers over from another learner's tensors, and leaves the rest as it is.

        Optimisers, counters and the temperature begin again. Raises `CheckpointError` naming the first misfit, and then
        changes nothing.
        """
        own = {name: tensor for name, tensor in self._of_modules.items() if name != TEMPERATURE}
        for name, tensor in own.items():
            _check_fit(name, tensor, tensors)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    def _saved_tensors(self) -> dict[str, Tensor]:
        return {**self._tensors, "metrics.sums": self.rule.metrics.sums}

    def _check(self, state: LearnerState) -> None:
        expected = {**self._saved_tensors(), "generator": self.generator.get_state()}
        for name, tensor in expected.items():
            _check_fit(name, tensor, state.tensors)
        for name in sorted(state.tensors.keys() - expected.keys()):
            raise CheckpointError(f"learner state has a tensor {name} that this learner does not know")
        for name in ("num_updates", *map(_count_name, self.rule.metrics.counts)):
            if name not in state.numbers:
                raise CheckpointError(f"learner state has no number {name}")


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
