"""InvertedPendulum and InvertedDoublePendulum: every number of Gymnasium's, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.beside_gymnasium import compare

NAMES = ("InvertedPendulum-v5", "InvertedDoublePendulum-v5")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_infos_are_gymnasiums(name: str) -> None:
    seen = compare(name, 120, max_episode_steps=8)
    assert seen.terminated > 3
    assert seen.truncated > 3
    assert "reward_survive" in seen.infos


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("InvertedPendulum-v5", {"reset_noise_scale": 0.15, "frame_skip": 5}),
        ("InvertedDoublePendulum-v5", {"healthy_reward": 3, "reset_noise_scale": 0.3}),
    ],
)
def test_keyword_arguments_mean_what_they_mean_in_gymnasium(name: str, kwargs: dict[str, Any]) -> None:
    assert compare(name, 60, **kwargs).terminated > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_steps_are_gymnasiums(name: str) -> None:
    assert compare(name, 3400).terminated > 100
