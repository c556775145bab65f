"""Every formula of the rates against a run whose rates are known, and the window that they are measured in."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from offpolicy.replay.rate_limiter import LearningStart, RateLimiter
from offpolicy.timing.rates import Rates, RateWindow
from offpolicy.timing.windows import FEW_ARRIVALS
from offpolicy.types import Account, Snapshot
from tests.unit.timing.pipeline import MS, Pipeline, S
from tests.unit.timing.readings import collector, snapshot

# Three environments step in 7 ms, an update takes 5 ms, publishing 2 ms.
COLLECTOR_CAPACITY, LEARNER_CAPACITY = 3 / 0.007, 3 / 0.017
THRU = {"alternate": 3 / 0.024, "overlap": 3 / 0.017, "free": 3 / 0.017}
LEAD = {"alternate": 0, "overlap": 3, "free": 6}


def simulated(mode: str) -> list[Snapshot]:
    return Pipeline(3, lambda _: 7 * MS, 5 * MS, LEAD[mode], most_updates=3, publish_ns=2 * MS).run(20)


def rates_of(snapshots: list[Snapshot], mode: str) -> list[Rates]:
    window = RateWindow()
    return [window.rates(snapshot, mode, 1) for snapshot in snapshots]


# -- the formulas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LEAD)
def test_every_rate_of_a_known_pipeline_is_exact(mode: str) -> None:
    for rates in rates_of(simulated(mode), mode)[3:]:
        assert rates.collector_capacity == pytest.approx(COLLECTOR_CAPACITY, rel=1e-9)
        assert rates.learner_active_s == pytest.approx(0.017 / 3, rel=1e-9)
        assert rates.learner_capacity == pytest.approx(LEARNER_CAPACITY, rel=1e-9)
        assert rates.steps_per_sec == pytest.approx(THRU[mode], rel=1e-9)
        assert rates.updates_per_sec == pytest.approx(THRU[mode], rel=1e-9)
        assert rates.utd == pytest.approx(1.0, rel=1e-9)
        assert rates.predicted_steps_per_sec == pytest.approx(THRU[mode], rel=1e-9)


def test_the_debt_of_a_known_pipeline_is_exact() -> None:
    pace = RateLimiter.of("overlap", 2 / 3, 3, band=0, start=LearningStart(100, 0), total=10**6)
    assert pace.debt(100 + 300, 190) == Fraction(10)
    assert pace.debt(100 + 300, 201) == Fraction(-1)


def test_a_pause_that_one_side_has_not_reported_moves_the_ratio_by_one_arrival_at_most() -> None:
    *before, last = simulated("overlap")
    account = last.learners[0].account
    assert account is not None
    paused = replace(
        account,
        wall_ns=account.wall_ns + 5 * S,
        phases_ns={**account.phases_ns, "evaluation": 5 * S},
    )
    after = replace(last, learners=(replace(last.learners[0], account=paused),))
    rates = rates_of([*before, after], "overlap")[-1]
    assert rates.utd == pytest.approx(1.0, rel=0.05)  # of 60 iterations and 60 vector steps in the record


# -- arrivals in bursts -----------------------------------------------------------------------------------------------

RATE = 8.0
BURSTS = [(2, 0.25), (8, 1.0), (24, 3.0), (48, 6.0), (72, 9.0), (96, 12.0)]  # env steps at once, every so many seconds
NEAR = 0.02


def burst_pipeline(burst: int, period_s: float, mode: str) -> Pipeline:
    """A vector step ends every `period_s`; an update takes 50 ms, in turns with the steps or meanwhile."""
    step_s = period_s - (0.05 * burst if mode == "alternate" else 0.0)
    return Pipeline(burst, lambda _: round(step_s * S), 50 * MS, lead=0 if mode == "alternate" else burst)


@pytest.mark.parametrize("mode", ["alternate", "overlap"])
@pytest.mark.parametrize(("burst", "period_s"), BURSTS)
def test_bursts_bias_no_rate(burst: int, period_s: float, mode: str) -> None:
    snapshots = burst_pipeline(burst, period_s, mode).run(max(60.0, 40 * period_s))
    records = zip(snapshots, rates_of(snapshots, mode), strict=True)
    steady = [rates for snapshot, rates in records if snapshot.collectors[0].vector_steps > FEW_ARRIVALS]
    assert len(steady) > 10
    capacity = burst / (period_s - 0.05 * burst) if mode == "alternate" else RATE
    for rates in steady:
        assert rates.steps_per_sec is None or rates.steps_per_sec == pytest.approx(RATE, rel=1e-9)
        assert rates.collector_capacity == pytest.approx(capacity, rel=1e-9)
        assert rates.predicted_steps_per_sec == pytest.approx(RATE, rel=NEAR)


@pytest.mark.parametrize(("burst", "period_s"), BURSTS[:-1])
def test_bursts_do_not_bias_what_the_learner_could_do(burst: int, period_s: float) -> None:
    """More than 64 updates are several iterations of the learner: those of the last pattern are not regular."""
    for mode in ("alternate", "overlap"):
        for rates in rates_of(burst_pipeline(burst, period_s, mode).run(40 * period_s), mode)[FEW_ARRIVALS:]:
            assert rates.learner_capacity == pytest.approx(20.0, rel=NEAR)


def test_between_two_arrivals_the_throughput_is_not_known_rather_than_zero_or_that_of_before() -> None:
    snapshots = burst_pipeline(96, 12.0, "overlap").run(480)
    records = list(zip(snapshots, rates_of(snapshots, "overlap"), strict=True))
    is_known = [rates.steps_per_sec is not None for _, rates in records[1:]]
    has_arrived = [now.collectors != before.collectors for (before, _), (now, _) in pairwise(records)]
    assert is_known == has_arrived
    assert {True, False} == set(is_known)


class SpeedMonitor:
    """TorchSpec's: what arrived in the last 10 s, by the time since the first of these arrivals."""

    def rate(self, arrivals_s: list[float], count: int, now_s: float) -> float:
        seen = [at for at in arrivals_s if now_s - 10.0 <= at <= now_s]
        return count * len(seen) / (now_s - seen[0])


