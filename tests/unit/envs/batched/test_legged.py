"""Ant and Humanoid: every number of Gymnasium's, to the bit, contact forces included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.envs.batched.legged import Ant
from tests.beside_gymnasium import batch, compare

NAMES = ("Ant-v5", "Humanoid-v5")
PARTS = (
    *("include_cinert_in_observation", "include_cvel_in_observation"),
    *("include_qfrc_actuator_in_observation", "include_cfrc_ext_in_observation"),
)
ALL_PLACES = {"exclude_current_positions_from_observation": False}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("Ant-v5", {"forward_reward_weight": 2, "ctrl_cost_weight": 0.1, "contact_cost_weight": 0.3}),
    ("Ant-v5", {"contact_force_range": [-0.2, 5.0], "main_body": "front_left_leg", "frame_skip": 2}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, **ALL_PLACES, "terminate_when_unhealthy": False}),
    ("Ant-v5", {"healthy_z_range": [0.5, 0.8], "healthy_reward": 3.0, "reset_noise_scale": 0.3}),
    ("Humanoid-v5", {"contact_cost_range": [1e-4, 2e-3], "contact_cost_weight": 1e-5, "ctrl_cost_weight": 2.0}),
    ("Humanoid-v5", {**dict.fromkeys(PARTS, False), **ALL_PLACES, "terminate_when_unhealthy": False}),
    ("Humanoid-v5", {"healthy_z_range": [1.3, 1.39], "healthy_reward": 1.5, "forward_reward_weight": 0.5}),
    ("Humanoid-v5", {"include_cvel_in_observation": False, "reset_noise_scale": 0.1, "frame_skip": 3}),
]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_infos_are_gymnasiums(name: str) -> None:
    seen = compare(name, 40, max_episode_steps=15)
    assert seen.truncated >= 6
    assert {"y_velocity", "reward_contact", "reward_survive", "distance_from_origin"} <= seen.infos
    assert ("tendon_length" in seen.infos) is (name == "Humanoid-v5")


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_keyword_arguments_mean_what_they_mean_in_gymnasium(name: str, kwargs: dict[str, Any]) -> None:
    seen = compare(name, 30, max_episode_steps=20, **kwargs)
    assert seen.terminated > 0 or "healthy_z_range" not in kwargs


def test_an_ant_at_the_end_of_its_range_is_healthy_and_one_that_is_not_finite_is_not() -> None:
    vector = batch("Ant-v5", 4)
    vector.reset(seed=1)
    task = vector._task
    assert isinstance(task, Ant)
    task.sims.qpos[:, 2] = [0.2, 1.0, 0.19, 0.5]
    task.sims.qvel[3, 5] = np.inf
    assert task.is_healthy().tolist() == [True, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_steps_are_gymnasiums(name: str) -> None:
    assert compare(name, 3400).terminated > 30
