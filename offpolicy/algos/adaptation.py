"""HORA's second stage (arXiv:2210.04887, section 3.2): a student learns the teacher's latent from its own history.

The student acts, so that it is taught on the states that it will meet (DAgger, arXiv:1011.0686); for every one of them
the frozen encoder, which sees what the simulation knows, says what the latent is. Only the adaptation module learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from offpolicy.algos.learner import module_tensors
from offpolicy.algos.losses import masked_mean
from offpolicy.algos.metrics import MetricSums
from offpolicy.algos.minibatches import minibatches
from offpolicy.algos.optim import GuardedAdam, Objective, OptimizerStep, optimizer_tensors
from offpolicy.algos.parts import Seeds
from offpolicy.algos.rollout_learner import UpdateResult
from offpolicy.algos.step_size import StepSize
from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.hora import PrivilegedEncoder, StudentActor
from offpolicy.nets.hora_shapes import HISTORY, OBS, PRIVILEGED
from offpolicy.nets.normalizer import RunningMoments, weighted_moments
from offpolicy.nets.policy import make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import Rollouts, SpaceSpec

METRICS = {"step": ("latent_loss",), "rollout": ("latent_explained", "learning_rate")}
MIN_VARIANCE = 1e-8


class Adaptation:
    """The rule of stage 2: mean squared error of the inferred latent, every transition once per epoch."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            self._encoder = PrivilegedEncoder(algo, spec).to(device)
        assert isinstance(self.policy.actor, StudentActor)  # true by algo.stage; narrows the union
        self._module = self.policy.actor.adaptation
        normalizer = self.policy.normalizer
        # The teacher's statistics stay: the trunk and the encoder were trained with them.
        self._history = None if normalizer is None else normalizer.part(spec.columns(HISTORY))
        self.metrics = MetricSums(METRICS, device)
        self.descent = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo = algo
        self._step_size = StepSize(algo, device)
        parameters = dict(self._module.named_parameters())
        self._optimizer = GuardedAdam(parameters, self._step_size.value, self.descent.guard)

    def learn(self, rollouts: Rollouts) -> UpdateResult:
        """`epochs` passes over the transitions in `num_minibatches` shuffled parts each."""
        self._step_size.follow_progress(rollouts.progress, rollouts.env_steps)
        raw, weight = rollouts.obs[:-1].flatten(0, 1), rollouts.is_valid.flatten()
        history, latent = self._prepare(raw)
        errors: list[Tensor] = []  # per minibatch, summed over its transitions
        for _ in range(self._algo.epochs):
            for index in minibatches(len(weight), self._algo.num_minibatches, self.generator):
                loss = self._step(history[index], latent[index], weight[index])
                errors.append(loss * weight[index].sum())
        first_epoch = torch.stack(errors[: self._algo.num_minibatches]).sum()
        self._measure(first_epoch / weight.sum().clamp(min=1.0), latent, weight)
        shown = weighted_moments(raw[:, self._module.columns], weight)
        return UpdateResult(self._algo.epochs * self._algo.num_minibatches, {HISTORY: shown})

    def named_tensors(self) -> dict[str, Tensor]:
        """The live tensors of networks and optimiser by flat name."""
        count = {} if self._history is None else {"history.normalizer.count": self._history.count}
        return {
            **module_tensors(policy=self.policy, encoder=self._encoder),
            **optimizer_tensors(optimizer=self._optimizer),
            **count,
            "optimizer.step_size": self._step_size.value,
        }

    def normalizers(self) -> Mapping[str, RunningMoments]:
        """That of the history, if observations are normalised."""
        return {} if self._history is None else {HISTORY: self._history}

    @torch.no_grad()
    def _prepare(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Histories [M, F D] as the module sees them and the latents [M, L] that they must give."""
        obs = self.policy.normalize(raw)
        return obs[:, self._module.columns].contiguous(), self._encoder.forward(obs)

    def _step(self, history: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
        """One step down the loss; returns the loss [] before it."""
        loss = latent_loss(self._module.infer(history), latent, weight)
        self.metrics.add("step", (loss.detach(),))
        self.descent.step(Objective(loss, self._optimizer, self._algo.max_grad_norm))
        return loss.detach()

    @torch.no_grad()
    def _measure(self, error: Tensor, latent: Tensor, weight: Tensor) -> None:
        """How much of the latent's variance was explained; `error` [] is that of rows not taught on before."""
        mean = (weight[:, None] * latent).sum(dim=0) / weight.sum().clamp(min=1.0)
        variance = latent_loss(mean.expand_as(latent), latent, weight).clamp(min=MIN_VARIANCE)
        self.metrics.add("rollout", (1.0 - error / variance, self._step_size.value))


def latent_loss(inferred: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    """mean((e_hat - e)^2) over dimensions and over rows of weight 1. [M, L], [M, L], [M] -> []."""
    return masked_mean((inferred - latent).square().mean(dim=-1), weight)


@torch.no_grad()
def adopt_teacher(
    student: Mapping[str, Tensor], spec: SpaceSpec, teacher: Mapping[str, Tensor], teacher_spec: SpaceSpec
) -> None:
    """Give a student's live tensors the teacher's trunk, encoder and statistics; both by the names of their learners.

    The specs tell where the groups of observations lie in each.
    """
    for name, tensor in student.items():
        source = _name_at_teacher(name)
        if source is not None:
            tensor.copy_(teacher[source])
    for name in _normalizer_vectors(student):
        for group in (OBS, PRIVILEGED):
            student[name][spec.columns(group)] = teacher[name][teacher_spec.columns(group)].to(student[name].device)


def _name_at_teacher(name: str) -> str | None:
    """What the teacher's learner calls a tensor that the student takes over whole; None for one of its own."""
    if name.startswith("encoder."):
        return f"policy.actor.{name}"
    return name if name.startswith("policy.actor.trunk.") else None


def _normalizer_vectors(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    names = ("policy.normalizer.mean", "policy.normalizer.var")
    return (name for name in names if name in tensors)
