"""Reacher and Pusher: every number of Gymnasium's, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.beside_gymnasium import batch, compare

NAMES = ("Reacher-v5", "Pusher-v5")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_infos_are_gymnasiums(name: str) -> None:
    seen = compare(name, 60, max_episode_steps=8)
    assert seen.truncated >= 18
    assert seen.infos == {"reward_dist", "reward_ctrl"} | ({"reward_near"} if name == "Pusher-v5" else set())


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Reacher-v5", {"reward_dist_weight": 3.0, "reward_control_weight": 0.25, "frame_skip": 4}),
        ("Pusher-v5", {"reward_near_weight": 2.0, "reward_dist_weight": 0.1, "reward_control_weight": 1}),
        ("Pusher-v5", {"xml_file": "pusher.xml"}),
    ],
)
def test_keyword_arguments_mean_what_they_mean_in_gymnasium(name: str, kwargs: dict[str, Any]) -> None:
    assert compare(name, 30, max_episode_steps=12, **kwargs).terminated == 0


def test_a_start_does_not_move_the_start_of_others() -> None:
    vector = batch("Pusher-v5", 2)
    first, _ = vector.reset(seed=[3, 4])
    again, _ = vector.reset(seed=[3, 4])
    np.testing.assert_array_equal(first, again)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_steps_are_gymnasiums(name: str) -> None:
    assert compare(name, 3400).truncated > 90
