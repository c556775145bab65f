"""What counts as the same decision, and the observations on which it is looked for."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offpolicy.config.overrides import load_config
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.spaces import describe
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.formats import Runner
from offpolicy.export.parity import (
    LIMIT,
    MOST,
    Parity,
    difference,
    inputs_of,
    limit_of,
    random_observations,
    visited_observations,
)
from offpolicy.nets.policy import make_policy
from tests.unit.export.conftest import ODD, MakeScene, Scene


def runner(scene: Scene, change: Any = lambda outputs: outputs) -> Runner:
    """The module itself, with its outputs changed on the way."""

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            found = scene.module(*(torch.from_numpy(inputs[name]) for name in scene.module.input_names))
        outputs = {name: value.numpy() for name, value in zip(scene.module.output_names, found, strict=True)}
        changed: dict[str, Any] = change(outputs)
        return changed

    return run


def observed(scene: Scene) -> Any:
    return np.random.default_rng(2).standard_normal((50, scene.codec.spec.obs_dim)).astype(np.float32)


def far(scene: Scene, change: Any = lambda outputs: outputs) -> float:
    return difference(runner(scene, change), scene.module, scene.codec, scene.policy, observed(scene))


def test_a_difference_is_measured_in_halves_of_the_actions_range(make_scene: MakeScene) -> None:
    scene = make_scene("td3")
    assert far(scene) == 0.0

    def moved(outputs: dict[str, Any]) -> dict[str, Any]:
        return {"action": outputs["action"] + np.array([0.0, 0.2, 0.0], np.float32)}  # its range is [0, 40]

    assert far(scene, moved) == pytest.approx(0.01, rel=1e-3)


def test_a_unit_in_the_last_place_of_float16_is_rounding_and_two_are_not(make_scene: MakeScene) -> None:
    scene = make_scene("sac_float16")

    def moved(places: int) -> Any:
        def move(outputs: dict[str, Any]) -> dict[str, Any]:
            action = outputs["action"]
            for _ in range(places):
                action = np.nextafter(action, np.float16(0))
            return {"action": action}

        return move

    assert far(scene, moved(0)) == far(scene, moved(1)) == 0.0
    assert far(scene, moved(2)) > LIMIT


def test_another_choice_counts_by_how_much_less_likely_it_is(make_scene: MakeScene) -> None:
    scene = make_scene("appo_discrete")
    assert far(scene) < LIMIT
    other = far(scene, lambda outputs: {**outputs, "action": 1 - outputs["action"]})
    with torch.inference_mode():
        chances = scene.module(torch.from_numpy(observed(scene)))[1].numpy()
    assert other == pytest.approx(np.abs(chances[:, 0] - chances[:, 1]).max(), rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("sac", "action", np.nan), ("sac_discrete", "action", 7), ("sac_discrete", "probability", np.nan)],
)
def test_what_is_no_action_is_infinitely_far(kind: str, name: str, value: float, make_scene: MakeScene) -> None:
    assert math.isinf(far(make_scene(kind), lambda outputs: outputs | {name: np.full_like(outputs[name], value)}))


def test_a_policy_is_refused_from_the_limit_on() -> None:
    assert Parity(LIMIT, 0.0, 10).is_fine
    assert not Parity(0.0, 1.1 * LIMIT, 10).is_fine
    assert not Parity(math.inf, 0.0, 10).is_fine
    assert not Parity(2.0 * LIMIT, 2.0 * LIMIT, 10, random_limit=3.0 * LIMIT).is_fine
    assert Parity(math.inf, 0.0, 10).to_json()["random"] > 1e300


@pytest.mark.parametrize("kind", ["sac", "sac_discrete", "appo", "hora_student", "appo_multidiscrete", "td3"])
def test_the_limit_of_ordinary_observations_is_the_usual_one(kind: str, make_scene: MakeScene) -> None:
    scene = make_scene(kind)
    assert limit_of(scene.codec, scene.policy, observed(scene)) == LIMIT


@pytest.mark.parametrize(("acted", "scale"), [(ODD, 1e3), (spaces.Discrete(3), 1e4)])
def test_what_float32_makes_of_large_observations_is_allowed_and_ten_times_that_is_not(
    acted: spaces.Space[Any], scale: float
) -> None:
    """Sound policies of Humanoid-v5 were refused: sums of hundreds of its observations have an error of their own."""
    codec = describe(spaces.Box(-np.inf, np.inf, (348,), np.float64), acted, None)
    torch.manual_seed(1)
    policy = make_policy(load_config(["algo=sac"]).algo, codec.spec).eval()
    obs = (scale * np.random.default_rng(2).standard_normal((200, 348))).astype(np.float32)
    exact = EnvPolicy(copy.deepcopy(policy).double(), codec)

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            found = exact(torch.from_numpy(inputs["obs"]).double())
        return dict(zip(exact.output_names, (one.numpy() for one in found), strict=True))

    far, limit = difference(run, EnvPolicy(policy, codec), codec, policy, obs), limit_of(codec, policy, obs)
    assert LIMIT < far <= limit
    assert 10.0 * far > limit


def test_no_rounding_allows_more_than_a_hundredth_of_the_actions() -> None:
    codec = describe(spaces.Box(-np.inf, np.inf, (348,), np.float64), ODD, None)
    torch.manual_seed(1)
    policy = make_policy(load_config(["algo=sac"]).algo, codec.spec).eval()
    first = next(module for module in policy.actor.modules() if isinstance(module, torch.nn.Linear))
    with torch.no_grad():  # what the rows have in common cancels, and float32 rounds what is left away
        first.bias.copy_(-1e7 * first.weight.sum(dim=1))
    obs = (1e7 + np.random.default_rng(2).standard_normal((200, 348))).astype(np.float32)
    assert limit_of(codec, policy, obs) == MOST


def test_a_policy_that_overflows_has_the_usual_limit(make_scene: MakeScene) -> None:
    scene = make_scene("sac")
    policy = copy.deepcopy(scene.policy)
    with torch.no_grad():
        next(policy.actor.parameters()).fill_(1e38)
    assert limit_of(scene.codec, policy, observed(scene)) == LIMIT


def test_visited_observations_are_those_of_an_evaluation() -> None:
    env = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 30})
    visited = visited_observations(lambda obs: np.zeros((len(obs), 1), np.float32), env, seed=3, rows=1000)
    assert visited.shape == (1000, 3)
    np.testing.assert_allclose(np.hypot(visited[:, 0], visited[:, 1]), 1.0, atol=1e-5)
    assert len(np.unique(visited[:, 2])) > 900
    drawn = random_observations(visited, seed=3, rows=1000)
    np.testing.assert_allclose(drawn.std(axis=0), 3.0 * visited.std(axis=0), rtol=0.1)


def test_the_parts_of_an_observation_keep_their_shape(make_scene: MakeScene) -> None:
    scene = make_scene("hora_student")
    obs = np.arange(2 * 127, dtype=np.float32).reshape(2, 127)
    parts = inputs_of(scene.module.parts, obs)
    assert {name: part.shape for name, part in parts.items()} == {"obs": (2, 5), "proprio_hist": (2, 30, 4)}
    assert parts["proprio_hist"][1, 0, 0] == 127 + 7
