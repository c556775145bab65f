"""The film of a hand: which part of an episode it shows, and how small."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning.hand_film import MOMENTS, moments, one_turn, smaller


def test_the_turn_shown_goes_from_half_a_turn_to_one_and_a_half() -> None:
    turned = np.linspace(0.0, 12.0, 1201)  # 0.01 rad a picture
    shown = turned[one_turn(turned)]
    assert shown[0] == pytest.approx(np.pi, abs=0.02)
    assert shown[-1] - shown[0] == pytest.approx(2.0 * np.pi, abs=0.03)


def test_an_episode_without_a_full_turn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the object turns by 4\.0 rad in this episode, needed 9\.5"):
        one_turn(np.linspace(0.0, 4.0, 100))


def test_pictures_are_made_smaller_by_their_means() -> None:
    picture = np.arange(6 * 6 * 3, dtype=np.uint8).reshape(6, 6, 3)
    assert smaller(picture).shape == (2, 2, 3)
    assert smaller(picture)[0, 0, 0] == int(picture[:3, :3, 0].mean())


def test_eight_moments_stand_in_two_rows() -> None:
    pictures = [np.full((2, 2, 3), index, np.uint8) for index in range(15)]
    shown = moments(pictures)
    assert shown.shape == (4, 8, 3)
    assert shown[0, ::2, 0].tolist() == [0, 2, 4, 6]
    assert shown[3, ::2, 0].tolist() == [8, 10, 12, 14]
    assert MOMENTS == 8
