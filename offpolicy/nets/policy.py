"""The policy as collectors, evaluation and export see it, and its transport as one flat float32 block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offpolicy.config.sections import AlgoConfig, PolicyKind
from offpolicy.nets.actors import (
    CategoricalActor,
    DeterministicActor,
    Explored,
    GaussianActor,
    SquashedGaussianActor,
    stochastic_actor,
)
from offpolicy.nets.hora import StudentActor, TeacherActor
from offpolicy.nets.normalizer import ObsNormalizer, RunningMoments
from offpolicy.types import Float32, SpaceSpec

Actor = SquashedGaussianActor | DeterministicActor | GaussianActor | CategoricalActor | TeacherActor | StudentActor


class Policy(nn.Module):
    """An optional observation normaliser and an actor: raw observations in, actions in [-1, 1] out."""

    def __init__(self, actor: Actor, normalizer: ObsNormalizer | None) -> None:
        super().__init__()
        self.actor = actor
        self.normalizer = normalizer

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Returns the deterministic action. [B, O] -> [B, A]."""
        return self.actor.act(self.normalize(obs))

    @torch.no_grad()
    def sample(self, obs: Tensor, generator: torch.Generator) -> Explored:
        """Returns an exploratory action, with its log-probability [B] where the algorithm learns from it, else None.

        `generator` lives on the policy's device. [B, O] -> [B, A].
        """
        return self.actor.explore(self.normalize(obs), generator)

    def explore_with(self, noise: float) -> None:
        """Sets the standard deviation of the exploration noise, where the actor is deterministic."""
        if isinstance(self.actor, DeterministicActor):
            self.actor.exploration_noise = noise

    def normalize(self, obs: Tensor) -> Tensor:
        """Returns raw observations as the networks see them. [B, O] -> [B, O]."""
        return obs if self.normalizer is None else self.normalizer.forward(obs)

    def named_normalizers(self) -> dict[str, RunningMoments]:
        """Returns the observation normaliser as `obs`, if there is one."""
        return {} if self.normalizer is None else {"obs": self.normalizer}


def make_actor(algo: AlgoConfig, spec: SpaceSpec) -> Actor:
    """Returns the actor of `algo` on the CPU, initialised from torch's global CPU generator."""
    sizes = (spec.obs_dim, spec.action_dim, algo.hidden_dims, algo.activation)
    match algo.info.policy:
        case PolicyKind.SQUASHED_GAUSSIAN:
            return SquashedGaussianActor(*sizes)
        case PolicyKind.DETERMINISTIC:
            return DeterministicActor(*sizes, algo.value(algo.exploration_noise, 0))
        case PolicyKind.STOCHASTIC:
            return stochastic_actor(algo, spec, spec.obs_dim)
        case PolicyKind.TEACHER:
            return TeacherActor(algo, spec)
        case PolicyKind.STUDENT:
            return StudentActor(algo, spec)


def make_policy(algo: AlgoConfig, spec: SpaceSpec) -> Policy:
    """Returns the policy of `algo` on the CPU, initialised from torch's global CPU generator."""
    normalizer = ObsNormalizer(spec.obs_dim) if algo.normalize_obs else None
    return Policy(make_actor(algo, spec), normalizer)


def flat_size(policy: Policy) -> int:
    """Returns the length of the flat block."""
    return sum(tensor.numel() for tensor in _acting_tensors(policy))


def flatten_into(policy: Policy, out: Float32) -> None:
    """Writes everything `policy` needs to act into out [flat_size] float32, with one device-to-host copy.

    The block holds the actor's parameters, then the normaliser's mean and variance rounded to float32, which is how
    `ObsNormalizer` uses them: a policy loaded from the block acts bit for bit like this one. The normaliser's count
    is left out: only the learner, which updates the statistics, needs it.
    """
    if out.shape != (flat_size(policy),):
        raise ValueError(f"out has shape {out.shape}, expected ({flat_size(policy)},)")
    blocks = [tensor.reshape(-1).float() for tensor in _acting_tensors(policy)]
    host = torch.from_numpy(out)
    if blocks[0].device.type == "cpu":
        torch.cat(blocks, out=host)
    else:
        host.copy_(torch.cat(blocks))


def load_flat(policy: Policy, flat: Float32) -> None:
    """Loads the block [flat_size] written by `flatten_into`, with one host-to-device copy."""
    tensors = _acting_tensors(policy)
    if flat.shape != (flat_size(policy),):
        raise ValueError(f"flat has shape {flat.shape}, expected ({flat_size(policy)},)")
    block = torch.from_numpy(flat).to(tensors[0].device)
    pieces = torch.split(block, [tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)])


def _acting_tensors(policy: Policy) -> list[Tensor]:
    """Returns the tensors of the flat block, in its order."""
    tensors = [parameter.detach() for parameter in policy.actor.parameters()]
    return tensors if policy.normalizer is None else [*tensors, policy.normalizer.mean, policy.normalizer.var]
