"""The monitor turns messages and shared counters into calls of the logger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.launch.monitor import LATE_S, Monitor
from offpolicy.logger.callbacks import Callback, Callbacks
from offpolicy.logger.metrics import UnknownMetricError
from offpolicy.logger.record import RunHeader
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord
from offpolicy.replay.ring import Ring
from offpolicy.training.run_memory import EPISODE_COLUMNS
from offpolicy.types import (
    NO_ACCOUNT,
    NO_COUNTERS,
    CollectorTotals,
    CoreTotals,
    EpisodeRecord,
    EvalResult,
    LearnerTotals,
    MetricTotals,
    Snapshot,
)

EVERY_S = 10.0
METRICS = MetricTotals(("critic_loss",), np.zeros(1), np.zeros(1))
LEARNER_HELLO: dict[str, Any] = {
    "updates": 0, "device": "cpu", "gpu": None, "threads": 2, "source": "replay",
    "source_kind": "direct",
    "mode": "overlap", "backend": None,  # the mode of a checkpoint
    "metrics": ["critic_loss"], "sums": [0.0], "counts": [0.0], "start": (1000, 0),
    "products": "onednn", "kernels": "fast", "kernels_text": "fast kernels",
}  # fmt: skip


class FakeReports:
    """Reports whose version the test sets."""

    def __init__(self, totals: LearnerTotals | CollectorTotals) -> None:
        self.version, self.totals = 0, totals

    def read(self) -> tuple[LearnerTotals | CollectorTotals, ...]:
        return (self.totals,) if self.version else ()


class FakeCores:
    """A core ledger that counts its readings."""

    num_read = 0

    def read(self) -> CoreTotals:
        self.num_read += 1
        return CoreTotals(self.num_read, 0, {})


class FakeLogger:
    """Keeps the name and the arguments of every call."""

    run_dir = Path("run")

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.view, self.header = self, RunHeader(algo="sac", env_id="X-v0", seed=1, mode="overlap", total_timesteps=100)
        self.last_snapshot = NO_COUNTERS
        self.last_eval: EvalResult | None = None

    def log_interval(self, snapshot: Snapshot) -> dict[str, float]:
        self.calls.append(("log_interval", snapshot.env_steps))
        self.last_snapshot = snapshot
        return {}

    def start_from(self, origin: Snapshot) -> None:
        self.calls.append(("start_from", origin.env_steps))
        self.last_snapshot = origin

    def set_header(self, header: RunHeader) -> None:
        self.header = header

    def set_in_force(self, key: str, value: str) -> None:
        self.calls.append(("set_in_force", (key, value)))

    def set_device(self, device: str, products: str, kernels: str) -> None:
        self.calls.append(("set_device", (device, products, kernels)))

    def tick(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda argument: self.calls.append((name, argument))

    def of(self, name: str) -> list[Any]:
        return [argument for called, argument in self.calls if called == name]


class Run:
    """A run of one learner and one collector, as far as its monitor sees it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.logger = FakeLogger()
        self.control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 1))), 1, 1)
        self.episodes = Ring(memoryview(bytearray(Ring.nbytes(4, EPISODE_COLUMNS, 8))), EPISODE_COLUMNS, np.float64)
        learner = LearnerTotals(NO_ACCOUNT, 5, 0, 0.0, METRICS)
        self.learner_reports = FakeReports(learner)
        self.collector_reports = FakeReports(CollectorTotals(NO_ACCOUNT, 0, 0, 0.0, 0))
        shared: Any = SimpleNamespace(
            control=self.control, rings=[], episodes=[self.episodes], collector_reports=[self.collector_reports],
            evaluator_reports=None, num_ranks=1, learner_reports=self.learner_reports,
        )  # fmt: skip
        self.shared, self.cores = shared, FakeCores()
        self.begin()

    def begin(self, *, start_step: int = 0, callbacks: Callbacks | None = None, **tree: Any) -> None:
        cfg, logger = RunConfig.from_mapping({"log": {"every_s": EVERY_S}, **tree}), self.logger
        clock: Any = lambda: self.now_s  # noqa: E731
        cores: Any = self.cores
        job: Any = SimpleNamespace(cfg=cfg, host=HostInfo(), trace_dir=None, start_step=start_step, restarts=0)
        self.monitor = Monitor(job, self.shared, logger, clock, callbacks or Callbacks(), cores)  # type: ignore[arg-type]

    def send(self, role: str, kind: str, **fields: Any) -> None:
        child: Any = SimpleNamespace(name=f"{role} 0", index=0, is_learner=role == "learner", role=role, pid=7)
        self.monitor.on_message(child, {"kind": kind, **fields})

    def start(self, env_steps: int = 0) -> None:
        self.send("learner", "hello", **LEARNER_HELLO)
        self.send("collector", "hello", env_steps=env_steps, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)

    def learner_updates(self, updates: int) -> None:
        self.learner_reports.totals = LearnerTotals(NO_ACCOUNT, updates, 0, 0.0, METRICS)

    def report(self) -> None:
        self.learner_reports.version += 1
        self.collector_reports.version += 1

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        self.monitor.on_tick()

    def interval(self) -> None:
        """All sides report when they are asked to."""
        self.tick(EVERY_S)
        self.report()
        self.tick(EVERY_S + 0.1)

    def end_episode(self, env_steps: int) -> None:
        self.episodes.append(np.array([EpisodeRecord(env_steps, 0, -1.0, 10, True, False, 1.0)], np.float64))


