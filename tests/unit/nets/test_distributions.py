"""Both distributions against those of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from offpolicy.nets import distributions
from offpolicy.nets.distributions import Categorical, DiagonalGaussian, PolicyDistribution


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gaussian(seed: int = 0) -> DiagonalGaussian:
    """Of [4, 5] states and 3 action dimensions."""
    return DiagonalGaussian(normal(seed, 4, 5, 3), 0.5 * normal(seed + 1, 4, 5, 3))


def categorical(seed: int = 0) -> Categorical:
    """Of [4, 5] states and 3 actions."""
    return Categorical((2.0 * normal(seed, 4, 5, 3)).log_softmax(dim=-1), (3,))


def several(seed: int = 0) -> Categorical:
    """Of [4, 5] states, and choices among 3 and among 2 actions."""
    parts = [(2.0 * normal(seed + part, 4, 5, count)).log_softmax(dim=-1) for part, count in enumerate((3, 2))]
    return Categorical(torch.cat(parts, dim=-1), (3, 2))


def alone(policy: Categorical) -> tuple[Categorical, Categorical]:
    """Each choice of `several`."""
    return Categorical(policy.log_probs[..., :3], (3,)), Categorical(policy.log_probs[..., 3:], (2,))


def test_several_choices_are_independent() -> None:
    policy, other = several(), several(10)
    (first, second), theirs = alone(policy), alone(other)
    action = draws(policy)
    assert torch.equal(policy.log_prob(action), first.log_prob(action[..., :1]) + second.log_prob(action[..., 1:]))
    assert torch.allclose(policy.entropy(), first.entropy() + second.entropy(), atol=1e-6)
    kl = sum(distributions.kl_divergence(own, their) for own, their in zip((first, second), theirs, strict=True))
    assert torch.allclose(distributions.kl_divergence(policy, other), torch.as_tensor(kl), atol=1e-5)
    picked = policy.flat().rows(torch.tensor([7, 1]))
    assert torch.equal(picked.log_probs, policy.log_probs.reshape(20, 5)[[7, 1]])
    assert torch.equal(picked.entropy(), policy.entropy().flatten()[[7, 1]])


def of_torch(policy: PolicyDistribution) -> torch.distributions.Distribution:
    if isinstance(policy, DiagonalGaussian):
        return Independent(Normal(policy.mean, policy.log_std.exp()), 1)
    return TorchCategorical(logits=policy.log_probs)


def as_torch_takes_it(policy: PolicyDistribution, action: Tensor) -> Tensor:
    return action if isinstance(policy, DiagonalGaussian) else action.squeeze(-1)


def draws(policy: PolicyDistribution, seed: int = 3) -> Tensor:
    return policy.sample(torch.Generator().manual_seed(seed))


Make = Callable[..., PolicyDistribution]
both = pytest.mark.parametrize("make", [gaussian, categorical])


@both
def test_log_prob_is_that_of_torch(make: Make) -> None:
    policy = make()
    action = draws(policy)
    expected = of_torch(policy).log_prob(as_torch_takes_it(policy, action))
    assert torch.allclose(policy.log_prob(action), expected, atol=1e-5)


@both
def test_entropy_is_that_of_torch(make: Make) -> None:
    assert torch.allclose(make().entropy(), of_torch(make()).entropy(), atol=1e-5)


@both
def test_kl_is_that_of_torch_in_the_same_direction(make: Make) -> None:
    old, new = make(0), make(10)
    kl = distributions.kl_divergence(old, new)
    assert torch.allclose(kl, kl_divergence(of_torch(old), of_torch(new)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(kl, distributions.kl_divergence(new, old), atol=0.1)
