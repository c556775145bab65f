"""Gymnasium's MuJoCo tasks in a batch: every number of Gymnasium's, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.beside_gymnasium import compare

# Steps, the limit of an episode, and infos that there must be.
TASKS: dict[str, tuple[int, int, set[str]]] = {
    "HalfCheetah-v5": (60, 18, {"x_velocity", "reward_forward", "reward_ctrl", "x_position"}),
    "Hopper-v5": (60, 18, {"x_velocity", "reward_forward", "reward_survive"}),
    "Walker2d-v5": (60, 18, {"x_velocity", "reward_forward", "reward_survive"}),
    "Swimmer-v5": (60, 18, {"x_velocity", "reward_forward", "x_position"}),
    "Ant-v5": (40, 15, {"y_velocity", "reward_contact", "reward_survive", "distance_from_origin"}),
    "Humanoid-v5": (40, 15, {"y_velocity", "reward_contact", "reward_survive", "tendon_length"}),
    "Reacher-v5": (60, 8, {"reward_dist", "reward_ctrl"}),
    "Pusher-v5": (60, 8, {"reward_dist", "reward_ctrl", "reward_near"}),
    "InvertedPendulum-v5": (120, 8, {"reward_survive"}),
    "InvertedDoublePendulum-v5": (120, 8, {"reward_survive"}),
}
PARTS = (
    *("include_cinert_in_observation", "include_cvel_in_observation"),
    *("include_qfrc_actuator_in_observation", "include_cfrc_ext_in_observation"),
)
ALL_PLACES = {"exclude_current_positions_from_observation": False}
HEALTHY: dict[str, Any] = {"healthy_reward": 0.3, "healthy_z_range": [0.9, 1.3], "healthy_angle_range": [-0.1, 0.15]}
# Where an episode must end in the variant, it has a range that is left soon.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {"forward_reward_weight": 2.5, "frame_skip": 3, **ALL_PLACES, "reset_noise_scale": 0.5}),
    ("Swimmer-v5", {**ALL_PLACES, "ctrl_cost_weight": 1, "frame_skip": 2}),
    ("Hopper-v5", {**HEALTHY, "reset_noise_scale": 0.05, "healthy_state_range": [-5.0, 1.2]}),
    ("Walker2d-v5", {**HEALTHY, "ctrl_cost_weight": 0.2, "xml_file": "walker2d.xml"}),
    ("Walker2d-v5", {"terminate_when_unhealthy": False, "forward_reward_weight": 3, "frame_skip": 8}),
    ("Ant-v5", {"contact_force_range": [-0.2, 5.0], "main_body": "front_left_leg", "frame_skip": 2}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, **ALL_PLACES, "terminate_when_unhealthy": False}),
    ("Ant-v5", {"healthy_z_range": [0.5, 0.8], "healthy_reward": 3.0, "reset_noise_scale": 0.3}),
    ("Humanoid-v5", {"contact_cost_range": [1e-4, 2e-3], "contact_cost_weight": 1e-5, "ctrl_cost_weight": 2.0}),
    ("Humanoid-v5", {**dict.fromkeys(PARTS, False), **ALL_PLACES, "terminate_when_unhealthy": False}),
    ("Humanoid-v5", {"healthy_z_range": [1.3, 1.39], "healthy_reward": 1.5, "forward_reward_weight": 0.5}),
    ("Reacher-v5", {"reward_dist_weight": 3.0, "reward_control_weight": 0.25, "frame_skip": 4}),
    ("Pusher-v5", {"reward_near_weight": 2.0, "reward_dist_weight": 0.1, "xml_file": "pusher.xml"}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.15, "frame_skip": 5}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3, "reset_noise_scale": 0.3}),
]


@pytest.mark.parametrize("name", TASKS)
def test_numbers_and_infos_are_gymnasiums(name: str) -> None:
    steps, limit, infos = TASKS[name]
    seen = compare(name, steps, max_episode_steps=limit)
    assert seen.truncated > 3
    assert infos <= seen.infos


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_keyword_arguments_mean_what_they_mean_in_gymnasium(name: str, kwargs: dict[str, Any]) -> None:
    seen = compare(name, 40, max_episode_steps=20, **kwargs)
    assert seen.terminated > 0 or "healthy_z_range" not in kwargs