@pytest.fixture
def run() -> Run:
    return Run()


def test_at_the_start_the_monitor_names_those_that_it_waits_for(run: Run) -> None:
    run.tick(EVERY_S + 1.0)
    run.tick(EVERY_S + 2.0 + LATE_S)
    waits = "starting: waiting for learner 0, collector 0 to load torch and make environments"
    assert run.logger.of("status") == [waits]
    run.start()
    run.tick(3 * EVERY_S)
    run.tick(3 * EVERY_S + 1.0 + LATE_S)
    assert run.logger.of("status")[1:] == ["starting: waiting for the first update"]


def test_the_counters_begin_with_those_of_the_checkpoint_and_only_rank_0_has_its_sums(run: Run) -> None:
    run.shared.num_ranks = 2
    run.send("learner", "hello", **LEARNER_HELLO | {"updates": 30, "sums": [6.0], "counts": [3]})
    run.send("collector", "hello", env_steps=40, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)
    found = run.logger.last_snapshot
    assert found is not None
    assert (found.env_steps, found.iteration) == (40, 0)
    assert [learner.updates for learner in found.learners] == [30, 30]
    assert [learner.metrics.sums.tolist() for learner in found.learners] == [[6.0], [0.0]]
    assert [learner.metrics.counts.tolist() for learner in found.learners] == [[3], [0]]


def test_a_metric_of_a_plugin_alone_is_refused_when_the_learner_starts(run: Run) -> None:
    with pytest.raises(UnknownMetricError, match="train/quantile_spread"):
        run.send("learner", "hello", **{**LEARNER_HELLO, "metrics": ["critic_loss", "quantile_spread"]})
    assert run.logger.calls == []


def test_a_report_is_requested_at_the_interval_and_logged_when_all_sides_have_reported(run: Run) -> None:
    run.start()
    run.tick(EVERY_S - 0.1)
    assert run.control.host[HostWord.REPORT_REQUEST] == 0
    run.tick(EVERY_S)
    run.learner_reports.version = 1
    run.tick(EVERY_S + 0.1)
    assert (run.control.host[HostWord.REPORT_REQUEST], run.logger.of("log_interval")) == (1, [])
    run.collector_reports.version = 1
    run.tick(EVERY_S + 0.2)
    assert run.logger.of("log_interval") == [0]
    run.tick(EVERY_S + 0.3)
    assert len(run.logger.of("log_interval")) == 1


