"""HalfCheetah, Hopper, Walker2d and Swimmer: every number of Gymnasium's, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.beside_gymnasium import compare

NAMES = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5")
HEALTHY: dict[str, Any] = {
    "healthy_reward": 0.3,
    "healthy_z_range": [0.9, 1.3],
    "healthy_angle_range": [-0.1, 0.15],
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {"forward_reward_weight": 2.5, "ctrl_cost_weight": 0.7, "frame_skip": 3}),
    ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False, "reset_noise_scale": 0.5}),
    ("Swimmer-v5", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 1, "frame_skip": 2}),
    ("Swimmer-v5", {"forward_reward_weight": 0.1, "reset_noise_scale": 1.0}),
    ("Hopper-v5", {**HEALTHY, "reset_noise_scale": 0.05, "healthy_state_range": [-5.0, 1.2]}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
    ("Walker2d-v5", {**HEALTHY, "ctrl_cost_weight": 0.2, "xml_file": "walker2d.xml"}),
    ("Walker2d-v5", {"terminate_when_unhealthy": False, "forward_reward_weight": 3, "frame_skip": 8}),
]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_infos_are_gymnasiums(name: str) -> None:
    seen = compare(name, 60, max_episode_steps=18)
    assert seen.truncated > 3
    assert {"x_velocity", "reward_forward", "reward_ctrl", "x_position"} <= seen.infos
    assert ("reward_survive" in seen.infos) is (name in ("Hopper-v5", "Walker2d-v5"))


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_keyword_arguments_mean_what_they_mean_in_gymnasium(name: str, kwargs: dict[str, Any]) -> None:
    seen = compare(name, 40, max_episode_steps=25, **kwargs)
    assert (seen.terminated > 0) is ("healthy_z_range" in kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_steps_are_gymnasiums(name: str) -> None:
    seen = compare(name, 3400)
    assert (seen.terminated > 100) is (name in ("Hopper-v5", "Walker2d-v5"))
    assert seen.terminated or seen.truncated == 9
