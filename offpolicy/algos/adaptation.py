"""HORA (arXiv:2210.04887): a teacher by APPO, then a student that learns the teacher's latent from its own history.

In the second stage (section 3.2) the student acts, so that it learns on the states that it visits (DAgger,
arXiv:1011.0686); for each of them the frozen encoder computes the true latent from what only the simulation knows. Only
the adaptation module learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from offpolicy.algos.appo import Appo, minibatches
from offpolicy.algos.learner import Absorb, MetricSums, Seeds
from offpolicy.algos.losses import masked_mean
from offpolicy.algos.optim import GuardedAdam, LearningRate, Loss, OptimizerStep
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.hora import PrivilegedEncoder, StudentActor, TeacherActor
from offpolicy.nets.normalizer import weighted_moments
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.protocols import Exchange
from offpolicy.types import HISTORY, OBS, PRIVILEGED, Rollouts, SpaceSpec

METRICS = {"step": ("latent_loss",), "rollout": ("latent_explained", "learning_rate")}
MIN_VARIANCE = 1e-8


class Teacher(Appo):
    """Stage 1: APPO, with an encoder of what only the simulation knows."""

    def make_policy(self, algo: AlgoConfig, spec: SpaceSpec) -> Policy:
        """Returns the teacher's policy."""
        return make_policy(algo, spec, TeacherActor)


class Adaptation:
    """Stage 2: mean squared error of the inferred latent, every transition once per epoch."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec, StudentActor).to(device)
            self._encoder = PrivilegedEncoder(algo, spec).to(device)
        assert isinstance(self.policy.actor, StudentActor)  # narrows the union
        self._module = self.policy.actor.adaptation
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._algo = algo
        self._lr = LearningRate(algo, device)
        parameters = dict(self._module.named_parameters())
        self._optimizer = GuardedAdam(parameters, self._lr.value, self.optimizer_step.guard)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "encoder": self._encoder}
        self.optimizers = {"optimizer": self._optimizer}
        self.absorbers: dict[str, Callable[[Tensor], None]] = {}
        if self.policy.normalizer is not None:
            # The teacher's statistics stay: the trunk and the encoder were trained with them.
            history = self.policy.normalizer.part(spec.columns(HISTORY))
            self.modules["history.normalizer"], self.absorbers[HISTORY] = history, history.absorb

    def learn(self, rollouts: Rollouts, absorb: Absorb) -> int:
        """Makes `epochs` passes over the transitions in `num_minibatches` shuffled parts each; returns the steps."""
        self._lr.follow_progress(rollouts.progress, rollouts.env_steps)
        raw, weight = rollouts.obs[:-1].flatten(0, 1), rollouts.is_valid.flatten()
        history, latent = self._prepare(raw)
        errors: list[Tensor] = []  # per minibatch, summed over its transitions
        for _ in range(self._algo.epochs):
            for index in minibatches(len(weight), self._algo.num_minibatches, self.generator):
                loss = self._step(history[index], latent[index], weight[index])
                errors.append(loss * weight[index].sum())
        first_epoch = torch.stack(errors[: self._algo.num_minibatches]).sum()
        self._measure(first_epoch / weight.sum().clamp(min=1.0), latent, weight)
        absorb(HISTORY, weighted_moments(raw[:, self._module.columns], weight))
        return self._algo.epochs * self._algo.num_minibatches

    @torch.no_grad()
    def _prepare(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Returns histories [M, F D] as the module sees them and the latents [M, L] to infer from them."""
        obs = self.policy.normalize(raw)
        return obs[:, self._module.columns].contiguous(), self._encoder.forward(obs)

    def _step(self, history: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
        """Makes one step down the loss; returns the loss [] before it."""
        loss = latent_loss(self._module.infer(history), latent, weight)
        self.metrics.add({"step": (loss.detach(),)})
        self.optimizer_step.minimize(Loss(loss, self._optimizer, self._algo.max_grad_norm))
        return loss.detach()

    @torch.no_grad()
    def _measure(self, error: Tensor, latent: Tensor, weight: Tensor) -> None:
        """Adds the explained share of the latent's variance; `error` [] is the first epoch's, before each step."""
        mean = (weight[:, None] * latent).sum(dim=0) / weight.sum().clamp(min=1.0)
        variance = latent_loss(mean.expand_as(latent), latent, weight).clamp(min=MIN_VARIANCE)
        self.metrics.add({"rollout": (1.0 - error / variance, self._lr.value)})


def latent_loss(inferred: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    """mean((e_hat - e)^2) over dimensions and over rows of weight 1. [M, L], [M, L], [M] -> []."""
    return masked_mean((inferred - latent).square().mean(dim=-1), weight)


@torch.no_grad()
def adopt_teacher(
    student: Mapping[str, Tensor], spec: SpaceSpec, teacher: Mapping[str, Tensor], teacher_spec: SpaceSpec
) -> None:
    """Copies the teacher's trunk, encoder and statistics into a student's live tensors, by their checkpoint names."""
    for name, tensor in student.items():
        if name.startswith("policy.actor.trunk."):
            tensor.copy_(teacher[name])
        elif name.startswith("encoder."):
            tensor.copy_(teacher[f"policy.actor.{name}"])
        elif name in ("policy.normalizer.mean", "policy.normalizer.var"):
            for group in (OBS, PRIVILEGED):
                tensor[spec.columns(group)] = teacher[name][teacher_spec.columns(group)].to(tensor.device)
