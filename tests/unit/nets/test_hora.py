"""HORA's teacher and student: the observation groups that each reads, and their common trunk."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from offpolicy.algos.registry import make_policy
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.hora import StudentActor
from offpolicy.nets.policy import Policy
from offpolicy.types import SpaceSpec

SHAPES: dict[str, tuple[int, ...]] = {"obs": (3,), "privileged": (4,), "proprio_hist": (25, 2)}


def spec_of(*keys: str, num_actions: int = 0) -> SpaceSpec:
    """Observations of these groups in this order."""
    action_dim = 1 if num_actions else 2
    return SpaceSpec(
        obs_dim=57, action_dim=action_dim, action_low=(-1.0,) * action_dim, action_high=(1.0,) * action_dim,
        obs_keys=keys, obs_shapes=tuple(SHAPES[key] for key in keys), num_actions=num_actions,
    )  # fmt: skip


SPEC = spec_of("obs", "privileged", "proprio_hist")
OTHER_ORDER = spec_of("proprio_hist", "obs", "privileged")
OBS = torch.randn(6, 57, generator=torch.Generator().manual_seed(3))

both = pytest.mark.parametrize("stage", ["teach", "adapt"])


def algo_of(stage: str) -> AlgoConfig:
    return AlgoConfig(name="hora", stage=stage, hidden_dims=(16,), encoder_dims=(12,), latent_dim=5, normalize_obs=True)


def policy_of(stage: str, spec: SpaceSpec = SPEC, seed: int = 0) -> Policy:
    """A policy whose normaliser has seen something, and something else in every dimension of `SPEC`."""
    torch.manual_seed(seed)
    policy = make_policy(algo_of(stage), spec)
    assert policy.normalizer is not None
    policy.normalizer.mean.copy_(torch.linspace(-0.5, 0.5, 57))
    policy.normalizer.var.copy_(torch.linspace(0.5, 2.0, 57))
    return policy


def changed(group: str, by: float = 1.0) -> Tensor:
    """The observations, with a group of them changed."""
    obs = OBS.clone()
    obs[:, SPEC.columns(group)] += by
    return obs


def in_order_of(spec: SpaceSpec, vector: Tensor) -> Tensor:
    """A vector [..., all] of `SPEC` with its groups in another order."""
    return torch.cat([vector[..., SPEC.columns(key)] for key in spec.obs_keys], dim=-1)


def test_a_stage_acts_on_its_own_groups_and_on_no_other() -> None:
    for stage, read in (("teach", ("obs", "privileged")), ("adapt", ("obs", "proprio_hist"))):
        policy = policy_of(stage)
        for group in SHAPES:
            is_same = torch.isclose(policy.act(changed(group)), policy.act(OBS), rtol=0.0, atol=1e-7)
            assert bool(is_same.all(dim=-1).any()) != (group in read)


def test_the_student_sees_every_frame_from_the_oldest_on() -> None:
    student = policy_of("adapt")
    assert isinstance(student.actor, StudentActor)
    for frame in range(25):
        obs = OBS.clone()
        obs[:, SPEC.columns("proprio_hist")].view(6, 25, 2)[:, frame] += 1.0
        difference = student.actor.adaptation(obs) - student.actor.adaptation(OBS)
        assert float(difference.detach().abs().amax(dim=-1).min()) > 1e-4  # of the row that it matters least for


@both
def test_groups_are_found_by_name_wherever_they_lie(stage: str) -> None:
    policy, other = policy_of(stage), policy_of(stage, OTHER_ORDER, seed=1)
    other.actor.load_state_dict(policy.actor.state_dict())
    assert policy.normalizer is not None
    assert other.normalizer is not None
    other.normalizer.mean.copy_(in_order_of(OTHER_ORDER, policy.normalizer.mean))
    other.normalizer.var.copy_(in_order_of(OTHER_ORDER, policy.normalizer.var))
    assert torch.allclose(other.act(in_order_of(OTHER_ORDER, OBS)), policy.act(OBS), rtol=0.0, atol=1e-7)
