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
    GroupActor,
    MultiCategoricalActor,
    ResidualActor,
    SoftmaxActor,
    SquashedGaussianActor,
    soft_actor,
    stochastic_actor,
)
from offpolicy.nets.encoders import with_encoder
from offpolicy.nets.flat import joined, offsets, views
from offpolicy.nets.hora import StudentActor, TeacherActor
from offpolicy.nets.normalizer import ObsNormalizer, RunningMoments
from offpolicy.nets.residual import statistics_of
from offpolicy.types import ACTOR_GROUPS, Float32, SpaceSpec

FromReplay = SquashedGaussianActor | SoftmaxActor | DeterministicActor
FromRollouts = GaussianActor | CategoricalActor | MultiCategoricalActor | GroupActor | TeacherActor | StudentActor
Actor = FromReplay | FromRollouts


class Policy(nn.Module):
    """An optional observation normaliser and an actor: raw observations in, actions in [-1, 1] or their numbers out."""

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

    @torch.no_grad()
    def act_with_noise(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Returns the action of a squashed Gaussian policy for unit noise [B, A]. [B, O] -> [B, A]."""
        assert isinstance(self.actor, SquashedGaussianActor)  # true by algo.name
        return self.actor.act_with_noise(self.normalize(obs), noise)

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
            return soft_actor(algo, spec)
        case PolicyKind.DETERMINISTIC:
            return DeterministicActor(*sizes, algo.value(algo.exploration_noise, 0))
        case PolicyKind.RESIDUAL:
            return ResidualActor(spec.obs_dim, spec.action_dim, algo.actor_width, algo.num_blocks)
        case PolicyKind.STOCHASTIC:
            group = ACTOR_GROUPS.get(algo.actor_input)
            return stochastic_actor(algo, spec, spec.obs_dim) if group is None else GroupActor(algo, spec, group)
        case PolicyKind.TEACHER:
            return TeacherActor(algo, spec)
        case PolicyKind.STUDENT:
            return StudentActor(algo, spec)


def make_policy(algo: AlgoConfig, spec: SpaceSpec) -> Policy:
    """Returns the policy of `algo` on the CPU, initialised from torch's global CPU generator."""
    normalizer = ObsNormalizer(spec.obs_dim) if algo.normalize_obs else None
    return Policy(with_encoder(algo, spec, lambda inner: make_actor(algo, inner)), normalizer)


def flat_size(policy: Policy) -> int:
    """Returns the length of the flat block."""
    return offsets(_shapes(policy))[-1]


def flatten_into(policy: Policy, out: Float32) -> None:
    """Writes everything `policy` needs to act into out [flat_size] float32, with one device-to-host copy.

    The block holds the actor's parameters, laid out as `nets/flat.py` joins them, then the statistics of its batch
    norms, if it has any, then the normaliser's mean and variance rounded to float32, which is how `ObsNormalizer` uses
    them: a policy loaded from the block acts bit for bit like this one. The normaliser's count is left out: only the
    learner, which updates the statistics, needs it.
    """
    if out.shape != (flat_size(policy),):
        raise ValueError(f"out has shape {out.shape}, expected ({flat_size(policy)},)")
    host, block = torch.from_numpy(out), joined(tuple(policy.actor.parameters()))
    tensors = _tensors(policy)
    if block is not None and not _statistics(policy):
        host.copy_(block)
    elif tensors[0].device.type == "cpu":
        torch._foreach_copy_(_pieces(policy, host), tensors)
    else:
        staged = torch.zeros(len(out), device=tensors[0].device)
        torch._foreach_copy_(_pieces(policy, staged), tensors)
        host.copy_(staged)


def flat_view(policy: Policy) -> Float32 | None:
    """Returns the flat block that the parameters themselves lie in; None where it has to be written.

    It does where an optimiser on the CPU has joined them, alone or before others, and there are no statistics.
    """
    block = joined(tuple(policy.actor.parameters()))
    if block is None or _statistics(policy) or block.device.type != "cpu":
        return None
    view: Float32 = block.numpy()
    return view


def adopt_flat(policy: Policy, flat: Float32) -> None:
    """Makes the policy act from the block [flat_size] on the CPU, now with its own weights, then with what is written.

    Nothing is loaded but the statistics, by `adopt_statistics`, when the block has changed.
    """
    flatten_into(policy, flat)
    parameters = tuple(policy.actor.parameters())
    for parameter, view in zip(parameters, views(torch.from_numpy(flat), _shapes(policy)), strict=False):
        parameter.data = view


def adopt_statistics(policy: Policy, flat: Float32) -> None:
    """Copies the statistics of batch norms and of the normaliser from the block, if there are any."""
    if statistics := _statistics(policy):
        torch._foreach_copy_(statistics, _pieces(policy, torch.from_numpy(flat))[-len(statistics) :])


def load_flat(policy: Policy, flat: Float32) -> None:
    """Loads the block [flat_size] written by `flatten_into`, with one host-to-device copy."""
    if flat.shape != (flat_size(policy),):
        raise ValueError(f"flat has shape {flat.shape}, expected ({flat_size(policy)},)")
    tensors = _tensors(policy)
    torch._foreach_copy_(tensors, _pieces(policy, torch.from_numpy(flat).to(tensors[0].device)))


def has_statistics(policy: Policy) -> bool:
    """True if a policy acts with statistics beside its parameters: of batch norms, or of the normaliser."""
    return bool(_statistics(policy))


def _statistics(policy: Policy) -> list[Tensor]:
    """Returns what a policy acts with beside its parameters: those of the actor's batch norms and of the normaliser."""
    statistics, normalizer = statistics_of(policy.actor), policy.normalizer
    return statistics if normalizer is None else [*statistics, normalizer.mean, normalizer.var]


def _tensors(policy: Policy) -> list[Tensor]:
    """Returns the tensors in the flat block, in its order."""
    return [*(parameter.detach() for parameter in policy.actor.parameters()), *_statistics(policy)]


def _shapes(policy: Policy) -> list[torch.Size]:
    """Returns the shapes of what lies in the flat block: mean and variance of the normaliser are one, [2, O]."""
    shapes = [tensor.shape for tensor in _tensors(policy)]
    return shapes if policy.normalizer is None else [*shapes[:-2], torch.Size((2, *shapes[-1]))]


def _pieces(policy: Policy, block: Tensor) -> list[Tensor]:
    """Returns views of the flat block, one for each of `_tensors`."""
    pieces = views(block, _shapes(policy))
    return list(pieces if policy.normalizer is None else (*pieces[:-1], *pieces[-1]))
