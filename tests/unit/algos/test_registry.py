"""The table of the configuration and the table of update rules name the same algorithms."""

from __future__ import annotations

import pytest
import torch

from offpolicy.algos import adaptation, appo, flashsac, sac, td3
from offpolicy.algos.learners import ReplayLearner, RolloutLearner
from offpolicy.algos.registry import REPLAY_ALGORITHMS, ROLLOUT_ALGORITHMS, make_learner
from offpolicy.config.sections import ALGORITHMS, FROM_REPLAY, FROM_ROLLOUTS, AlgoConfig, AlgorithmInfo
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(55, 2, (-1.0,) * 2, (1.0,) * 2, ("proprio_hist", "obs", "privileged"), ((25, 2), (3,), (2,)))


def test_every_algorithm_has_an_update_rule_of_its_kind() -> None:
    assert set(REPLAY_ALGORITHMS) == set(FROM_REPLAY)
    assert tuple(ROLLOUT_ALGORITHMS) == FROM_ROLLOUTS


@pytest.mark.parametrize("info", ALGORITHMS, ids=lambda info: f"{info.name}-{info.stage}")
def test_every_algorithm_makes_a_learner_of_its_kind(info: AlgorithmInfo) -> None:
    algo = AlgoConfig(name=info.name, stage=info.stage or "teach", hidden_dims=(4,), encoder_dims=(4,))
    learner = make_learner(algo, SPEC, torch.device("cpu"), 1)
    assert type(learner) is (RolloutLearner if info.learns_from_rollouts else ReplayLearner)


def test_layer_norm_and_activation_are_those_of_discrete_actions_too() -> None:
    spec = SpaceSpec(3, 1, (0.0,), (2.0,), num_actions=3)
    algo = AlgoConfig(name="sac", hidden_dims=(16,), critic_layer_norm=True, activation="tanh")
    learner = make_learner(algo, spec, torch.device("cpu"), 1)
    assert "critic.second.1.weight" in learner.state().tensors  # of the layer norm
    assert isinstance(learner.policy.actor.body[1], torch.nn.Tanh)  # type: ignore[index, union-attr]


def test_the_panel_shows_metrics_that_the_algorithms_report() -> None:
    modules = (adaptation, appo, flashsac, sac, td3)
    reported = {name for module in modules for names in module.METRICS.values() for name in names}
    assert {name for info in ALGORITHMS for name in info.curves} <= reported
