"""HORA's second stage: updates of the student from rollouts, and the parts that it copies from its teacher."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offpolicy.algos.adaptation import adopt_teacher, latent_loss
from offpolicy.algos.appo import minibatches
from offpolicy.algos.learner import Learner
from offpolicy.types import Rollouts, SpaceSpec
from tests.unit.algos.conftest import LearnerOf, RolloutsOf, assert_equal

SHAPES: dict[str, tuple[int, ...]] = {"obs": (3,), "privileged": (2,), "proprio_hist": (25, 2)}
NUM_VALID = 30  # of 8 steps of 4 environments


def spec_of(*keys: str, num_actions: int = 0) -> SpaceSpec:
    """Observations of these groups in this order."""
    shapes = tuple(SHAPES[key] for key in keys)
    dim = sum(torch.Size(shape).numel() for shape in shapes)
    action_dim = 1 if num_actions else 2
    bounds = (-1.0,) * action_dim, (1.0,) * action_dim
    return SpaceSpec(dim, action_dim, *bounds, obs_keys=keys, obs_shapes=shapes, num_actions=num_actions)


SPEC = spec_of("proprio_hist", "obs", "privileged")
HISTORY, OBS, PRIVILEGED = (SPEC.columns(key) for key in ("proprio_hist", "obs", "privileged"))
TEACHER_SPEC = spec_of("obs", "privileged")
NETWORKS = {"name": "hora", "hidden_dims": (16,), "encoder_dims": (12,), "latent_dim": 4}
STUDENT = {**NETWORKS, "stage": "adapt", "epochs": 3, "num_minibatches": 4}


@pytest.fixture
def student_of(learner_of: LearnerOf) -> LearnerOf:
    """`student_of(seed=1, spec=SPEC, **algo)`: a learner of the second stage that normalises."""

    def make(seed: int = 1, spec: SpaceSpec = SPEC, **algo: Any) -> Learner:
        return learner_of(seed=seed, spec=spec, **{**STUDENT, "normalize_obs": True, **algo})

    return make


@pytest.fixture
def student_rollouts(rollouts_of: RolloutsOf) -> RolloutsOf:
    """`student_rollouts(learner, seed=0, is_informative=True, **fields)`: the history repeats the privileged part.

    The history is noise if not `is_informative`.
    """

    def make(learner: Learner, seed: int = 0, is_informative: bool = True, **fields: Any) -> Rollouts:
        rollouts = rollouts_of(learner.policy, seed, spec=SPEC, **fields)
        if is_informative:
            rollouts.obs[..., HISTORY] = rollouts.obs[..., PRIVILEGED].repeat(1, 1, 25)
        return rollouts

    return make


def moved(learner: Learner, rollouts: Rollouts) -> set[str]:
    """The tensors of the state that an update changes by a single bit."""
    before = learner.state().tensors
    learner.update(rollouts)
    after = learner.state().tensors
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_latent_loss_is_the_mean_square_over_dimensions_and_transitions() -> None:
    inferred = torch.tensor([[0.0, 0.0], [1.0, 1.0], [9.0, 9.0]])
    latent = torch.tensor([[1.0, 0.0], [1.0, 0.5], [0.0, 0.0]])
    assert float(latent_loss(inferred, latent, torch.tensor([1.0, 1.0, 0.0]))) == 0.3125  # of 1/2 and 1/8


def test_only_the_adaptation_module_and_the_statistics_of_the_history_move(
    student_of: LearnerOf, student_rollouts: RolloutsOf
) -> None:
    student = student_of()
    changed = moved(student, student_rollouts(student))
    assert {name for name in changed if not name.startswith(("policy.actor.adaptation.", "optimizer."))} == {
        "policy.normalizer.mean", "policy.normalizer.var", "history.normalizer.count", "metrics.sums", "generator",
    }  # fmt: skip
    parameters = {f"policy.actor.{name}" for name, _ in student.policy.actor.named_parameters()}
    assert {name for name in parameters if ".adaptation." in name} <= changed


def test_the_statistics_of_the_history_are_of_every_transition_once(
    student_of: LearnerOf, student_rollouts: RolloutsOf
) -> None:
    student = student_of()
    rollouts = student_rollouts(student)
    rollouts.obs[-1] = 1e3  # it is the next rollout's first
    student.update(rollouts)
    rows = rollouts.obs[:-1][rollouts.is_valid == 1.0][:, HISTORY].double()
    tensors = student.state().tensors
    assert float(tensors["history.normalizer.count"]) == NUM_VALID
    assert torch.allclose(tensors["policy.normalizer.mean"][HISTORY], rows.mean(dim=0), atol=1e-9)
    assert torch.allclose(tensors["policy.normalizer.var"][HISTORY], rows.var(dim=0, correction=0), rtol=1e-9)


@pytest.mark.parametrize("normalize_obs", [True, False])
def test_autoreset_rows_are_neither_learnt_from_nor_normalised(
    normalize_obs: bool, student_of: LearnerOf, student_rollouts: RolloutsOf
) -> None:
    first, second = (student_of(normalize_obs=normalize_obs) for _ in range(2))
    ours, theirs = student_rollouts(first), student_rollouts(second)
    theirs.obs[:-1][theirs.is_valid == 0.0] = 1e6
    first.update(ours)
    second.update(theirs)
    assert_equal(first, second)


def taught(learner_of: LearnerOf, rollouts_of: RolloutsOf, **algo: Any) -> Learner:
    """Returns a teacher of its two observation groups, after two updates."""
    teacher = learner_of(**{**NETWORKS, "spec": TEACHER_SPEC, "lr": 1e-2, "normalize_obs": True, **algo})
    for seed in range(2):
        teacher.update(rollouts_of(teacher.policy, seed, spec=algo.get("spec", TEACHER_SPEC)))
    return teacher


def test_a_student_takes_over_trunk_encoder_and_statistics_and_keeps_the_rest(
    learner_of: LearnerOf, rollouts_of: RolloutsOf, student_of: LearnerOf
) -> None:
    teacher, student = taught(learner_of, rollouts_of), student_of()
    before = student.state().tensors
    adopt_teacher(student.tensors(), SPEC, teacher.state().tensors, TEACHER_SPEC)
    after = student.state().tensors
    taken = {name for name in before if not torch.equal(before[name], after[name])}
    assert taken == {
        *(name for name in before if name.startswith(("policy.actor.trunk.", "encoder."))),
        "policy.normalizer.mean", "policy.normalizer.var",
    }  # fmt: skip
    assert "policy.actor.trunk.log_std" in taken
    given = teacher.state().tensors
    for name in ("policy.normalizer.mean", "policy.normalizer.var"):
        assert torch.equal(after[name][OBS], given[name][0:3])
        assert torch.equal(after[name][PRIVILEGED], given[name][3:5])
        assert torch.equal(after[name][HISTORY], before[name][HISTORY])


def test_a_student_that_has_learnt_the_latent_acts_as_its_teacher(
    learner_of: LearnerOf, rollouts_of: RolloutsOf, student_of: LearnerOf, student_rollouts: RolloutsOf
) -> None:
    teacher, student = taught(learner_of, rollouts_of), student_of(lr=3e-3)
    adopt_teacher(student.tensors(), SPEC, teacher.state().tensors, TEACHER_SPEC)
    obs = student_rollouts(student, 99).obs[0]
    wanted = teacher.policy.act(torch.cat((obs[..., OBS], obs[..., PRIVILEGED]), dim=-1))
    errors = [float((student.policy.act(obs) - wanted).abs().mean())]
    for seed in range(30):
        student.update(student_rollouts(student, seed, envs=16))
    errors.append(float((student.policy.act(obs) - wanted).abs().mean()))
    assert errors[1] < 0.2 * errors[0]


def test_minibatches_are_equal_parts_with_every_row_once() -> None:
    parts = [part.tolist() for part in minibatches(12, 3, torch.Generator().manual_seed(1))]
    assert [len(part) for part in parts] == [4, 4, 4]
    assert sorted(sum(parts, [])) == list(range(12))
