"""docs/hora.md: the table of the policies, and what is said of the bars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.learning import hora_page
from benchmarks.learning.hora_page import Policy, conclusions, inference_table, over_seeds, results_table

SCRIPTED = {
    "gait, rotation": {"net_rotation": 2.0, "mean": -5.0},
    "gait, return": {"net_rotation": 0.5, "mean": 10.0},
    "random": {"net_rotation": 0.0, "mean": -26.0},
}


def policy(rotation: list[float], ep_return: list[float]) -> Policy:
    return Policy(np.array(rotation), np.array(ep_return), tuple(range(1, len(rotation) + 1)))


TEACHER, STUDENT = policy([10.0, 11.0, 12.0], [60.0, 70.0, 80.0]), policy([9.0, 10.0, 11.0], [50.0, 60.0, 70.0])
BLIND = policy([1.0, 2.0, 1.5], [5.0, 6.0, 7.0])
FOUND = {"baseline, observes the joints": BLIND, "teacher": TEACHER, "student": STUDENT}


def test_only_finished_runs_are_judged() -> None:
    run: Any = {"status": "finished", "final": {"net_rotation": 3.0, "mean": 4.0}}
    found = Policy.of({1: run, 2: {"status": "unfinished"}, 3: run})
    assert found.seeds == (1, 3)
    assert found.rotation.tolist() == [3.0, 3.0]
    assert found.ep_return.tolist() == [4.0, 4.0]


def test_what_the_joints_tell_has_a_row_for_each_quantity() -> None:
    found: Any = {"explained": {"mass": {"three frames": 0.571, "thirty frames": 0.719}}}
    assert inference_table(found).splitlines()[-1] == "| mass | 0.57 | 0.72 |"
    assert inference_table({}) == "*Not run yet.*"


def test_the_table_has_every_policy_with_its_spread_and_seeds() -> None:
    lines = results_table(FOUND, SCRIPTED).splitlines()
    assert "| teacher | 11.0 ± 1.0 | 70 ± 10 | 10.0, 11.0, 12.0 |" in lines
    assert "| random actions | 0.0 | -26 |  |" in lines
    assert (
        results_table({"teacher": policy([3.0], [4.0])}, {}).splitlines()[-1].startswith("| teacher | 3.0 (one seed)")
    )
    assert results_table({}, {}) == hora_page.NO_RUN


def test_the_bars_are_said_to_be_reached_or_missed() -> None:
    assert max(map(len, conclusions(FOUND, SCRIPTED).splitlines())) <= 100
    text = " ".join(conclusions(FOUND, SCRIPTED).split())
    assert "In rotation the teacher has 5.5 times what the best gait has (bar 1.5, reached)." in text
    assert "In return the teacher has 7.0 times what the best gait has (bar 1.5, reached)." in text
    assert "The student keeps 90.9% of the teacher's rotation (bar 85%, reached)." in text
    assert "by 8.5 rad more than the baseline, observes the joints (95 % over seeds: " in text
    assert "; bar: all above 0, reached)" in text
    equal = conclusions({"teacher": TEACHER, "student": STUDENT, "baseline, x": TEACHER}, SCRIPTED)
    assert "; bar: all above 0, **missed**)" in " ".join(equal.split())
    gait = {"gait, rotation": {"net_rotation": 9.0, "mean": -1.0}}
    poor = " ".join(conclusions({"teacher": TEACHER, "student": BLIND}, gait).split())
    assert "In rotation the teacher has 1.2 times what the best gait has (bar 1.5, **missed**)." in poor
    assert "In return the teacher has 70.0, the best gait -1.0 (bar 1.5 times, reached)." in poor
    assert "13.6% of the teacher's rotation (bar 85%, **missed**)" in poor
    assert conclusions({"student": STUDENT}, SCRIPTED) == hora_page.NO_RUN


def test_an_interval_over_seeds_holds_the_difference_and_needs_two_seeds() -> None:
    found = over_seeds(STUDENT.rotation, BLIND.rotation)
    assert found.value == pytest.approx(8.5)
    assert 0.0 < found.low < 8.5 < found.high
    assert found.high - found.low > 2.0  # three seeds say little
    assert np.isnan(over_seeds(np.array([3.0]), BLIND.rotation).low)
    alone = conclusions({"teacher": TEACHER, "student": policy([9.0], [9.0]), "baseline, x": BLIND}, {})
    assert "by 7.5 rad more than the baseline, x (one seed: no interval, so the bar is open)." in " ".join(
        alone.split()
    )


def test_a_student_is_held_against_the_teacher_of_its_own_seed() -> None:
    first = conclusions({"teacher": TEACHER, "student": policy([9.0], [9.0])}, {})
    assert "The student keeps 90.0% of" in " ".join(first.split())
    other = Policy(np.array([9.0]), np.array([9.0]), (7,))
    assert "The student keeps" not in conclusions({"teacher": TEACHER, "student": other}, {})


def test_the_committed_page_is_made_of_the_committed_results() -> None:
    assert hora_page.PAGE.read_text() == hora_page.render(), "run `make learning-page`"
