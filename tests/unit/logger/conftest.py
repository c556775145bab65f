"""A scripted run: after `updates` updates, every counter and phase has a known value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from offpolicy.logger.predictions import window_verdict
from offpolicy.logger.record import Record, RunHeader, build_record, episode_keys
from offpolicy.logger.timing_keys import Window
from offpolicy.model.bottleneck import Verdict
from offpolicy.model.rates import compute_rates
from offpolicy.model.windows import of_iterations
from offpolicy.timing.histogram import bins_of
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import (
    HISTOGRAM_BINS,
    NO_ACCOUNT,
    Account,
    CollectorTotals,
    Cooldown,
    EpisodeRecord,
    EvalResult,
    Lateness,
    LearnerTotals,
    MetricTotals,
    SchedulerStats,
    Snapshot,
)

MS = 1_000_000
LEARNER_US = {"collector_wait": 120, "replay_sample": 310, "train": 6100, "weight_publish": 40, "sync_coordination": 30}
COLLECTOR_US = {"weight_apply": 30, "action_select": 90, "env_step": 100, "replay_write": 10, "learner_wait": 6360}
METRICS = {"actor_loss": 41.5, "critic_loss": 3.25, "alpha_loss": -0.25, "ent_coef": 0.5, "q_mean": -38.5}
RANDOM_STEPS = 1000

MakeSnapshot = Callable[..., Snapshot]


def timed(phases: type[LearnerPhase] | type[CollectorPhase], per_step_us: dict[str, int], steps: int) -> Account:
    """6.6 ms per step; what the phases leave is `other`."""
    phases_ns = {str(phase): steps * 1000 * per_step_us.get(phase, 0) for phase in phases}
    wall_ns = steps * 66 * MS // 10
    phases_ns["other"] = wall_ns - sum(phases_ns.values())
    histogram = np.zeros((len(phases_ns) + 1, HISTOGRAM_BINS), dtype=np.int64)
    for row, ns in enumerate([*phases_ns.values(), wall_ns]):
        histogram[row, bins_of(np.array([ns // max(steps, 1)]))] = steps
    scheduler = SchedulerStats(runnable_ns=wall_ns // 10, preemptions=2 * steps)
    return Account(wall_ns, 2000 * MS, steps, phases_ns, wall_ns // 2, scheduler, histogram=histogram)


@pytest.fixture
def make_snapshot() -> MakeSnapshot:
    def make(updates: int, *, is_timed: bool = True) -> Snapshot:
        learner = timed(LearnerPhase, LEARNER_US, updates) if is_timed else NO_ACCOUNT
        collector = timed(CollectorPhase, COLLECTOR_US, updates) if is_timed else NO_ACCOUNT
        steps = RANDOM_STEPS + updates
        sums = np.array([value * updates for value in METRICS.values()])
        metrics = MetricTotals(tuple(METRICS), sums, np.full(len(METRICS), float(updates)))
        return Snapshot(
            wall_s=2.0 + updates * 0.0066, env_steps=steps, iteration=updates,
            learners=(LearnerTotals(learner, updates, 256 * updates, 256.0 * updates * 500, metrics),),
            collectors=(CollectorTotals(collector, steps, steps, 0.5 * updates, updates),), replay_rows=steps,
            replay_capacity=20_000, update_debt=0.0,
        )  # fmt: skip

    return make


@pytest.fixture
def header() -> RunHeader:
    return RunHeader(
        algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=20_000, started_unix_s=1_000_000.0
    )


@pytest.fixture
def evaluation() -> EvalResult:
    return EvalResult(env_steps=1500, mean_reward=-150.25, std_reward=80.5, mean_length=200.0, episodes=10)


@pytest.fixture
def record(make_snapshot: MakeSnapshot, evaluation: EvalResult, header: RunHeader) -> Record:
    """The record between the 500th and the 1000th update."""
    episodes = [
        EpisodeRecord(200, 0, -1000.0, 200, False, True, float("nan")),
        EpisodeRecord(400, 0, -500.0, 100, True, False, 1.0),
    ]
    before, after = make_snapshot(500), make_snapshot(1000)
    verdict = verdict_of(before, after, header)
    return record_between(before, after, header, verdict=verdict, curves=episode_keys(episodes, 2, evaluation))


def verdict_of(
    before: Snapshot, after: Snapshot, header: RunHeader, error: float | None = None, late: Lateness | None = None
) -> Verdict | None:
    rates = compute_rates(before, after, header.mode)
    return window_verdict(Window(before, after), rates, header, error=error, late=late)


def record_between(  # noqa: PLR0913  # what a record is made of
    before: Snapshot,
    after: Snapshot,
    header: RunHeader,
    late: Lateness | None = None,
    verdict: Verdict | None = None,
    curves: Record | None = None,
) -> Record:
    learning = Window(before, of_iterations(after))
    rates = compute_rates(before, learning.current, header.mode, header.num_hosts)
    return build_record(Window(before, after), learning, curves or {}, header, rates, verdict, late)


def evaluated(snapshot: Snapshot, seconds: int) -> Snapshot:
    """The same, `seconds` later: they went into the final evaluation, for which the collector waited."""
    cooled = []
    for totals, phase in ((snapshot.learners[0], "evaluation"), (snapshot.collectors[0], "learner_wait")):
        account, extra_ns = totals.account, seconds * 10**9
        after = Cooldown({**dict.fromkeys(account.phases_ns, 0), phase: extra_ns}, extra_ns // 2, SchedulerStats(7, 9))
        later = replace(
            account,
            wall_ns=account.wall_ns + extra_ns,
            phases_ns={**account.phases_ns, phase: account.phases_ns[phase] + extra_ns},
            cpu_ns=account.cpu_ns + after.cpu_ns,
            scheduler=SchedulerStats(*map(sum, zip(account.scheduler, after.scheduler, strict=True))),
            cooldown=after,
        )
        cooled.append(replace(totals, account=later))
    return replace(snapshot, learners=(cooled[0],), collectors=(cooled[1],))
