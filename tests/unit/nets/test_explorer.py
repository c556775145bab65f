"""Exploratory actions are those of the policy's modules, with the same draws."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import DeterministicActor, SquashedGaussianActor
from offpolicy.nets.explorer import MAX_ROWS, Explorer, can_explore, multiplies_in_numpy
from offpolicy.nets.mlp import mlp
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import Policy, make_policy
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))


def policy_of(
    name: str = "sac", *, normalize_obs: bool = False, activation: str = "relu", width: int | None = None
) -> Policy:
    torch.manual_seed(1)
    algo = AlgoConfig(
        name=name, hidden_dims=(width, width) if width else (32, 24), normalize_obs=normalize_obs, activation=activation
    )
    policy = make_policy(algo, SPEC)
    if policy.normalizer is not None:
        policy.normalizer.absorb(block_moments(1.0 + 2.0 * torch.randn(50, 3)))
    return policy


def body_of(policy: Policy) -> nn.Sequential:
    assert isinstance(policy.actor, SquashedGaussianActor | DeterministicActor)
    return policy.actor.body


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("rows", [1, 4, MAX_ROWS, MAX_ROWS + 1, 64])
def test_actions_are_those_of_torch(name: str, activation: str, normalize_obs: bool, rows: int) -> None:  # noqa: FBT001
    policy = policy_of(name, normalize_obs=normalize_obs, activation=activation)
    explorer, generators = Explorer(policy, rows, 2), [torch.Generator().manual_seed(5) for _ in range(2)]
    for seed in range(5):
        obs = 3.0 * np.random.default_rng(seed).standard_normal((rows, 3), np.float32)
        ours = explorer.explore(obs, generators[0])
        theirs, _ = policy.sample(torch.from_numpy(obs), generators[1])
        assert (ours.dtype, ours.shape) == (np.float32, (rows, 2))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0.0, atol=2e-6)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


@pytest.mark.parametrize(("width", "rows"), [(128, MAX_ROWS), (256, 4), (512, 1)], ids=str)
def test_the_largest_products_are_those_of_torch_and_take_one_thread(width: int, rows: int) -> None:
    policy = policy_of(width=width)
    explorer, generators = Explorer(policy, rows, 2), [torch.Generator().manual_seed(5) for _ in range(2)]
    assert multiplies_in_numpy(body_of(policy), rows)
    obs = np.random.default_rng(0).standard_normal((rows, 3), np.float32)
    theirs, _ = policy.sample(torch.from_numpy(obs), generators[1])
    np.testing.assert_allclose(explorer.explore(obs, generators[0]), theirs.numpy(), rtol=0.0, atol=2e-6)
    all_ns, own_ns = time.process_time_ns(), time.thread_time_ns()
    for _ in range(1000):
        explorer.explore(obs, generators[0])
    all_ns, own_ns = time.process_time_ns() - all_ns, time.thread_time_ns() - own_ns
    assert all_ns <= 1.2 * own_ns


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("rows", [2, 16])
def test_a_bad_observation_gives_no_warning(bad: float, normalize_obs: bool, rows: int) -> None:  # noqa: FBT001
    policy = policy_of(normalize_obs=normalize_obs)
    obs = np.full((rows, 3), bad, np.float32)
    action = Explorer(policy, rows, 2).explore(obs, torch.Generator().manual_seed(5))
    theirs, _ = policy.sample(torch.from_numpy(obs), torch.Generator().manual_seed(5))
    np.testing.assert_allclose(action, theirs.numpy(), rtol=0.0, atol=2e-6)


def test_weights_that_change_are_acted_with_at_once() -> None:
    policy = policy_of("td3")
    explorer, obs = Explorer(policy, 1, 2), np.ones((1, 3), np.float32)
    policy.explore_with(0.0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    expected = policy.act(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(explorer.explore(obs, torch.Generator()), expected, rtol=0.0, atol=2e-6)


def test_a_log_std_beyond_its_bounds_is_clamped() -> None:
    policy = policy_of()
    with torch.no_grad():
        policy.actor.body[-1].bias[2:] = torch.tensor([50.0, -50.0])  # type: ignore[union-attr, index]
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    ours = Explorer(policy, 4, 2).explore(np.zeros((4, 3), np.float32), generators[0])
    theirs, _ = policy.sample(torch.zeros(4, 3), generators[1])
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0.0, atol=2e-6)


def test_numpy_multiplies_small_products_alone() -> None:
    assert multiplies_in_numpy(body_of(policy_of()), 1)
    assert not multiplies_in_numpy(body_of(policy_of()), MAX_ROWS + 1)
    assert not multiplies_in_numpy(body_of(policy_of(activation="silu")), 1)
    for width, rows in ((256, 4), (512, 1)):
        body = body_of(policy_of(width=width))
        assert (multiplies_in_numpy(body, rows), multiplies_in_numpy(body, rows + 1)) == (True, False)
    assert not multiplies_in_numpy(body_of(policy_of(width=1024)), 1)


def test_other_actors_are_left_to_their_modules() -> None:
    assert can_explore(policy_of())
    assert not can_explore(make_policy(AlgoConfig(name="appo"), SPEC))
    actor = DeterministicActor(3, 2, (32, 24), "relu", 0.1)
    actor.body = mlp(3, (32, 24), 2, "relu", layer_norm=True)
    assert not can_explore(Policy(actor, None))


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("rows", [4, 16])
def test_an_action_is_not_overwritten_by_the_next_one(name: str, rows: int) -> None:
    explorer, generator = Explorer(policy_of(name), rows, 2), torch.Generator().manual_seed(5)
    first = explorer.explore(np.zeros((rows, 3), np.float32), generator)
    kept = first.copy()
    explorer.explore(np.ones((rows, 3), np.float32), generator)
    np.testing.assert_array_equal(first, kept)
