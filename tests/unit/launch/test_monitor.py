"""The monitor turns messages and shared counters into calls of the logger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.episodes import EPISODE_COLUMNS, pack_episodes
from offpolicy.config.schema import RunConfig
from offpolicy.launch.monitor import LATE_S, Monitor
from offpolicy.logger.callbacks import Callback, Callbacks
from offpolicy.logger.metrics import UnknownMetricError
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord
from offpolicy.replay.ring import Ring
from offpolicy.types import (
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
FLOPS = {"per_update": 3.0, "per_decision": 2.0, "attainable_per_sec": {"2": 1e9}, "beside_factor": 1.1}


LEARNER_HELLO: dict[str, Any] = {
    "updates": 0, "device": "cpu", "gpu": None, "threads": 2, "source": "replay",
    "source_kind": "direct",
    "mode": "overlap", "backend": None,  # the mode of a checkpoint
    "metrics": ["critic_loss"], "sums": [0.0], "counts": [0.0], "start": (1000, 0),
    "flops": {**FLOPS, "library": "onednn"},
}  # fmt: skip


class FakeReports:
    """Reports whose version the test sets."""

    def __init__(self, totals: Any) -> None:
        self.version, self._totals = 0, totals

    def read(self) -> Any:
        return self._totals if self.version else None


class FakeCores:
    """A core ledger that counts its readings."""

    num_read = 0

    def __init__(self) -> None:
        self.added: list[tuple[str, int]] = []

    def add(self, role: str, pid: int) -> None:
        self.added.append((role, pid))

    def read(self) -> CoreTotals:
        self.num_read += 1
        return CoreTotals(self.num_read, 0, {})


class FakeLogger:
    """Keeps the name and the arguments of every call."""

    run_dir = Path("run")

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.last_snapshot: Snapshot | None = None
        self.last_eval: EvalResult | None = None

    def log_interval(self, snapshot: Snapshot) -> dict[str, float]:
        self.calls.append(("log_interval", snapshot.env_steps))
        self.last_snapshot = snapshot
        return {}

    def start_from(self, origin: Snapshot) -> None:
        self.calls.append(("start_from", origin.env_steps))
        self.last_snapshot = origin

    def set_flops(self, **flops: float) -> None:
        self.calls.append(("set_flops", flops))

    def set_speed(self, learner_threads: int, mode: str) -> None:
        self.calls.append(("set_speed", (learner_threads, mode)))

    def set_in_force(self, key: str, value: str) -> None:
        self.calls.append(("set_in_force", (key, value)))

    def set_device(self, device: str, products: str) -> None:
        self.calls.append(("set_device", (device, products)))

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
        learner = LearnerTotals(None, 5, 0, 0.0, METRICS)
        self.learner_reports = FakeReports((learner,))
        self.collector_reports = FakeReports(CollectorTotals(None, 0, 0, 0.0, 0))
        shared: Any = SimpleNamespace(
            control=self.control,
            rings=[],
            episodes=[self.episodes],
            collector_reports=[self.collector_reports],
            evaluator_reports=None,
            num_ranks=1,
            learner_reports=lambda names: self.learner_reports,
        )
        self.shared, self.cores = shared, FakeCores()
        self.monitor = self._monitor()

    def _monitor(self, *, start_step: int = 0, callbacks: Callbacks | None = None, **tree: Any) -> Monitor:
        cfg, logger = RunConfig.from_mapping({"log": {"every_s": EVERY_S}, **tree}), self.logger
        clock: Any = lambda: self.now_s  # noqa: E731
        cores: Any = self.cores
        later: dict[str, Any] = {"start_step": start_step, "callbacks": callbacks}
        return Monitor(cfg, self.shared, logger, clock, 1, None, cores, **later)  # type: ignore[arg-type]

    def call(self, callback: Callback) -> None:
        """Begins again with a callback."""
        self.monitor = self._monitor(callbacks=Callbacks([callback]))

    def resume_from(self, start_step: int) -> None:
        self.monitor = self._monitor(start_step=start_step)

    def set_config(self, **tree: Any) -> None:
        self.monitor = self._monitor(**tree)

    def send(self, role: str, kind: str, **fields: Any) -> None:
        process = SimpleNamespace(pid=7)
        child: Any = SimpleNamespace(
            name=f"{role} 0", index=0, is_learner=role == "learner", role=role, process=process
        )
        self.monitor.on_message(child, {"kind": kind, **fields})

    def start(self, env_steps: int = 0) -> None:
        self.send("learner", "hello", **LEARNER_HELLO)
        self.send("collector", "hello", env_steps=env_steps, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)

    def learner_updates(self, updates: int) -> None:
        self.learner_reports._totals = (LearnerTotals(None, updates, 0, 0.0, METRICS),)

    def report(self) -> None:
        self.learner_reports.version += 1
        self.collector_reports.version += 1

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        self.monitor.on_tick()

    def end_episode(self, env_steps: int) -> None:
        self.episodes.append(pack_episodes([EpisodeRecord(env_steps, 0, -1.0, 10, True, False, 1.0)]))


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


def test_a_signal_is_said_at_once(run: Run) -> None:
    run.monitor.on_signal()
    assert run.logger.of("stopping") == ["stopping, saving a checkpoint; Ctrl-C again ends now"]


def test_what_the_learner_does_besides_learning_reaches_the_panel(run: Run) -> None:
    for text in ("evaluating", ""):
        run.send("learner", "activity", text=text)
    assert run.logger.of("activity") == ["evaluating", ""]
    assert run.logger.of("message") == []


def test_the_device_that_the_learner_chose_is_known(run: Run) -> None:
    run.start()
    assert run.logger.of("set_device") == [("cpu", "onednn")]


def test_a_metric_of_a_plugin_alone_is_refused_when_the_learner_starts(run: Run) -> None:
    with pytest.raises(UnknownMetricError, match="train/quantile_spread"):
        run.send("learner", "hello", **{**LEARNER_HELLO, "metrics": ["critic_loss", "quantile_spread"]})
    assert run.logger.calls == []


def test_every_snapshot_holds_the_load_of_the_machine(run: Run) -> None:
    system = run.monitor.snapshot().system
    assert system is not None
    assert 0.0 < system.memory_gib < system.memory_total_gib


def test_the_counters_start_once_every_process_has_said_what_they_held(run: Run) -> None:
    run.start(env_steps=40)
    assert run.logger.of("start_from") == [40]
    assert run.logger.of("set_speed") == [(2, "overlap")]
    assert run.logger.of("set_flops") == [{**FLOPS, "attainable_per_sec": {2: 1e9}}]
    assert run.logger.of("message") == ["learner 0: cpu, 2 threads, products by onednn, pid 7", "replay"]


def test_a_report_is_requested_at_the_interval_and_logged_when_all_sides_have_reported(run: Run) -> None:
    run.start()
    run.tick(EVERY_S - 0.1)
    assert run.control.host.get(HostWord.REPORT_REQUEST) == 0
    run.tick(EVERY_S)
    run.learner_reports.version = 1
    run.tick(EVERY_S + 0.1)
    assert (run.control.host.get(HostWord.REPORT_REQUEST), run.logger.of("log_interval")) == (1, [])
    run.collector_reports.version = 1
    run.tick(EVERY_S + 0.2)
    assert run.logger.of("log_interval") == [0]
    run.tick(EVERY_S + 0.3)
    assert len(run.logger.of("log_interval")) == 1


def test_a_late_collector_is_not_waited_for(run: Run) -> None:
    run.start()
    run.tick(EVERY_S)
    run.learner_reports.version = 1
    run.tick(EVERY_S + LATE_S)
    assert run.logger.of("log_interval") == []
    run.tick(EVERY_S + LATE_S + 0.1)
    assert run.logger.of("log_interval") == [0]


def test_before_the_first_update_a_late_learner_costs_a_status_line(run: Run) -> None:
    run.start()
    run.control.collectors[0].set(CollectorWord.ENV_STEPS, 300)
    run.tick(EVERY_S)
    run.tick(EVERY_S + LATE_S + 0.1)
    assert run.logger.of("status") == ["collecting steps before learning 300/1000"]
    assert run.logger.of("log_interval") == []


def test_a_late_learner_that_has_updated_costs_nothing(run: Run) -> None:
    run.start()
    run.control.leader.set(RankWord.UPDATES, 5)
    run.tick(EVERY_S)
    run.tick(EVERY_S + LATE_S + 0.1)
    assert run.logger.of("status") == run.logger.of("log_interval") == []


def test_every_episode_is_logged_once(run: Run) -> None:
    run.end_episode(10)
    run.end_episode(20)
    run.tick(0.1)
    run.end_episode(30)
    run.tick(0.2)
    assert [episode.env_steps for episode in run.logger.of("log_episode")] == [10, 20, 30]


def test_episodes_that_were_overwritten_are_warned_of(run: Run) -> None:
    for env_steps in range(6):
        run.end_episode(env_steps)
    run.tick(0.1)
    assert run.logger.of("message") == ["warning: not recorded, as too many ended at once: 2 episodes"]
    assert [episode.env_steps for episode in run.logger.of("log_episode")] == [2, 3, 4, 5]


def test_the_rest_is_logged_only_if_no_record_holds_it(run: Run) -> None:
    run.start()
    run.report()
    run.monitor.log_rest()
    assert len(run.logger.of("log_interval")) == 1
    run.tick(EVERY_S)
    run.report()
    run.tick(EVERY_S + 0.1)
    run.monitor.log_rest()
    assert len(run.logger.of("log_interval")) == 2


def test_an_evaluation_since_the_last_record_is_worth_another(run: Run) -> None:
    run.start()
    run.tick(EVERY_S)
    run.report()
    run.tick(EVERY_S + 0.1)
    run.send("learner", "eval", **EvalResult(10, -2.0, 0.5, 50.0, 3)._asdict())
    run.monitor.log_rest()
    assert len(run.logger.of("log_interval")) == 2
    assert run.logger.of("log_eval") == [run.monitor.last_eval]


def test_a_resumed_run_has_the_evaluation_of_its_logger_which_is_worth_no_record(run: Run) -> None:
    run.logger.last_eval = EvalResult(30, -2.0, 0.5, 50.0, 3)
    run.resume_from(40)
    assert run.monitor.last_eval == run.logger.last_eval
    run.start(env_steps=40)
    run.logger.last_snapshot = run.monitor.snapshot()
    run.monitor.log_rest()
    assert run.logger.of("log_interval") == []


def test_a_run_that_never_started_logs_no_counters(run: Run) -> None:
    run.monitor.log_rest()
    assert run.logger.calls == []


def test_the_end_of_a_run_is_kept_for_its_summary(run: Run) -> None:
    run.send("learner", "checkpoint", env_steps=200, signals=0)
    run.send("learner", "warning", text="slow disk")
    run.send("learner", "done", is_complete=False, stopped_by=3, env_steps=250)
    assert (run.monitor.saved_steps, run.monitor.is_complete, run.monitor.stopped_by) == ([200], False, 3)
    assert run.logger.of("message") == ["warning: slow disk"]


def test_a_signal_is_answered_by_the_first_checkpoint_that_began_after_it(run: Run) -> None:
    run.control.host.set(HostWord.SAVE_SIGNALS, 1)
    for env_steps, signals in ((200, 0), (300, 1), (400, 1), (500, 3)):
        run.send("learner", "checkpoint", env_steps=env_steps, signals=signals)
    assert run.logger.of("message") == [
        f"checkpoint saved at env step {env_steps}: SIGUSR1 asked for it" for env_steps in (300, 500)
    ]


def test_the_cores_are_read_once_per_record_and_at_the_end_while_the_learners_are_there(run: Run) -> None:
    run.start()
    for tick in range(3):
        run.tick(EVERY_S + tick / 10)
    assert (run.cores.num_read, run.monitor.snapshot().cores) == (0, None)
    run.report()
    run.tick(EVERY_S + 0.3)
    assert run.logger.last_snapshot is not None
    assert (run.cores.num_read, run.logger.last_snapshot.cores) == (1, CoreTotals(1, 0, {}))
    run.send("learner", "done", is_complete=True, stopped_by=None, env_steps=250)
    run.monitor.log_rest()
    assert (run.cores.num_read, run.monitor.snapshot().cores) == (2, CoreTotals(2, 0, {}))


def test_a_core_that_the_kernel_takes_away_costs_its_readings_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> CoreTotals:
        raise OSError("/proc/stat lacks cpu1")

    run.start()
    run.report()
    run.tick(EVERY_S)
    monkeypatch.setattr(run.cores, "read", refuse)
    run.report()
    run.tick(2 * EVERY_S)
    assert len(run.logger.of("log_interval")) == 2
    assert run.monitor.snapshot().cores == CoreTotals(1, 0, {})


def test_the_newest_gains_of_the_learner_are_kept(run: Run) -> None:
    assert run.monitor.virtual_speedup is None
    for steps_per_sec in (90.0, 100.0):
        run.send("learner", "virtual_speedup", steps_per_sec=steps_per_sec, gains={"train": {"10": [1.1]}})
    assert run.monitor.virtual_speedup == (100.0, {"train": {"10": [1.1]}})


def test_a_collector_is_never_taken_for_one_that_has_not_reported_yet(run: Run) -> None:
    """Windows are formed by place: the first counters of the second collector are not those of the first."""
    first, second, third = (FakeReports(CollectorTotals(None, steps, 0, 0.0, 0)) for steps in (1, 2, 3))
    run.shared.collector_reports = [first, second, third]

    def collected() -> list[int]:
        return [totals.env_steps for totals in run.monitor.snapshot().collectors]

    assert collected() == []
    second.version = third.version = 1
    assert collected() == []
    first.version = 1
    assert collected() == [1, 2, 3]
    second.version = 0
    assert collected() == [1]


@pytest.mark.parametrize(("kind", "line"), [("note", "text"), ("warning", "warning: text")])
def test_a_line_of_a_process_is_shown(run: Run, kind: str, line: str) -> None:
    run.send("learner", kind, text="text")
    assert run.logger.of("message") == [line]


def test_a_resume_that_fails_at_its_start_records_nothing_behind_its_checkpoint(run: Run) -> None:
    """The learner reports when it ends; the collectors have not restored their counters yet."""
    run.resume_from(400)
    run.send("learner", "hello", **LEARNER_HELLO)
    run.tick(EVERY_S)
    run.report()
    run.tick(EVERY_S + 0.1)
    run.monitor.log_rest()
    assert run.logger.of("log_interval") == []
    assert run.monitor.snapshot().env_steps == 400


@pytest.mark.parametrize(("updates", "has_eval", "num_records"), [(5, False, 0), (6, False, 1), (5, True, 1)])
def test_a_resumed_run_records_the_step_of_its_checkpoint_only_with_something_new(
    run: Run, updates: int, has_eval: bool, num_records: int
) -> None:
    run.resume_from(400)
    run.send("learner", "hello", **(LEARNER_HELLO | {"updates": 5}))
    run.send("collector", "hello", env_steps=400, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)
    run.control.collectors[0].set(CollectorWord.ENV_STEPS, 400)
    run.learner_updates(updates)
    if has_eval:
        run.send("learner", "eval", **EvalResult(400, -2.0, 0.5, 50.0, 3)._asdict())
    run.tick(EVERY_S)
    run.report()
    run.tick(EVERY_S + 0.1)
    run.monitor.log_rest()
    assert run.logger.of("log_interval") == [400] * num_records


def test_a_resumed_run_counts_on_from_its_checkpoint(run: Run) -> None:
    run.resume_from(400)
    run.start(env_steps=400)
    for steps in (400, 408):
        run.control.collectors[0].set(CollectorWord.ENV_STEPS, steps)
        assert run.monitor.snapshot().env_steps == steps


@pytest.mark.parametrize(("every_min", "requests"), [(0.5, [0, 1, 1, 2]), (0.0, [0, 0, 0, 0])])
def test_a_checkpoint_is_requested_by_the_clock(run: Run, every_min: float, requests: list[int]) -> None:
    run.set_config(checkpoint={"every_min": every_min})
    seen = []
    for now_s in (29.0, 30.0, 59.0, 60.0):
        run.tick(now_s)
        seen.append(run.control.host.get(HostWord.SAVE_REQUEST))
    assert seen == requests


def test_a_collector_that_was_started_again_is_shown_and_counted_and_the_run_keeps_its_baseline(run: Run) -> None:
    run.start(env_steps=40)
    run.send("collector", "restart", text="collector 0 died")
    run.send("collector", "restarted", pid=99)
    run.control.collectors[0].set(CollectorWord.RESTARTS, 1)
    run.send("collector", "hello", env_steps=70, vector_steps=0, policy_lag_sum=0.0, policy_steps=0)
    assert run.logger.of("start_from") == [40]
    assert "warning: collector 0 died" in run.logger.of("message")
    assert run.cores.added == [("collector", 99)]
    assert run.monitor.snapshot().restarts == 1


def test_learners_that_begin_again_are_counted_and_their_updates_recorded_once(run: Run) -> None:
    """The record of 50 updates is there: there is none until the learners have made more."""
    run.start()
    logged = []
    for now_s, updates in ((10.0, 50), (20.0, 30), (30.0, 49), (40.0, 51)):
        if updates == 30:
            run.send("learner", "restart", text="learner 0 died")
            run.send("learner", "restarted", pid=99)
        run.learner_updates(updates)
        run.tick(now_s)
        run.report()
        run.tick(now_s + 0.1)
        logged.append(len(run.logger.of("log_interval")))
    assert logged == [1, 1, 1, 2]
    assert run.logger.of("activity")[-3:] == [
        "learner restarted: 20 updates still to be made again",
        "learner restarted: 1 update still to be made again",
        "",
    ]
    assert run.monitor.snapshot().learner_restarts == 1
    assert run.cores.added == [("learner", 99)]
    run.learner_updates(40)  # a stop before they have caught up
    run.monitor.log_rest()
    assert len(run.logger.of("log_interval")) == 2


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
    run.call(kept)
    run.start()
    run.tick(EVERY_S)
    run.report()
    run.tick(EVERY_S + 0.1)
    run.send("learner", "checkpoint", env_steps=200, signals=0)
    run.send("learner", "eval", **EvalResult(10, -2.0, 0.5, 50.0, 3)._asdict())
    run.monitor.log_rest()
    assert kept.got == ["record", Path("run/checkpoints/step-000000000200"), -2.0]
    assert [text for text in run.logger.of("message") if "callback" in text][0].endswith("ValueError: enough")
    assert run.monitor.callbacks.section()[0]["calls"] == 4
    run.monitor.callbacks.close()


def test_a_learner_that_began_again_says_with_what_it_goes_on(run: Run) -> None:
    """Its checkpoint may have another number of threads and another mode than the dead one had chosen since."""
    run.start()
    assert run.logger.of("set_speed") == [(2, "overlap")]
    assert run.logger.of("set_in_force") == [("replay.source", "direct")]
    run.send("learner", "hello", **(LEARNER_HELLO | {"threads": 1, "mode": "alternate"}))
    assert run.logger.of("set_speed")[1:] == [(1, "alternate")]
    assert len(run.logger.of("set_device")) == 1
