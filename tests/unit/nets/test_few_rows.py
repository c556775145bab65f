"""Actions of few rows in numpy are those of the policy in torch, with the same draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.few_rows import MAX_ROWS, FewRows, can_act
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))


def policy_of(name: str = "sac", *, normalize_obs: bool = False, activation: str = "relu") -> Policy:
    torch.manual_seed(1)
    algo = AlgoConfig(name=name, hidden_dims=(32, 24), normalize_obs=normalize_obs, activation=activation)
    policy = make_policy(algo, SPEC)
    if policy.normalizer is not None:
        policy.normalizer.absorb(block_moments(1.0 + 2.0 * torch.randn(50, 3)))
    return policy


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("rows", [1, 4, MAX_ROWS])
def test_actions_are_those_of_torch(name: str, activation: str, normalize_obs: bool, rows: int) -> None:  # noqa: FBT001
    policy = policy_of(name, normalize_obs=normalize_obs, activation=activation)
    few_rows, generators = FewRows(policy, rows, 2), [torch.Generator().manual_seed(5) for _ in range(2)]
    for seed in range(5):
        obs = 3.0 * np.random.default_rng(seed).standard_normal((rows, 3), np.float32)
        ours = few_rows.explore(obs, generators[0])
        theirs, _ = policy.sample(torch.from_numpy(obs), generators[1])
        assert (ours.dtype, ours.shape) == (np.float32, (rows, 2))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0.0, atol=2e-6)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_weights_that_change_are_acted_with_at_once() -> None:
    policy = policy_of("td3")
    few_rows, obs = FewRows(policy, 1, 2), np.ones((1, 3), np.float32)
    policy.explore_with(0.0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    expected = policy.act(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(few_rows.explore(obs, torch.Generator()), expected, rtol=0.0, atol=2e-6)


def test_a_log_std_beyond_its_bounds_is_clamped() -> None:
    policy = policy_of()
    with torch.no_grad():
        policy.actor.body[-1].bias[2:] = torch.tensor([50.0, -50.0])  # type: ignore[union-attr, index]
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    ours = FewRows(policy, 4, 2).explore(np.zeros((4, 3), np.float32), generators[0])
    theirs, _ = policy.sample(torch.zeros(4, 3), generators[1])
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0.0, atol=2e-6)


def test_more_rows_and_other_actors_are_left_to_torch() -> None:
    assert can_act(policy_of(), 1)
    assert not can_act(policy_of(), MAX_ROWS + 1)
    assert not can_act(policy_of(activation="silu"), 1)
    assert not can_act(make_policy(AlgoConfig(name="appo"), SPEC), 1)
