"""Charts as SVG: where values are drawn, and what is said in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from offpolicy.analysis.svg import (
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Line,
    Piece,
    areas_chart,
    lines_chart,
    stacked_bars,
    ticks,
    waterfall_chart,
)


def line(*points: tuple[float, float], name: str = "a") -> Line:
    x, y = np.array(points).reshape(-1, 2).T
    return Line(name, "#0072B2", x, y)


def elements(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(tag))


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in elements(svg, "text")]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_points_without_a_place_are_left_out(bad: float) -> None:
    whole = lines_chart([line((0.0, 1.0), (1.0, 2.0))], "x", "alt")
    assert lines_chart([line((0.0, 1.0), (0.5, bad), (1.0, 2.0)), line((0.0, bad), name="b")], "x", "alt") == whole
    assert lines_chart([line((0.0, bad))], "x", "alt") == ""


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 100.0, [0.0, 25.0, 50.0, 75.0, 100.0]), (-1480.0, -120.0, [-1000.0, -500.0]), (3.0, 3.0, [3.0])],
)
def test_ticks_are_round_numbers_inside_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


def test_a_curve_reaches_from_its_first_to_its_last_value() -> None:
    svg = lines_chart([line((0, -10), (50, 0), (100, 10))], "env steps", "return")
    points = [tuple(map(float, point.split(","))) for point in elements(svg, "polyline")[0].attrib["points"].split()]
    assert [x for x, _ in points] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    assert points[0][1] > points[1][1] > points[2][1]  # up is more
    assert "env steps" in texts(svg)


def test_a_curve_of_one_value_is_a_dot_and_none_is_no_chart() -> None:
    assert len(elements(lines_chart([line((5, 1))], "s", ""), "circle")) == 1
    assert lines_chart([line()], "s", "") == ""


def test_layers_lie_on_top_of_each_other() -> None:
    x = np.array([0.0, 1.0])
    svg = areas_chart(x, [("a", "#000000", np.full(2, 30.0)), ("b", "#ffffff", np.full(2, 70.0))], "env steps", "")
    first, second = ([p.split(",")[1] for p in one.attrib["points"].split()] for one in elements(svg, "polygon"))
    assert first[:2] == second[3:1:-1]  # b begins where a ends
    assert areas_chart(x[:1], [], "env steps", "") == ""
    assert areas_chart(np.array([5.0, 5.0]), [], "env steps", "") == "", "records of one env step have no width"


def test_pieces_fill_the_width_and_large_ones_hold_their_percent() -> None:
    svg = stacked_bars({"run": [Piece("Train", "#3b6fb5", 95.0), Piece("Log", "#a0526a", 5.0)]}, "")
    widths = [float(box.attrib["width"]) for box in elements(svg, "rect")]
    assert widths == [0.95 * WIDTH, 0.05 * WIDTH]
    assert texts(svg) == ["run", "95 %"]
    assert "Log: 5.0 %" in [title.text for title in elements(svg, "title")]


def test_a_waterfall_says_what_each_cause_cost() -> None:
    svg = waterfall_chart([("min(I, T)", 100.0), ("Evaluation", 80.0), ("the rest", 75.0)], "")
    assert texts(svg) == ["min(I, T): 100.0", "Evaluation: 80.0, -20.0", "the rest: 75.0, -5.0", "done: 75.0"]
    lost = elements(svg, "rect")[1]
    assert (float(lost.attrib["x"]), float(lost.attrib["width"])) == (0.8 * WIDTH, 0.2 * WIDTH)
    assert waterfall_chart([], "") == ""


def test_a_cause_too_small_to_be_seen_is_a_part_of_the_one_after_it() -> None:
    svg = waterfall_chart([("min(I, T)", 100.0), ("Log", 99.9), ("the rest", 99.8)], "")
    assert texts(svg) == ["min(I, T): 100.0", "the rest: 99.8, -0.2", "done: 99.8"]


def test_names_are_escaped_and_long_labels_cut() -> None:
    svg = stacked_bars({"<b>" + 80 * "x": [Piece("a&b", "#000000", 100.0)]}, '"<')
    assert texts(svg)[0] == "<b>" + 56 * "x" + "…"
    assert re.match(rf'<svg viewBox="0 0 {WIDTH:g} ', svg)
    assert HEIGHT < WIDTH
