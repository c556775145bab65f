"""What each side could do alone, while the other one holds it up; and the delay at which the verdict turns.

Both sides sleep. The account of one stretch predicts the next one, before it is run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.what_if import Pipeline, flip_delay_s
from tests.processes.delay_plan import Plan, Stretch, run_plan
from tests.processes.test_delays import POINT

pytestmark = [pytest.mark.mp, pytest.mark.alone, pytest.mark.slow]
LATE = 90  # iterations
STEP, UPDATE = "collector.env_step", "learner.train"
OVERLAP = (POINT, "collect.mode=overlap")


def side(stretch: Stretch) -> str:
    """Which side bounds the run: the one with the lesser capacity."""
    learner, collector = stretch.median("perf/learner_capacity"), stretch.median("perf/collector_capacity")
    return "learner" if learner < collector else "collector"


# -- the flip ---------------------------------------------------------------------------------------------------------

BOUND_BY_LEARNER = {UPDATE: 24.0, STEP: 4.0}
SHARES = {0.5: "learner", 0.9: "learner", 1.1: "collector", 2.0: "collector"}  # of the delay at which sides change


def test_the_bottleneck_changes_sides_at_the_delay_that_was_predicted(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    (before,) = run_plan(tmp_path / "before", OVERLAP, [(BOUND_BY_LEARNER, LATE)])
    now = pipeline_of(before)
    flip_ms = 1000.0 * flip_delay_s(now)
    plan: Plan = [({**BOUND_BY_LEARNER, STEP: BOUND_BY_LEARNER[STEP] + share * flip_ms}, LATE) for share in SHARES]
    predicted = [slower(now, share * flip_ms).steps_per_sec for share in SHARES]
    after = run_plan(tmp_path / "after", OVERLAP, plan)
    assert [side(stretch) for stretch in after] == list(SHARES.values())
    for stretch, expected in zip(after, predicted, strict=True):
        assert stretch.median("perf/steps_per_sec") == pytest.approx(expected, rel=0.1)


def pipeline_of(stretch: Stretch) -> Pipeline:
    """Both sides at what an env step costs them."""
    collector, learner = stretch.median("perf/collector_capacity"), stretch.median("perf/learner_capacity")
    return Pipeline({CollectorPhase.ENV_STEP: 1.0 / collector}, {LearnerPhase.TRAIN: 1.0 / learner}, 1, "overlap")


def slower(now: Pipeline, delay_ms: float) -> Pipeline:
    """The same with a slower environment."""
    cost_s = now.collector_s[CollectorPhase.ENV_STEP]
    return now.scaled({CollectorPhase.ENV_STEP: (cost_s + delay_ms / 1000.0) / cost_s})


# -- held up by the other side ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "other"), [(STEP, UPDATE), (UPDATE, STEP)])
def test_a_side_keeps_its_capacity_while_the_other_holds_it_up(tmp_path: Path, own: str, other: str) -> None:
    alone, held_up = run_plan(tmp_path, OVERLAP, [({own: 20.0}, LATE), ({own: 20.0, other: 60.0}, LATE)])
    key = f"perf/{own.split('.')[0]}_capacity"
    assert len(held_up.records) >= 10
    for record in held_up.records:
        assert record[key] == pytest.approx(alone.median(key), rel=0.1)


def test_a_slow_learner_is_the_collectors_wait_and_leaves_its_capacity_as_it_was(tmp_path: Path) -> None:
    plan: Plan = [({STEP: 20.0}, LATE), ({STEP: 20.0, UPDATE: 50.0}, LATE)]
    usual, slow = run_plan(tmp_path, (POINT, "collect.mode=alternate"), plan)
    wait, capacity = "timing/collector_learner_wait_ms", "perf/collector_capacity"
    assert slow.median(wait) - usual.median(wait) == pytest.approx(50.0, abs=5.0)
    assert slow.median(capacity) == pytest.approx(usual.median(capacity), rel=0.05)
