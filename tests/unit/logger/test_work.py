"""Operations per second of work done, on scripted clocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from offpolicy.algos.flops import count_work
from offpolicy.config.schema import RunConfig
from offpolicy.logger.record import EpisodeWindow, Record, RunHeader, build_record
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import CollectorTotals, LearnerTotals, MetricTotals, Snapshot, SpaceSpec
from tests.fakes import FakeClock

MS = 1_000_000
NUM_ITERATIONS = 40
NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))
SPEC = SpaceSpec(11, 3, (-1.0,) * 3, (1.0,) * 3)
NETS = {"algo": {"name": "td3", "hidden_dims": [24, 16]}}


def learner(update_ms: int, wait_ms: int) -> LearnerTotals:
    """A loop of waits and updates."""
    clock = FakeClock()
    ledger = Ledger(LearnerPhase, clock)
    ledger.end_warmup()
    for _ in range(NUM_ITERATIONS):
        with ledger.phase(LearnerPhase.COLLECTOR_WAIT):
            clock.advance(wait_ms * MS)
        with ledger.phase(LearnerPhase.TRAIN):
            clock.advance(update_ms * MS)
        ledger.close()
    return LearnerTotals(ledger.account(), NUM_ITERATIONS, 0, 0.0, NO_METRICS)


def collector(num_envs: int, act_ms: int, step_ms: int, wait_ms: int) -> CollectorTotals:
    """A loop of waits, decisions and steps, of which every tenth is a reset row in one of the environments."""
    clock = FakeClock()
    ledger = Ledger(CollectorPhase, clock)
    ledger.end_warmup()
    spans = {
        CollectorPhase.LEARNER_WAIT: wait_ms,
        CollectorPhase.ACTION_SELECT: act_ms,
        CollectorPhase.ENV_STEP: step_ms,
    }
    for _ in range(NUM_ITERATIONS):
        for phase, ms in spans.items():
            with ledger.phase(phase):
                clock.advance(ms * MS)
        ledger.close()
    env_steps = NUM_ITERATIONS * num_envs - NUM_ITERATIONS // 10
    return CollectorTotals(ledger.account(), env_steps, NUM_ITERATIONS, 0.0, NUM_ITERATIONS)


def record_of(header: RunHeader, *collectors: CollectorTotals, update_ms: int = 20, wait_ms: int = 0) -> Record:
    learners = (learner(update_ms, wait_ms),)
    after = Snapshot(9.0, 100, NUM_ITERATIONS, learners, collectors, 100, 1000, 0.0)
    return build_record(None, after, EpisodeWindow(), None, header)


@pytest.fixture
def counted(header: RunHeader) -> RunHeader:
    return dataclasses.replace(header, flops_per_update=3e6, attainable_flops_per_sec=6e8)


def test_an_update_of_known_work_and_duration_is_told_exactly(counted: RunHeader) -> None:
    record = record_of(counted, collector(1, 1, 1, 18))
    assert record["perf/flops_per_sec"] == pytest.approx(3e6 / 0.020, rel=1e-12)
    assert record["perf/flops_of_attainable"] == pytest.approx(0.25, rel=1e-12)


def test_waiting_for_the_collector_is_not_slower_work(counted: RunHeader) -> None:
    busy, waiting = (record_of(counted, collector(1, 1, 1, 18), wait_ms=wait_ms) for wait_ms in (0, 50))
    for key in ("perf/flops_per_sec", "perf/flops_of_attainable"):
        assert busy[key] == waiting[key]


def test_a_machine_that_was_not_measured_has_no_share(counted: RunHeader) -> None:
    unknown = dataclasses.replace(counted, attainable_flops_per_sec=None)
    record = record_of(unknown, collector(1, 1, 1, 18))
    assert "perf/flops_of_attainable" not in record
    assert "perf/flops_per_sec" in record


@pytest.mark.parametrize("num_envs", [1, 7])
@pytest.mark.parametrize("num_collectors", [1, 3])
def test_decisions_are_counted_for_every_environment_even_those_just_reset(
    header: RunHeader, num_envs: int, num_collectors: int
) -> None:
    by_hand = 2 * (11 * 24 + 24 * 16 + 16 * 3)
    inference = count_work(RunConfig.from_mapping(NETS), SPEC).decision
    known = dataclasses.replace(header, flops_per_decision=inference, num_envs=num_envs)
    record = record_of(known, *[collector(num_envs, 2, 5, 13)] * num_collectors)
    assert record["perf/collector_flops_per_sec"] == pytest.approx(num_envs * by_hand / 0.002, rel=1e-12)


def test_the_share_of_the_environments_is_of_active_time(header: RunHeader) -> None:
    for wait_ms in (0, 500):
        assert record_of(header, collector(4, 2, 6, wait_ms))["perf/env_step_share"] == 0.75
