"""HORA's teacher and student: the observation groups that each reads, and their common trunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.actors import CategoricalActor
from offpolicy.nets.hora import CHANNELS, AdaptationModule, PrivilegedEncoder, StudentActor, TeacherActor
from offpolicy.nets.policy import Policy, flat_size, flatten_into, load_flat, make_policy
from offpolicy.types import MIN_FRAMES, SpaceSpec

SHAPES: dict[str, tuple[int, ...]] = {"obs": (3,), "privileged": (4,), "proprio_hist": (25, 2)}


def spec_of(*keys: str, num_actions: int = 0) -> SpaceSpec:
    """Observations of these groups in this order."""
    action_dim = 1 if num_actions else 2
    return SpaceSpec(
        obs_dim=57,
        action_dim=action_dim,
        action_low=(-1.0,) * action_dim,
        action_high=(1.0,) * action_dim,
        obs_keys=keys,
        obs_shapes=tuple(SHAPES[key] for key in keys),
        num_actions=num_actions,
    )


SPEC = spec_of("obs", "privileged", "proprio_hist")
OTHER_ORDER = spec_of("proprio_hist", "obs", "privileged")
DISCRETE = spec_of("obs", "privileged", "proprio_hist", num_actions=5)
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


@pytest.mark.parametrize("network", [PrivilegedEncoder, AdaptationModule])
def test_a_latent_is_between_minus_one_and_one(network: type[PrivilegedEncoder | AdaptationModule]) -> None:
    torch.manual_seed(0)
    latent = network(algo_of("adapt"), SPEC)(1e3 * OBS).detach()
    assert latent.shape == (6, 5)
    assert 0.999 < float(latent.abs().max()) <= 1.0


@pytest.mark.parametrize(
    ("stage", "group", "matters"),
    [
        ("teach", "obs", True),
        ("teach", "privileged", True),
        ("teach", "proprio_hist", False),
        ("adapt", "obs", True),
        ("adapt", "privileged", False),
        ("adapt", "proprio_hist", True),
    ],
)
def test_a_stage_acts_on_its_own_groups_and_on_no_other(stage: str, group: str, matters: bool) -> None:
    policy = policy_of(stage)
    is_same = torch.isclose(policy.act(changed(group)), policy.act(OBS), rtol=0.0, atol=1e-7)
    assert bool(is_same.all(dim=-1).any()) != matters


def test_the_student_does_not_read_privileged_information() -> None:
    student = policy_of("adapt")
    assert torch.equal(student.act(changed("privileged", float("nan"))), student.act(OBS))


def test_the_teacher_does_not_read_the_history() -> None:
    teacher = policy_of("teach")
    assert torch.equal(teacher.act(changed("proprio_hist", float("nan"))), teacher.act(OBS))


@pytest.mark.parametrize("frame", range(25))
def test_the_student_sees_every_frame_from_the_oldest_on(frame: int) -> None:
    student = policy_of("adapt")
    assert isinstance(student.actor, StudentActor)
    obs = OBS.clone()
    obs[:, SPEC.columns("proprio_hist")].view(6, 25, 2)[:, frame] += 1.0
    difference = student.actor.adaptation(obs) - student.actor.adaptation(OBS)
    assert float(difference.detach().abs().amax(dim=-1).min()) > 1e-4  # of the row that it matters least for


def test_of_thirty_frames_the_newest_is_read_and_the_oldest_is_not() -> None:
    spec = SpaceSpec(60, 1, (-1.0,), (1.0,), ("proprio_hist",), ((30, 2),))
    torch.manual_seed(0)
    module = AdaptationModule(algo_of("adapt"), spec)
    history = torch.randn(1, 30, 2)
    before = module.infer(history.flatten(1))
    for frame, is_read in ((0, False), (1, True), (29, True)):
        other = history.clone()
        other[:, frame] += 1.0
        assert torch.equal(module.infer(other.flatten(1)), before) is not is_read, frame


def test_the_history_is_cut_into_frames_not_into_joints() -> None:
    torch.manual_seed(0)
    module = AdaptationModule(algo_of("adapt"), SPEC)
    history = OBS[:, SPEC.columns("proprio_hist")]
    seen: list[Tensor] = []
    module.per_frame.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module.infer(history)
    assert torch.equal(seen[0][:, 7], history[:, [14, 15]])


def test_forward_infers_from_the_columns_of_the_history() -> None:
    torch.manual_seed(0)
    module = AdaptationModule(algo_of("adapt"), SPEC)
    assert torch.equal(module(OBS), module.infer(OBS[:, 7:]))


@both
def test_groups_are_found_by_name_wherever_they_lie(stage: str) -> None:
    policy, other = policy_of(stage), policy_of(stage, OTHER_ORDER, seed=1)
    other.actor.load_state_dict(policy.actor.state_dict())
    assert policy.normalizer is not None
    assert other.normalizer is not None
    other.normalizer.mean.copy_(in_order_of(OTHER_ORDER, policy.normalizer.mean))
    other.normalizer.var.copy_(in_order_of(OTHER_ORDER, policy.normalizer.var))
    assert torch.allclose(other.act(in_order_of(OTHER_ORDER, OBS)), policy.act(OBS), rtol=0.0, atol=1e-7)


def test_the_student_explores_as_it_acts_and_draws_nothing() -> None:
    student, generator = policy_of("adapt"), torch.Generator().manual_seed(5)
    before = generator.get_state()
    action, log_prob = student.sample(OBS, generator)
    assert torch.equal(action, student.act(OBS))
    assert log_prob is not None
    assert log_prob.tolist() == [0.0] * 6
    assert torch.equal(generator.get_state(), before)


def test_the_teacher_returns_the_log_prob_of_its_action() -> None:
    teacher = policy_of("teach")
    action, log_prob = teacher.sample(OBS, torch.Generator().manual_seed(5))
    assert isinstance(teacher.actor, TeacherActor)
    assert log_prob is not None
    assert not torch.allclose(action, teacher.act(OBS), atol=0.1)
    assert torch.equal(log_prob, teacher.actor.distribution(teacher.normalize(OBS)).log_prob(action).detach())


@pytest.mark.parametrize("spec", [SPEC, DISCRETE], ids=["box", "discrete"])
def test_a_student_that_infers_the_true_latent_acts_as_the_teacher(
    spec: SpaceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, student = policy_of("teach", spec), policy_of("adapt", spec, seed=1)
    assert isinstance(teacher.actor, TeacherActor)
    assert isinstance(student.actor, StudentActor)
    student.actor.trunk.load_state_dict(teacher.actor.trunk.state_dict())
    assert spec.num_actions or not torch.equal(student.act(OBS), teacher.act(OBS))
    monkeypatch.setattr(student.actor.adaptation, "forward", teacher.actor.encoder.forward)
    assert torch.equal(student.act(OBS), teacher.act(OBS))


@both
def test_discrete_actions_are_chosen_by_a_categorical_trunk(stage: str) -> None:
    policy = policy_of(stage, DISCRETE)
    assert isinstance(policy.actor, TeacherActor | StudentActor)
    assert isinstance(policy.actor.trunk, CategoricalActor)
    assert policy.act(OBS).shape == (6, 1)
    assert set(policy.sample(OBS, torch.Generator())[0].flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0}


def test_the_teacher_s_gradient_reaches_encoder_and_trunk() -> None:
    actor = TeacherActor(algo_of("teach"), SPEC)
    actor.distribution(OBS).log_prob(torch.ones(6, 2)).sum().backward()
    still = [name for name, each in actor.named_parameters() if each.grad is None or not bool(each.grad.any())]
    assert still == []


def test_the_teacher_takes_rollouts_of_any_leading_dimensions() -> None:
    torch.manual_seed(0)
    actor = TeacherActor(algo_of("teach"), SPEC)
    rollout = actor.act(OBS.view(3, 2, 57))
    assert rollout.shape == (3, 2, 2)
    assert torch.allclose(rollout.view(6, 2), actor.act(OBS), rtol=0.0, atol=1e-7)


@both
def test_a_policy_loaded_from_the_block_acts_bit_for_bit_the_same(stage: str) -> None:
    source, copy = policy_of(stage), policy_of(stage, seed=1)
    assert not torch.equal(copy.act(OBS), source.act(OBS))
    flat = np.zeros(flat_size(source), dtype=np.float32)
    flatten_into(source, flat)
    load_flat(copy, flat)
    assert torch.equal(copy.act(OBS), source.act(OBS))


def adaptation_of(num_frames: int) -> AdaptationModule:
    spec = SpaceSpec(7 + 2 * num_frames, 1, (-1.0,), (1.0,), tuple(SHAPES), ((3,), (4,), (num_frames, 2)))
    return AdaptationModule(AlgoConfig(name="hora", stage="adapt"), spec)


def test_thirty_frames_become_three() -> None:
    assert adaptation_of(30).head.in_features == 3 * CHANNELS


@pytest.mark.parametrize("num_frames", range(MIN_FRAMES, 41))
def test_the_head_fits_the_frames_that_the_convolutions_leave(num_frames: int) -> None:
    assert adaptation_of(num_frames).infer(torch.zeros(1, 2 * num_frames)).shape == (1, 8)


def test_a_frame_less_than_the_fewest_is_refused_by_the_convolutions() -> None:
    with pytest.raises(RuntimeError, match="[Kk]ernel size"):
        adaptation_of(MIN_FRAMES).over_time(torch.zeros(1, CHANNELS, MIN_FRAMES - 1))