@pytest.mark.parametrize(("burst", "period_s"), BURSTS)
def test_dividing_by_one_interval_less_than_arrivals_is_found_out(burst: int, period_s: float) -> None:
    """Negative control."""
    arrivals_s = [period_s * number for number in range(1, 60)]
    seen = SpeedMonitor().rate(arrivals_s, burst, now_s=arrivals_s[-1] + 0.005)
    assert seen != pytest.approx(RATE, rel=NEAR)


# -- the window -------------------------------------------------------------------------------------------------------


def reported(arrivals: int, wall_ms: int) -> Snapshot:
    """Both sides have made so many steps and updates in that time since the warm-up."""
    step, update = ({phase: wall_ms * MS} for phase in ("env_step", "train"))
    learner, steps = Account(wall_ms * MS, S, arrivals, update, 0), Account(wall_ms * MS, S, arrivals, step, 0)
    return snapshot(wall_ms / 1000, learner, arrivals, collector(steps, arrivals))


@pytest.mark.parametrize(("arrivals", "per_sec"), [(FEW_ARRIVALS, 5.0), (FEW_ARRIVALS - 1, (20 + 4) / 2)])
def test_a_window_is_stretched_only_where_it_holds_few_arrivals(arrivals: int, per_sec: float) -> None:
    window = RateWindow()
    for number, wall_ms in ((0, 0), (10, 1000), (30, 2000)):
        window.rates(reported(number, wall_ms), "free", 1)
    found = window.rates(reported(30 + arrivals, 3000), "free", 1)
    assert (found.steps_per_sec, found.updates_per_sec) == (per_sec, per_sec)


def test_the_counted_ratio_is_as_sure_as_that_of_the_collector_with_the_fewest_arrivals() -> None:
    """Counts say 0.5 updates per env step, the clocks 0.47: the second collector reports after every 10 steps."""
    learner = Account(10 * S, S, 100, {"train": 10 * S}, 0)
    often = collector(Account(10 * S, S, 100, {"env_step": 10 * S}, 0), 100)
    seldom = collector(Account(9 * S, S, 10, {"env_step": 9 * S}, 0), 100)
    rates = RateWindow().rates(snapshot(10.0, learner, 100, often, seldom), "free", 1)
    assert rates.utd == pytest.approx(10.0 / (10.0 + 100.0 / 9.0))


# -- held up by the other side ----------------------------------------------------------------------------------------


def test_the_collectors_capacity_survives_a_learner_that_holds_it_up() -> None:
    held_up = Pipeline(2, lambda _: 100 * MS, 6 * S, lead=2)  # 20 env steps per second, if it may
    snapshots = held_up.run(400)
    for rates in rates_of(snapshots, "overlap"):
        assert rates.collector_capacity == pytest.approx(20.0, rel=1e-9)
    # Negative control: TorchSpec's, of the calls that ended in the last 10 s.
    finished = [[end for end in held_up.step_ends_ns if 0 <= at - end <= 10 * S] for at in range(60 * S, 400 * S, S)]
    assert min(len(calls) for calls in finished) == 0


def test_the_learners_capacity_survives_a_collector_that_holds_it_up() -> None:
    held_up = Pipeline(2, lambda _: 12 * S, 100 * MS, lead=2)  # 10 env steps per second, if there were any
    for rates in rates_of(held_up.run(400), "overlap")[FEW_ARRIVALS:]:
        assert rates.learner_capacity == pytest.approx(10.0, rel=NEAR)
