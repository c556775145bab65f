from __future__ import annotations

import math

import pytest

from offpolicy.logger.sparkline import MOST_POINTS, History, sparkline


def test_a_curve_goes_from_the_lowest_to_the_highest_level() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([7.0, 0.0], 8, ascii_only=True) == "#_"


def test_many_points_are_averaged_to_the_width() -> None:
    assert sparkline([0.0, 0.0, 8.0, 8.0, 4.0, 4.0], 3) == "▁█▅"


@pytest.mark.parametrize("points", [[], [1.0]])
def test_fewer_than_two_points_are_no_curve(points: list[float]) -> None:
    assert sparkline(points, 8) == ""


def test_a_constant_is_flat() -> None:
    assert sparkline([3.0, 3.0, 3.0], 8) == "▁▁▁"


def test_a_long_history_keeps_its_course_in_few_points() -> None:
    history = History()
    for value in range(100_000):
        history.add(float(value))
    points = history.points
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS + 1
    assert history.first == 0.0
    assert sum(points) / len(points) == pytest.approx(50_000, rel=0.01)
    assert list(points) == sorted(points)
    assert points[-1] > 99_000


def test_each_point_of_a_thinned_history_is_the_mean_of_as_many_values() -> None:
    history = History()
    for value in range(MOST_POINTS + 1):
        history.add(2.0 * value)
    assert list(history.points) == [*(4.0 * index + 1.0 for index in range(MOST_POINTS // 2)), 2.0 * MOST_POINTS]


def test_unknown_values_are_left_out() -> None:
    history = History()
    for value in (None, math.nan, 2.0, math.inf, 3.0):
        history.add(value)
    assert list(history.points) == [2.0, 3.0]
