"""The two kinds of learner, from replayed rows and from rollouts that are used once, and what each one's rules use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from offpolicy.algos.base_learner import Algorithm, BaseLearner, Measured
from offpolicy.algos.losses import critic_error, critic_loss, critic_loss_gradient, polyak_update
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, is_replayed
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.constants import mean
from offpolicy.nets.critics import TwinCritic
from offpolicy.nets.flat import join
from offpolicy.nets.fusing import differentiable, fuse
from offpolicy.nets.grad_mode import no_grad
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import has_statistics
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, Batches, Rollouts

Network = TypeVar("Network", bound=nn.Module)


Update = Callable[[Batch, bool], None]  # a batch of raw observations, and whether the actor is updated too


class ReplayAlgorithm(Algorithm, Protocol):
    """An algorithm that learns from replayed rows."""

    def follow_schedules(self, env_steps: int) -> None:
        """Sets scheduled options to their values at an env step of the run."""
        ...

    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """Makes an update on a batch of normalised observations; returns the measured metrics, by group.

        The policy may change only with an actor step: after others it is not published again.
        """
        ...


class ReplayLearner(BaseLearner):
    """A `Learner` from replayed rows, whose every `policy_delay`-th update has an actor step."""

    def __init__(
        self, algorithm: ReplayAlgorithm, exchange: Exchange, average_every: int = 0, policy_delay: int = 1
    ) -> None:
        super().__init__(algorithm, exchange, average_every)
        self._algorithm: ReplayAlgorithm = algorithm
        self.policy_delay = policy_delay
        # A normaliser absorbs fresh rows in every iteration. Ranks average statistics in every update, and may round.
        are_averaged = has_statistics(self.policy) and exchange.num_ranks > 1
        self._changes_always = self.policy.normalizer is not None or are_averaged
        self.run_update: Update = self.update_once  # may be replaced by what does the same in other kernels

    @property
    def exchanges_gradients(self) -> bool:
        """True if every update waits for other ranks."""
        return self._algorithm.optimizer_step.exchange.num_ranks > 1

    def has_actor_step(self, num_updates: int) -> bool:
        """True if update number `num_updates`, from 1, updates the actor."""
        return num_updates % self.policy_delay == 0

    def update_once(self, raw: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        """Makes one update on a batch of raw observations."""
        self.count_metrics(self.update_tensors(raw, has_actor_step=has_actor_step))

    def update_tensors(self, raw: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        """Makes one update but for its counts; returns the groups of metrics to be counted.

        Reads and writes tensors at fixed places alone, and no number of the host, so that it can be recorded on a
        device and replayed, or compiled.
        """
        normalize = self.policy.normalize
        batch = raw._replace(obs=normalize(raw.obs), next_obs=normalize(raw.next_obs))
        measured = self._algorithm.update_once(batch, has_actor_step=has_actor_step)
        self._algorithm.metrics.add_to_sums(measured)
        return tuple(measured)

    def count_metrics(self, groups: Iterable[str]) -> None:
        """Counts what an update measured: the only thing that it changes on the host."""
        self._algorithm.metrics.count(groups)

    def update(self, batches: Batches, /) -> None:
        """Absorbs the fresh observations, then makes one gradient update per batch; never waits for the device."""
        if batches.fresh_obs is not None:
            self.queue_moments("obs", block_moments(batches.fresh_obs))
        if batches.fresh_returns is not None:
            self.queue_moments("returns", batches.fresh_returns)
        self.update_normalizers()
        self._algorithm.follow_schedules(batches.env_steps)
        actor_steps = self.num_updates // self.policy_delay
        for raw in batches.updates:
            self.num_updates += 1
            self.run_update(raw, self.has_actor_step(self.num_updates))
        if self._changes_always or self.num_updates // self.policy_delay > actor_steps:
            self.policy_changes += 1
        self.end_iteration()


class TargetNetwork(Generic[Network]):
    """A copy of a network that follows it by Polyak averaging and never takes part in a backward pass.

    Both lie in a block of memory each, so that one kernel call averages all of their parameters.
    """

    def __init__(
        self,
        source: Network,
        tau: float,
        parameters_of: Callable[[Network], Iterable[nn.Parameter]] = nn.Module.parameters,
    ) -> None:
        """`parameters_of` returns the parameters in the order in which an optimiser joins those of the source."""
        sources = tuple(parameters_of(source))
        self._source_block, self._first = join(sources), sources[0]
        self.module: Network = copy.deepcopy(source).requires_grad_(False)
        self._block = join(tuple(parameters_of(self.module)))
        self._tau = tau

    def follow(self) -> None:
        """Makes one Polyak step towards the source. Raises `RuntimeError` if its parameters have been moved since."""
        is_traced = torch.compiler.is_compiling()  # where addresses are unknown
        if not is_traced and self._first.data_ptr() != self._source_block.data_ptr():
            raise RuntimeError("the parameters have moved since their target network was made")
        polyak_update(self._block, self._source_block, self._tau)


def constant_view(network: Network) -> Network:
    """Returns the network as a module that shares its parameters and buffers, which autograd takes for constants.

    The parameters may not move to other memory afterwards.
    """
    shared: dict[int, Tensor] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters()}
    shared |= {id(buffer): buffer for buffer in network.buffers()}
    return copy.deepcopy(network, shared)


class CriticTrainer:
    """The twin critics, their targets and the one optimiser that holds both."""

    def __init__(self, algo: AlgoConfig, critic: TwinCritic, optimizer_step: OptimizerStep) -> None:
        self.online = critic
        self.target = TargetNetwork(critic, algo.tau, lambda twin: twin.parameters_by_layer().values())
        lr = algo.value(algo.critic_lr, 0)
        guard = optimizer_step.guard
        parameters, replayed = critic.parameters_by_layer(), is_replayed(algo, guard.flag.device)
        self.optimizer = GuardedAdam(parameters, lr, guard, is_replayed=replayed)
        gradients = self.optimizer.gradients
        fuse(critic, gradients, self.target.module, precision=algo.precision, products=algo.products)
        self._twin = differentiable((critic.first, critic.second), gradients, critic.fused)
        self._first = differentiable((critic.first,), gradients, critic.first.fused)
        self.networks = (self._twin, self._first)  # as they are differentiated
        self._optimizer_step = optimizer_step
        self._max_grad_norm = algo.max_grad_norm

    def target_q(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the target critics' values. [B, O], [B, A] -> [C, B]. Not between `q` and `pull_back`."""
        return self.target.module.forward(obs, action)

    def q(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the values, without a graph, and keeps what their gradient needs. [B, O], [B, A] -> [C, B]."""
        return self._twin.evaluate(obs, action).squeeze(-1)

    def pull_back(self, d_q: Tensor, action: Tensor) -> None:
        """Writes the gradients of the parameters from that of the values of the last `q`, at `action`. [C, B]."""
        # A column of a transposed row: for `d_q[..., None]` the product for the head's weights takes twice as long.
        self._twin.pull_back(d_q[:, None].mT)

    def action_gradient(self, d_q: Tensor) -> Tensor:
        """Returns the gradient by the action from that by the values of the last `q`. [C, B] -> [B, A]."""
        return self._twin.pull_back_to_input(d_q[..., None], self.online.obs_dim)

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """As `q`, of the first critic alone. -> [B]."""
        return self._first.evaluate(obs, action).view(-1)

    def action_gradient_of_q1(self, d_q1: Tensor) -> Tensor:
        """As `action_gradient`, for the last `q1`. [B] -> [B, A]."""
        return self._first.pull_back_to_input(d_q1[None, :, None], self.online.obs_dim)

    @no_grad
    def step(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Makes one update towards target_q [B]. Returns critic_loss, q_mean and target_q_mean, on the device."""
        q = self.q(batch.obs, batch.action)
        error = critic_error(q, target_q)
        loss = critic_loss(error)

        def write_gradient() -> None:
            self.pull_back(critic_loss_gradient(error), batch.action)

        self._optimizer_step.minimize(Loss(loss, self.optimizer, self._max_grad_norm, write_gradient))
        return loss, mean(q), mean(target_q)


# Gives the normaliser of that name the moments of fresh rows of this rank, with those of all ranks: at once, or where
# the ranks step by themselves, when they are next made equal.
Absorb = Callable[[str, Tensor], None]


class RolloutAlgorithm(Algorithm, Protocol):
    """An algorithm that learns from rollouts."""

    def learn(self, rollouts: Rollouts, absorb: Absorb) -> int:
        """Learns from rollouts of raw observations; returns the number of gradient steps.

        Passes the moments of what it has seen to `absorb`; those of observations after the last step. A normaliser
        of observations that moved between acting and learning would change every log-probability: ratios other than
        1 before the first step, and a KL that slams an adaptive step size to its floor.
        """
        ...


class RolloutLearner(BaseLearner):
    """A `Learner` from rollouts."""

    def __init__(self, algorithm: RolloutAlgorithm, exchange: Exchange, average_every: int = 0) -> None:
        super().__init__(algorithm, exchange, average_every)
        self._algorithm: RolloutAlgorithm = algorithm

    def update(self, rollouts: Rollouts, /) -> None:
        """Learns from one batch of rollouts; never waits for the device."""
        self.num_updates += self._algorithm.learn(rollouts, self._absorb)
        self.policy_changes += 1
        self.end_iteration()

    def _absorb(self, name: str, moments: Tensor) -> None:
        self.queue_moments(name, moments)
        self.update_normalizers()


def minibatches(num_rows: int, num_parts: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields all rows in a new order, in `num_parts` equal parts [num_rows / num_parts], on the generator's device."""
    yield from torch.randperm(num_rows, generator=generator, device=generator.device).chunk(num_parts)