def test_every_episode_is_logged_once(run: Run) -> None:
    run.end_episode(10)
    run.end_episode(20)
    run.tick(0.1)
    run.end_episode(30)
    run.tick(0.2)
    assert [episode.env_steps for episode in run.logger.of("log_episode")] == [10, 20, 30]


def test_the_rest_is_logged_only_if_no_record_holds_it(run: Run) -> None:
    run.start()
    run.report()
    run.monitor.log_rest()
    assert len(run.logger.of("log_interval")) == 1
    run.interval()
    run.monitor.log_rest()
    assert len(run.logger.of("log_interval")) == 2


def test_a_signal_is_answered_by_the_first_checkpoint_that_began_after_it(run: Run) -> None:
    run.control.host[HostWord.SAVE_SIGNALS] = 1
    for env_steps, signals in ((200, 0), (300, 1), (400, 1), (500, 3)):
        run.send("learner", "checkpoint", env_steps=env_steps, signals=signals)
    assert run.logger.of("message") == [
        f"checkpoint saved at env step {env_steps}: SIGUSR1 asked for it" for env_steps in (300, 500)
    ]


def test_a_resume_that_fails_at_its_start_records_nothing_behind_its_checkpoint(run: Run) -> None:
    """The learner reports when it ends; the collectors have not restored their counters yet."""
    run.begin(start_step=400)
    run.send("learner", "hello", **LEARNER_HELLO)
    run.interval()
    run.monitor.log_rest()
    assert run.logger.of("log_interval") == []
    assert run.monitor.snapshot().env_steps == 400


@pytest.mark.parametrize(("updates", "has_eval", "num_records"), [(5, False, 0), (6, False, 1), (5, True, 1)])
def test_a_resumed_run_records_the_step_of_its_checkpoint_only_with_something_new(
    run: Run, updates: int, has_eval: bool, num_records: int
) -> None:
    run.begin(start_step=400)
    run.send("learner", "hello", **(LEARNER_HELLO | {"updates": 5}))
    run.send("collector", "hello", env_steps=400, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)
    run.control.collectors[0][CollectorWord.ENV_STEPS] = 400
    run.learner_updates(updates)
    if has_eval:
        run.send("learner", "eval", **EvalResult(400, -2.0, 0.5, 50.0, 3)._asdict())
    run.interval()
    run.monitor.log_rest()
    assert run.logger.of("log_interval") == [400] * num_records


@pytest.mark.parametrize(("every_min", "requests"), [(0.5, [0, 1, 1, 2]), (0.0, [0, 0, 0, 0])])
def test_a_checkpoint_is_requested_by_the_clock(run: Run, every_min: float, requests: list[int]) -> None:
    run.begin(checkpoint={"every_min": every_min})
    seen = []
    for now_s in (29.0, 30.0, 59.0, 60.0):
        run.tick(now_s)
        seen.append(run.control.host[HostWord.SAVE_REQUEST])
    assert seen == requests


class Kept(Callback):
    """Keeps what it gets; fails at the second record."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def on_record(self, record: Any) -> None:
        if "record" in self.got:
            raise ValueError("enough")
        self.got.append("record")

    def on_evaluation(self, result: EvalResult) -> None:
        self.got.append(result.mean_reward)

    def on_checkpoint(self, path: Path) -> None:
        self.got.append(path)


def test_callbacks_get_records_evaluations_and_checkpoints_and_their_failure_is_shown(run: Run) -> None:
    kept = Kept()
    run.begin(callbacks=Callbacks([kept]))
    run.start()
    run.interval()
    run.send("learner", "checkpoint", env_steps=200, signals=0)
    run.send("learner", "eval", **EvalResult(10, -2.0, 0.5, 50.0, 3)._asdict())
    run.monitor.log_rest()
    assert kept.got == ["record", Path("run/checkpoints/step-000000000200"), -2.0]
    assert [text for text in run.logger.of("message") if "callback" in text][0].endswith("ValueError: enough")
    assert run.monitor.callbacks.section()[0]["calls"] == 4
    run.monitor.callbacks.close()
