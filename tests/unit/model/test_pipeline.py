"""Every formula of the rates against a run whose rates are known, and the window that they are measured in."""

from __future__ import annotations

import pytest

from offpolicy.model.rates import Rates, RateWindow
from offpolicy.model.windows import FEW_ARRIVALS
from offpolicy.types import Account, Snapshot
from tests.unit.model.pipeline import MS, Pipeline, S
from tests.unit.model.readings import collector, snapshot

# Three environments step in 7 ms, an update takes 5 ms, publishing 2 ms.
COLLECTOR_CAPACITY, LEARNER_CAPACITY = 3 / 0.007, 3 / 0.017
THRU = {"alternate": 3 / 0.024, "overlap": 3 / 0.017, "free": 3 / 0.017}
LEAD = {"alternate": 0, "overlap": 3, "free": 6}


def simulated(mode: str) -> list[Snapshot]:
    return Pipeline(3, lambda _: 7 * MS, 5 * MS, LEAD[mode], most_updates=3, publish_ns=2 * MS).run(20)


def rates_of(snapshots: list[Snapshot], mode: str) -> list[Rates]:
    window = RateWindow()
    return [window.rates(snapshot, mode, 1) for snapshot in snapshots]


@pytest.mark.promise("verdict-right", "rates-from-counters")
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


RATE = 8.0
BURSTS = [(2, 0.25), (8, 1.0), (24, 3.0), (48, 6.0), (72, 9.0), (96, 12.0)]  # env steps at once, every so many seconds
NEAR = 0.02


def burst_pipeline(burst: int, period_s: float, mode: str) -> Pipeline:
    """A vector step ends every `period_s`; an update takes 50 ms, in turns with the steps or meanwhile."""
    step_s = period_s - (0.05 * burst if mode == "alternate" else 0.0)
    return Pipeline(burst, lambda _: round(step_s * S), 50 * MS, lead=0 if mode == "alternate" else burst)


@pytest.mark.promise("rates-from-counters")
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


def test_the_collectors_capacity_survives_a_learner_that_holds_it_up() -> None:
    held_up = Pipeline(2, lambda _: 100 * MS, 6 * S, lead=2)  # 20 env steps per second, if it may
    snapshots = held_up.run(400)
    for rates in rates_of(snapshots, "overlap"):
        assert rates.collector_capacity == pytest.approx(20.0, rel=1e-9)
    # Negative control: TorchSpec's, of the calls that ended in the last 10 s.
    finished = [[end for end in held_up.step_ends_ns if 0 <= at - end <= 10 * S] for at in range(60 * S, 400 * S, S)]
    assert min(len(calls) for calls in finished) == 0
