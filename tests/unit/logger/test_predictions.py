"""What a window predicts: by how much overlapping would be faster on the cores there are, and how good that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.logger.predictions import (
    FEWEST,
    NUM_KEPT,
    PredictionError,
    judge_window,
    possible_advice,
    window_pipeline,
)
from offpolicy.logger.record import RunHeader
from offpolicy.timing.bottleneck import PACK_BESIDE, PACK_IN_THREAD, Advice, Bottleneck, Verdict
from offpolicy.timing.phases import CoreClass, LearnerPhase
from offpolicy.timing.rates import Rates, compute_rates
from offpolicy.types import CoreTotals, DeviceTotals, Snapshot
from tests.unit.logger.conftest import MakeSnapshot

MS = 1_000_000


def predicting(predicted: float | None, steps_per_sec: float | None) -> Rates:
    return Rates(steps_per_sec, None, None, None, None, None, predicted)


def test_the_error_is_the_median_of_the_newest_predictions() -> None:
    error = PredictionError()
    for predicted in (110.0, 95.0):
        error.add(predicting(predicted, 100.0))
    error.add(predicting(None, 100.0))
    error.add(predicting(100.0, None))
    assert error.median is None
    error.add(predicting(102.0, 100.0))
    assert FEWEST == 3
    assert error.median == pytest.approx(0.05)
    for _ in range(NUM_KEPT):
        error.add(predicting(101.0, 100.0))
    assert error.median == pytest.approx(0.01)


def busy(snapshot: Snapshot, wall_ms: int, others_ms: int, num_cores: int = 2) -> Snapshot:
    classes_ns = dict.fromkeys(map(str, CoreClass), 0) | {
        "others": others_ms * MS, "idle": (num_cores * wall_ms - others_ms) * MS,
    }  # fmt: skip
    return replace(snapshot, cores=CoreTotals(wall_ms * MS, num_cores * wall_ms * MS, classes_ns))


@pytest.mark.parametrize(
    ("others_ms", "threads", "count", "is_advised"),
    [
        (0, 1, 2.0, True),  # a core for each side
        (0, 2, 2.0, False),  # the learner uses both
        (3000, 1, 1.0, False),  # another program has one
    ],
)
def test_overlapping_is_advised_where_a_core_is_free_for_it(
    make_snapshot: MakeSnapshot, header: RunHeader, others_ms: int, threads: int, count: float, is_advised: bool
) -> None:
    """An env step costs either side some 6 ms."""
    before, now = busy(make_snapshot(500), 1000, 0), busy(make_snapshot(1000), 4000, others_ms)
    account = now.collectors[0].account
    assert account is not None
    slow = replace(account, phases_ns={**account.phases_ns, "env_step": account.phases_ns["env_step"] + 3000 * MS})
    now = replace(now, collectors=(replace(now.collectors[0], account=slow),))
    given = replace(header, learner_threads=threads)
    rates = compute_rates(before, now, "alternate")
    pipeline = window_pipeline(before, now, rates, given)
    assert pipeline is not None
    assert pipeline.cores is not None
    assert pipeline.cores.count == pytest.approx(count)
    assert pipeline.steps_per_sec == pytest.approx(rates.predicted_steps_per_sec, rel=0.01)
    verdict = judge_window(before, now, rates, given)
    assert verdict is not None
    assert ("collect.mode" in {advice.key for advice in verdict.advice}) is is_advised


def turns(make_snapshot: MakeSnapshot) -> tuple[Snapshot, Snapshot]:
    """Two readings of a run whose sides take turns of some 6 ms, with a core for each."""
    before, now = busy(make_snapshot(500), 1000, 0), busy(make_snapshot(1000), 4000, 0)
    account = now.collectors[0].account
    assert account is not None
    slow = replace(account, phases_ns={**account.phases_ns, "env_step": account.phases_ns["env_step"] + 3000 * MS})
    return before, replace(now, collectors=(replace(now.collectors[0], account=slow),))


@pytest.mark.parametrize(("error", "is_advised"), [(None, True), (0.1, True), (5.0, False)])
def test_overlapping_is_not_advised_where_predictions_were_off_by_more(
    make_snapshot: MakeSnapshot, header: RunHeader, error: float | None, is_advised: bool
) -> None:
    before, now = turns(make_snapshot)
    rates = compute_rates(before, now, "alternate")
    verdict = judge_window(before, now, rates, replace(header, learner_threads=1), error=error)
    assert verdict is not None
    assert ("collect.mode" in {advice.key for advice in verdict.advice}) is is_advised


def test_collectors_of_all_hosts_and_ranks_of_this_one_are_counted(
    make_snapshot: MakeSnapshot, header: RunHeader
) -> None:
    before, now = turns(make_snapshot)
    given = replace(header, learner_threads=1, num_hosts=2, world_size=2)
    pipeline = window_pipeline(before, now, compute_rates(before, now, "alternate", 2), given)
    assert pipeline is not None
    assert pipeline.cores is not None
    assert pipeline.num_collectors == 2 * header.num_collectors
    assert pipeline.cores.num_ranks == 1


@pytest.mark.parametrize(
    ("runner", "possible"),
    [
        ({"name": "single_gpu"}, ["collect.mode=auto", "runner.name=double_buffer", "replay.source=resident"]),
        ({"name": "multi_gpu", "world_size": 2}, ["replay.source=prefetch", "replay.source=resident"]),
        ({"name": "double_buffer"}, ["collect.mode=auto", "replay.source=prefetch"]),
    ],
)
def test_no_advice_is_given_that_the_configuration_refuses(runner: dict[str, Any], possible: list[str]) -> None:
    resident = Advice("", "replay.source", "resident")
    advice = (Advice("", "collect.mode", "auto"), PACK_BESIDE, PACK_IN_THREAD, resident)
    verdict = Verdict(Bottleneck.LEARNER, LearnerPhase.REPLAY_SAMPLE, "", advice)
    config = RunConfig.from_mapping({"runner": runner}).to_mapping()
    found = possible_advice(verdict, config, has_gpu=True).advice
    assert [f"{each.key}={each.value}" for each in found] == possible


@pytest.mark.parametrize("has_device", [False, True])
def test_beside_a_device_the_learner_takes_one_core_and_its_threads_are_not_tried(
    make_snapshot: MakeSnapshot, header: RunHeader, has_device: bool
) -> None:
    before, now = busy(make_snapshot(500), 1000, 0), busy(make_snapshot(1000), 4000, 0)
    device = DeviceTotals(*[0] * 5, iterations=1000, launch_bound=0, dropped=0) if has_device else None
    now = replace(now, learners=(replace(now.learners[0], device=device),))
    given, rates = replace(header, learner_threads=2), compute_rates(before, now, "alternate")
    pipeline, verdict = window_pipeline(before, now, rates, given), judge_window(before, now, rates, given)
    assert pipeline is not None
    assert pipeline.cores is not None
    assert verdict is not None
    assert pipeline.cores.threads == (1 if has_device else 2)
    assert ("threads.learner" in {advice.key for advice in verdict.advice}) is not has_device


def test_what_was_tried_is_preferred_to_what_products_take(header: RunHeader) -> None:
    known = replace(header, flops_per_update=2e9, attainable_by_threads={1: 1e12, 2: 2e12})
    assert known.update_s == pytest.approx({1: 0.002, 2: 0.001})
    assert replace(known, tried_update_s={1: 0.010, 2: 0.007}).update_s == {1: 0.010, 2: 0.007}


def test_a_side_that_did_nothing_has_no_pipeline(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    now = make_snapshot(1000)
    nothing = compute_rates(now, now, "alternate")
    assert window_pipeline(now, now, nothing, header) is None
    untimed = make_snapshot(1000, is_timed=False)
    assert window_pipeline(None, untimed, compute_rates(None, untimed, "alternate"), header) is None


@pytest.mark.parametrize(("iterations", "is_judged"), [(1000, True), (501, False)])
def test_a_window_of_a_few_milliseconds_is_not_judged(
    make_snapshot: MakeSnapshot, header: RunHeader, iterations: int, *, is_judged: bool
) -> None:
    """The rest of a run between its last record and its end read "descheduled 1491%"."""
    before, now = make_snapshot(500), make_snapshot(iterations)
    rates = compute_rates(before, now, "alternate")
    assert (judge_window(before, now, rates, header) is not None) is is_judged
