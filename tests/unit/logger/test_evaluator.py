"""The evaluator's lane: shares of its own second, beside everybody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from offpolicy.logger.evaluator import evaluator_keys
from offpolicy.logger.record import EpisodeWindow, RunHeader, build_record
from offpolicy.logger.summary import build_summary
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import Account, EvalResult, EvaluatorTotals, Snapshot

MS = 1_000_000
MakeSnapshot = Callable[..., Snapshot]


def totals(wall_ms: int, step_ms: int, episodes: int = 4) -> EvaluatorTotals:
    """It waits for requests but for `step_ms`; half of that is CPU time."""
    phases_ns = dict.fromkeys(map(str, EvaluatorPhase), 0)
    phases_ns |= {"env_step": step_ms * MS, "wait_request": (wall_ms - step_ms) * MS}
    return EvaluatorTotals(Account(wall_ms * MS, 100 * MS, 9, phases_ns, step_ms * MS // 2), episodes, 1, 2)


def test_its_phases_are_shares_of_a_second_of_its_wall(make_snapshot: MakeSnapshot) -> None:
    before = replace(make_snapshot(500), evaluator=totals(1000, 0))
    now = replace(make_snapshot(1000), evaluator=totals(3000, 500, episodes=6))
    keys = evaluator_keys(before, now)
    assert (keys["evaluator/env_step_ms"], keys["evaluator/wait_request_ms"]) == (250.0, 750.0)
    assert sum(keys[f"evaluator/{phase}_ms"] for phase in EvaluatorPhase) == pytest.approx(1000.0)
    assert keys["cpu/evaluator_pct"] == 12.5
    first = evaluator_keys(None, before)  # its warm-up is no part of its steady wall
    assert sum(first[f"evaluator/{phase}_ms"] for phase in EvaluatorPhase) == pytest.approx(1000.0)
    assert (keys["evaluator/episodes"], keys["evaluator/skipped"], keys["evaluator/post_failures"]) == (6, 1, 2)


def test_where_rank_0_evaluates_there_is_no_lane(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    assert evaluator_keys(make_snapshot(500), make_snapshot(1000)) == {}
    record = build_record(make_snapshot(500), make_snapshot(1000), EpisodeWindow(), None, header)
    assert not [key for key in record if "evaluator" in key]


def test_without_timing_only_the_counters_are_told(make_snapshot: MakeSnapshot) -> None:
    untimed = replace(make_snapshot(1000), evaluator=EvaluatorTotals(None, 6, 0, 0))
    assert set(evaluator_keys(None, untimed)) == {
        f"evaluator/{name}" for name in ("episodes", "skipped", "post_failures")
    }


def test_the_learners_account_is_the_same_with_and_without_it(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    alone, beside = make_snapshot(1000), replace(make_snapshot(1000), evaluator=totals(3000, 500))
    records = [build_record(make_snapshot(500), now, EpisodeWindow(), None, header) for now in (alone, beside)]
    assert {key: value for key, value in records[1].items() if "evaluator" not in key} == records[0]


def test_an_evaluation_is_told_with_the_version_of_its_weights(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    result = EvalResult(60, -2.0, 0.5, 50.0, 3, policy_version=41)
    record = build_record(None, make_snapshot(1000), EpisodeWindow(), result, header)
    assert (record["eval/env_steps"], record["eval/policy_version"]) == (60, 41)
    assert not {"eval/overlap", "eval/post_failures"} & record.keys()


def test_an_evaluation_tells_of_its_hook_wherever_it_takes_place(
    make_snapshot: MakeSnapshot, header: RunHeader
) -> None:
    result = EvalResult(60, -2.0, 0.5, 50.0, 3, overlap=0.75, post_failures=2)
    record = build_record(None, make_snapshot(1000), EpisodeWindow(), result, header)
    assert (record["eval/overlap"], record["eval/post_failures"]) == (0.75, 2)


def test_the_summary_holds_its_account_where_there_is_one(make_snapshot: MakeSnapshot) -> None:
    told = {"status": "completed", "exit_code": 0, "reason": "done", "last_eval": None, "mode": "alternate"}
    summary = build_summary(replace(make_snapshot(1000), evaluator=totals(3000, 500)), **told)  # type: ignore[arg-type]
    section = summary["timing"]["evaluator"]
    assert section["wall_s"] == pytest.approx(3.1)
    assert sum(section["phases_s"].values()) + section["other_s"] == pytest.approx(section["wall_s"])
    assert "evaluator" not in build_summary(make_snapshot(1000), **told)["timing"]  # type: ignore[arg-type]
