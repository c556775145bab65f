"""The policy as collectors, evaluation and export see it, and its transport as one flat float32 block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actors import Actor, DeterministicActor, Explored, SquashedGaussianActor
from offpolicy.nets.flat import joined, offsets, views
from offpolicy.nets.mlp import Columns, with_encoder
from offpolicy.nets.normalizer import ObsNormalizer
from offpolicy.types import Float32, SpaceSpec


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
        """Returns an exploratory action [B, A], with its log-probability [B] where the algorithm learns from it."""
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

    def absorbers(self) -> dict[str, Callable[[Tensor], None]]:
        """Returns what takes the moments of fresh observations, as `obs`, if they are normalised."""
        return {} if self.normalizer is None else {"obs": self.normalizer.absorb}


def make_policy(algo: AlgoConfig, spec: SpaceSpec, make_actor: Callable[[AlgoConfig, SpaceSpec], Actor]) -> Policy:
    """Returns a policy on the CPU, initialised from torch's global CPU generator.

    With `algo.actor_input` the actor takes its group from the whole observation, and its perceptron is as wide as the
    group (asymmetric actor-critic, arXiv:1710.06542).
    """
    normalizer = ObsNormalizer(spec.obs_dim) if algo.normalize_obs else None
    group = spec.actor_group(algo.actor_input)
    if group is None:
        return Policy(with_encoder(algo, spec, lambda inner: make_actor(algo, inner)), normalizer)
    columns = spec.columns(group)
    actor = make_actor(algo, replace(spec, obs_dim=columns.stop - columns.start))
    for body in actor.children():
        if isinstance(body, nn.Sequential):  # HORA's actors, which choose their groups, have none
            body.insert(0, Columns(columns))
            actor.parts_read = (group,)
    return Policy(actor, normalizer)


# The flat block holds the actor's parameters, laid out as `nets/flat.py` joins them, then its statistics: those of its
# batch norms, and the normaliser's mean and variance in float32, as `ObsNormalizer` uses them. A policy loaded from the
# block acts bit for bit like this one.


def flat_size(policy: Policy) -> int:
    """Returns the length of the flat block."""
    return offsets([tensor.shape for tensor in _tensors(policy)])[-1]


def flatten_into(policy: Policy, out: Float32) -> None:
    """Writes everything `policy` needs to act into out [flat_size] float32, with one device-to-host copy."""
    tensors = _tensors(policy)
    host, device = torch.from_numpy(out), tensors[0].device
    block = joined(tuple(policy.actor.parameters()))
    if block is not None and not statistics_of(policy):
        host.copy_(block)
        return
    staged = host if device.type == "cpu" else torch.zeros(len(out), device=device)
    torch._foreach_copy_(_views(policy, staged), tensors)
    if staged is not host:
        host.copy_(staged)


def flat_view(policy: Policy) -> Float32 | None:
    """Returns the flat block that the parameters lie in, joined by an optimiser on the CPU; None where they do not."""
    block = joined(tuple(policy.actor.parameters()))
    if block is None or statistics_of(policy) or block.device.type != "cpu":
        return None
    view: Float32 = block.numpy()
    return view


def adopt_flat(policy: Policy, flat: Float32) -> None:
    """Makes the policy act from the block [flat_size] on the CPU: from its own weights, then from what is written.

    Statistics are not seen there: `adopt_statistics` loads them.
    """
    flatten_into(policy, flat)
    views_of_all = _views(policy, torch.from_numpy(flat))
    for parameter, view in zip(policy.actor.parameters(), views_of_all, strict=False):
        parameter.data = view


def adopt_statistics(policy: Policy, flat: Float32) -> None:
    """Copies the statistics of batch norms and of the normaliser from the block, if there are any."""
    if statistics := statistics_of(policy):
        torch._foreach_copy_(statistics, _views(policy, torch.from_numpy(flat))[-len(statistics) :])


def load_flat(policy: Policy, flat: Float32) -> None:
    """Loads the block [flat_size] written by `flatten_into`, with one host-to-device copy."""
    tensors = _tensors(policy)
    torch._foreach_copy_(tensors, _views(policy, torch.from_numpy(flat).to(tensors[0].device)))


def statistics_of(policy: Policy) -> list[Tensor]:
    """Returns what a policy acts with beside its parameters: statistics of batch norms, and of the normaliser."""
    statistics, normalizer = list(policy.actor.buffers()), policy.normalizer
    return statistics if normalizer is None else [*statistics, normalizer.mean, normalizer.var]


def _tensors(policy: Policy) -> list[Tensor]:
    """Returns the tensors in the flat block, in its order."""
    return [*(parameter.detach() for parameter in policy.actor.parameters()), *statistics_of(policy)]


def _views(policy: Policy, block: Tensor) -> list[Tensor]:
    """Returns views of the flat block, one for each of `_tensors`. Raises `ValueError` for one of another size."""
    if len(block) != flat_size(policy):
        raise ValueError(f"the flat block has shape {tuple(block.shape)}, expected ({flat_size(policy)},)")
    return list(views(block, [tensor.shape for tensor in _tensors(policy)]))
