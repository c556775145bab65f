from __future__ import annotations

from dataclasses import replace

import pytest

from offpolicy.logger.account_rows import COLLECTOR, LEARNER, Row, account_rows, num_rows
from offpolicy.logger.metrics import METRICS, learner_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

SEVEN = (
    "Collector Wait",
    "Replay Batch Wait",
    "H2D Copy",
    "Rank Barrier",
    "Sync Coordination",
    "Train",
    "Param Sync",
)
SEEN = {learner_key("replay_sample"), learner_key("weight_publish"), learner_key("other")}


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


@pytest.mark.parametrize("room", [1, 7, 8, 9, 30])
def test_the_seven_rows_of_the_contract_always_stand(record: Record, header: RunHeader, room: int) -> None:
    rows = account_rows(LEARNER, record, None, header, SEEN, room)
    assert tuple(row.name for row in rows[:7]) == SEVEN
    assert len(rows) <= max(7, room)


def test_rows_beyond_those_have_held_time_in_this_run(record: Record, header: RunHeader) -> None:
    shown = by_name(account_rows(LEARNER, record, None, header, SEEN, 30))
    assert {"Replay Sample", "Weight Publish", "Other"} <= set(shown)
    assert not {"Evaluation", "Checkpoint", "Log"} & set(shown)
    every = by_name(account_rows(LEARNER, record, None, header, SEEN, 30, is_full=True))
    assert {"Evaluation", "Checkpoint", "Log"} <= set(every)
    assert num_rows(LEARNER, SEEN, is_full=True) == len(every) == 14


@pytest.mark.parametrize("room", [8, 9, 10, 11, 30])
def test_the_rows_sum_to_the_wall_whatever_the_room(record: Record, header: RunHeader, room: int) -> None:
    *rows, wall = account_rows(LEARNER, record, None, header, SEEN, room)
    hidden = {8: 0.31 + 0.04}.get(room, 0.0)  # without room for another row
    assert wall.is_wall
    assert sum(row.ms or 0.0 for row in rows) + hidden == pytest.approx(wall.ms, abs=1e-6)


def test_rows_without_room_are_one_row_together(record: Record, header: RunHeader) -> None:
    shown = by_name(account_rows(LEARNER, record, None, header, SEEN, 9))
    assert shown["3 more"].ms == pytest.approx(0.35)


def test_where_a_phase_cannot_occur_it_says_why(record: Record, header: RunHeader) -> None:
    on_cpu = by_name(account_rows(LEARNER, record, None, replace(header, device="cpu"), SEEN, 30))
    assert [on_cpu[name].note for name in SEVEN] == ["", "", "CPU", "one rank", "", "", "one rank"]
    many = replace(header, device="cuda:0", world_size=2)
    assert not any(row.note for row in account_rows(LEARNER, record, None, many, SEEN, 30))


def test_the_phase_of_the_verdict_is_marked_and_has_a_row_of_its_own(record: Record, header: RunHeader) -> None:
    verdict = Verdict(Bottleneck.LEARNER, LearnerPhase.EVALUATION, "")
    rows = account_rows(LEARNER, record, verdict, header, SEEN, 10)
    assert [row.name for row in rows if row.is_bottleneck] == ["Evaluation"]
    assert not any(row.is_bottleneck for row in account_rows(COLLECTOR, record, verdict, header, SEEN, 10))


def test_a_phase_of_both_sides_is_marked_on_the_one_that_is_meant(record: Record, header: RunHeader) -> None:
    verdict = Verdict(Bottleneck.COLLECTOR, CollectorPhase.OTHER, "")
    learner, collector = (account_rows(side, record, verdict, header, SEEN, 30) for side in (LEARNER, COLLECTOR))
    assert not any(row.is_bottleneck for row in learner)
    assert [row.name for row in collector if row.is_bottleneck] == ["Other"]


def test_waits_are_known_as_such(record: Record, header: RunHeader) -> None:
    rows = account_rows(LEARNER, record, None, header, SEEN, 30) + account_rows(COLLECTOR, record, None, header, (), 30)
    waits = [row.name for row in rows if row.is_wait]
    idle = METRICS["timing/collector_learner_wait_ms"].row
    assert waits == ["Collector Wait", "Replay Batch Wait", "Rank Barrier", "Sync Coordination", idle]
