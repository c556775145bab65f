"""Runs without their cores: which those are, and what is said about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from offpolicy.analysis.contention import contended_labels, contention_notes, descheduled, shares_text
from offpolicy.analysis.runs import LabelledRuns, read_runs

MakeRun = Callable[..., Path]
LEARNER, COLLECTOR = "cpu/learner_descheduled_pct", "cpu/collector_descheduled_pct"


def read(*words: str | Path) -> list[LabelledRuns]:
    return read_runs([str(word) for word in words])


@pytest.mark.parametrize(
    ("shares", "is_contended"), [((10.0, 3.0), False), ((10.5, 3.0), True), ((0.1, 42.0), True), ((0.0, 0.0), False)]
)
def test_either_side_above_a_tenth_of_the_wall_is_contention(
    make_run: MakeRun, shares: tuple[float, float], is_contended: bool
) -> None:
    compared = read(make_run("quiet"), make_run("other", extra={LEARNER: shares[0], COLLECTOR: shares[1]}))
    assert contended_labels(compared) == ({"other"} if is_contended else set())


def test_one_seed_of_three_is_enough(make_run: MakeRun) -> None:
    shares = {1: 0.5, 2: 60.0, 3: 0.5}
    seeds = [f"a={make_run(f'a{n}', changes={'seed': n}, extra={LEARNER: shares[n]})}" for n in shares]
    (label, _) = read(*seeds, make_run("quiet"))
    assert descheduled(label)["learner"] == pytest.approx(0.6)
    assert math.isnan(descheduled(label)["collector"])
    assert shares_text(label) == "learner 60.0 %"


def test_the_shares_the_bound_and_a_remedy_are_named(make_run: MakeRun) -> None:
    compared = read(make_run("quiet"), make_run("beside", extra={LEARNER: 87.12, COLLECTOR: 2.3}))
    first, advice = contention_notes(compared)
    assert first == "busy: beside was without a core for learner 87.1 %, collector 2.3 % of its wall"
    assert "more than 10% of the wall" in advice
    assert "Run again on idle cores" in advice
    assert list(contention_notes(read(make_run("one"), make_run("two")))) == []
