from __future__ import annotations

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_policy
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import Policy, adopt_flat, adopt_statistics, flat_size, flatten_into, load_flat
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
DISCRETE = SpaceSpec(obs_dim=3, action_dim=1, action_low=(0.0,), action_high=(3.0,), num_actions=4)
SEVERAL = SpaceSpec(obs_dim=3, action_dim=2, action_low=(0.0, 0.0), action_high=(3.0, 1.0), nvec=(4, 2))
OBS = torch.linspace(-2.0, 2.0, 12).reshape(4, 3)


def policy_of(name: str, *, normalize_obs: bool = True, spec: SpaceSpec = SPEC) -> Policy:
    policy = make_policy(AlgoConfig(name=name, hidden_dims=(8,), normalize_obs=normalize_obs), spec)
    if policy.normalizer is not None:
        policy.normalizer.absorb(block_moments(1.0 / 3.0 + 2.0 * torch.randn(50, 3)))
    return policy


@pytest.mark.parametrize(
    ("name", "spec"), [("sac", SPEC), ("td3", SPEC), ("appo", SPEC), ("sac", DISCRETE), ("appo", SEVERAL)]
)
def test_a_policy_loaded_from_the_block_acts_bit_for_bit_the_same(name: str, spec: SpaceSpec) -> None:
    source, copy = policy_of(name, spec=spec), policy_of(name, spec=spec)
    flat = np.zeros(flat_size(source), dtype=np.float32)
    flatten_into(source, flat)
    load_flat(copy, flat)
    assert torch.equal(copy.act(OBS), source.act(OBS))
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    assert torch.equal(copy.sample(OBS, seeds[0])[0], source.sample(OBS, seeds[1])[0])


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_a_policy_acts_from_the_block_that_it_has_adopted(normalize_obs: bool) -> None:  # noqa: FBT001
    source, copy = (policy_of("td3", normalize_obs=normalize_obs) for _ in range(2))
    flat, own = np.zeros(flat_size(copy), dtype=np.float32), copy.act(OBS)
    adopt_flat(copy, flat)
    assert torch.equal(copy.act(OBS), own)
    flatten_into(source, flat)
    adopt_statistics(copy, flat)
    assert torch.equal(copy.act(OBS), source.act(OBS))
