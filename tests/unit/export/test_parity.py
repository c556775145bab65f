"""What counts as the same decision, and the observations on which it is looked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.config.sections import EnvConfig
from offpolicy.export.formats import Runner
from offpolicy.export.parity import LIMIT, difference, random_observations, visited_observations
from tests.unit.export.conftest import MakeScene, Scene


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


def test_another_choice_counts_by_how_much_less_likely_it_is(make_scene: MakeScene) -> None:
    scene = make_scene("appo_discrete")
    assert far(scene) < LIMIT
    other = far(scene, lambda outputs: {**outputs, "action": 1 - outputs["action"]})
    with torch.inference_mode():
        chances = scene.module(torch.from_numpy(observed(scene)))[1].numpy()
    assert other == pytest.approx(np.abs(chances[:, 0] - chances[:, 1]).max(), rel=1e-4)


def test_what_is_no_action_is_infinitely_far(make_scene: MakeScene) -> None:
    nothing = far(make_scene("sac"), lambda found: {"action": found["action"] * np.nan})
    unknown = far(make_scene("sac_discrete"), lambda found: found | {"action": found["action"] + 7})
    assert math.isinf(nothing)
    assert math.isinf(unknown)


def test_visited_observations_are_those_of_an_evaluation() -> None:
    env = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 30})
    visited = visited_observations(lambda obs: np.zeros((len(obs), 1), np.float32), env, seed=3, rows=1000)
    assert visited.shape == (1000, 3)
    np.testing.assert_allclose(np.hypot(visited[:, 0], visited[:, 1]), 1.0, atol=1e-5)
    assert len(np.unique(visited[:, 2])) > 900
    drawn = random_observations(visited, seed=3, rows=1000)
    np.testing.assert_allclose(drawn.std(axis=0), 3.0 * visited.std(axis=0), rtol=0.1)
