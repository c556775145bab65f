from __future__ import annotations

import dataclasses
import inspect
import io
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.analysis.records import event_paths, read_event_rows
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import LogConfig
from offpolicy.errors import ConfigError, OffPolicyError
from offpolicy.logger import logger as logger_module
from offpolicy.logger import step_totals
from offpolicy.logger.console import PlainLines
from offpolicy.logger.logger import OffPolicyLogger, open_logger, open_step_logger
from offpolicy.logger.metrics import UnknownMetricError
from offpolicy.logger.predictions import possible_advice
from offpolicy.logger.record import RunHeader
from offpolicy.logger.sinks import JsonlSink, SafeSink, SinkContext, Summary
from offpolicy.logger.step_totals import StepTotals
from offpolicy.logger.summary import RunResult, build_summary
from offpolicy.timing.bottleneck import LEARNER_ADVICE, Bottleneck, Verdict
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import (
    Account,
    ArrivalTotals,
    CollectorTotals,
    Cooldown,
    EpisodeRecord,
    EvalResult,
    LearnerTotals,
    SchedulerStats,
    Snapshot,
)


@pytest.fixture
def logger(tmp_path: Path, header: RunHeader) -> OffPolicyLogger:
    stream = io.StringIO()
    view = PlainLines(stream, header)
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), view.message)
    return OffPolicyLogger(tmp_path, {}, header, [sink], view)


def records_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_each_record_covers_the_time_since_the_last_one(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    logger.log_interval(make_snapshot(100))
    slow = make_snapshot(200)
    slow.learners[0].account.phases_ns["train"] += 100 * 1_000_000
    assert logger.log_interval(slow)["timing/learner_train_ms"] == pytest.approx(7.1)
    logger.close()


def test_a_record_at_the_env_step_of_the_last_one_takes_its_place_and_covers_its_time(
    logger: OffPolicyLogger, make_snapshot: Any, tmp_path: Path
) -> None:
    logger.start_from(make_snapshot(0))
    logger.log_interval(make_snapshot(100))
    begun, slow = make_snapshot(200), make_snapshot(200)
    logger.log_interval(begun)
    slow.learners[0].account.phases_ns["train"] += 100 * 1_000_000
    assert logger.log_interval(slow)["timing/learner_train_ms"] == pytest.approx(7.1)  # over the 100 iterations of both
    logger.log_interval(make_snapshot(300))
    logger.close()
    assert [record["env_steps"] for record in records_of(tmp_path)] == [1100, 1200, 1300]


def test_the_third_record_at_one_env_step_begins_where_the_first_one_began(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    logger.start_from(make_snapshot(0))
    logger.log_interval(make_snapshot(100))
    for _ in range(3):
        record = logger.log_interval(make_snapshot(200))
    assert record["timing/learner_train_ms"] == pytest.approx(6.1)
    logger.close()


def test_records_reach_the_sinks(logger: OffPolicyLogger, make_snapshot: Any, tmp_path: Path) -> None:
    logger.log_interval(make_snapshot(100))
    logger.log_interval(make_snapshot(200))
    logger.close()
    assert [record["env_steps"] for record in records_of(tmp_path)] == [1100, 1200]


def test_an_evaluation_is_in_every_record_from_then_on(
    logger: OffPolicyLogger, make_snapshot: Any, evaluation: EvalResult
) -> None:
    assert "eval/mean_reward" not in logger.log_interval(make_snapshot(100))
    logger.log_eval(evaluation)
    logger.log_interval(make_snapshot(200))
    assert logger.log_interval(make_snapshot(300))["eval/mean_reward"] == -150.25
    logger.close()


def test_episodes_reach_file_and_curve(logger: OffPolicyLogger, make_snapshot: Any, tmp_path: Path) -> None:
    logger.log_episode(EpisodeRecord(200, 0, -900.0, 200, False, True, float("nan")))
    assert logger.log_interval(make_snapshot(100))["rollout/ep_rew_mean"] == -900.0
    logger.close()
    assert json.loads((tmp_path / "episodes.jsonl").read_text())["ep_return"] == -900.0


def test_episodes_and_evaluations_of_another_loop_may_hold_numbers_of_numpy(
    logger: OffPolicyLogger, make_snapshot: Any, tmp_path: Path
) -> None:
    """JSON holds none of them but float64: files were disabled for the rest of the run."""
    some, count, yes = np.float32(-900.0), np.int64(200), np.bool_(True)
    logger.log_episode(EpisodeRecord(count, np.int32(0), some, count, np.bool_(False), yes, np.float32("nan")))  # type: ignore[arg-type]
    logger.log_eval(EvalResult(count, some, np.float32(0.0), some, count))  # type: ignore[arg-type]
    logger.log_interval(make_snapshot(100))
    logger.close()
    episode = json.loads((tmp_path / "episodes.jsonl").read_text())
    assert (episode["ep_return"], episode["ep_length"], episode["truncated"]) == (-900.0, 200, True)
    assert records_of(tmp_path)[-1]["eval/mean_reward"] == -900.0
    logger.log_episode(EpisodeRecord(1, 0, np.ones(2), 1, False, True, 1.0))  # type: ignore[arg-type]  # no number
    assert json.dumps(logger.last_eval) == "[200, -900.0, 0.0, -900.0, 200, 0, null, null]"


def test_an_unknown_metric_is_refused(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    snapshot = make_snapshot(100)
    metrics = snapshot.learners[0].metrics._replace(names=("actor_loss", "vibes", "alpha_loss", "ent_coef", "q_mean"))
    odd = LearnerTotals(None, 100, 0, 0.0, metrics)
    with pytest.raises(UnknownMetricError, match="train/vibes"):
        logger.log_interval(Snapshot(1.0, 1, 1, (odd,), (), 0, 1, 0.0))
    logger.close()


def test_a_resumed_run_does_not_count_what_was_restored(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    now = make_snapshot(300)
    restored = 49_000
    learner, collector = now.learners[0], now.collectors[0]
    metrics = learner.metrics
    origin = Snapshot(
        wall_s=0.0,
        env_steps=restored,
        iteration=0,
        learners=(
            LearnerTotals(None, restored, 0, 0.0, metrics._replace(sums=metrics.sums * 0, counts=metrics.counts * 0)),
        ),
        collectors=(CollectorTotals(None, restored, restored, 0.0, restored),),
        replay_rows=0,
        replay_capacity=1,
        update_debt=0.0,
    )
    logger.start_from(origin)
    steps = restored + 300
    record = logger.log_interval(
        Snapshot(
            wall_s=4.0,
            env_steps=steps,
            iteration=300,
            learners=(LearnerTotals(learner.account, steps, learner.samples, learner.sample_age_sum, metrics),),
            collectors=(CollectorTotals(collector.account, steps, steps, 0.0, steps),),
            replay_rows=0,
            replay_capacity=1,
            update_debt=0.0,
        )
    )
    assert record["perf/steps_per_sec"] == pytest.approx(1000 / 6.6)
    assert record["perf/utd"] == pytest.approx(1.0)
    assert record["train/n_updates"] == steps
    logger.close()


def test_the_time_left_is_not_multiplied_by_an_evaluation(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    logger.log_interval(make_snapshot(100))
    logger.log_interval(make_snapshot(10_000))
    paused = make_snapshot(10_001)
    paused.collectors[0].account.phases_ns["learner_wait"] += 1
    record = logger.log_interval(paused)
    assert record["time/eta_s"] == pytest.approx(8999 * 0.0066, rel=0.01)
    logger.close()


def test_the_baseline_is_the_first_snapshot_of_learning(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    origin, warm, first, last = (make_snapshot(updates) for updates in (0, 0, 100, 1000))
    logger.start_from(origin)
    assert logger.baseline is origin
    logger.log_interval(warm)
    logger.log_interval(first)
    assert logger.baseline is origin
    logger.log_interval(last)
    assert logger.baseline is first
    logger.close()


def test_a_collector_report_from_before_learning_does_not_start_the_baseline(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    origin, late = make_snapshot(0), make_snapshot(4)
    stale = dataclasses.replace(late, collectors=origin.collectors)
    logger.start_from(origin)
    logger.log_interval(stale)
    logger.log_interval(make_snapshot(1000))
    logger.log_interval(make_snapshot(9000))
    assert logger.baseline is not None
    assert logger.baseline.iteration == 1000
    logger.close()


@pytest.mark.parametrize("ranks", ["spread", "all"])
def test_every_rank_is_written_on_request_only(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, ranks: str
) -> None:
    snapshot = make_snapshot(100)
    two = dataclasses.replace(snapshot, learners=snapshot.learners * 2)
    stream = io.StringIO()
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), print)
    view = PlainLines(stream, header)
    record = OffPolicyLogger(tmp_path, {}, header, [sink], view, LogConfig(ranks=ranks)).log_interval(two)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert ("rank/1/train_ms" in json.loads(line)) is (ranks == "all")
    assert record.keys() == json.loads(line).keys(), "callbacks get what is written"


def test_advice_is_held_against_what_auto_stands_for(tmp_path: Path, header: RunHeader) -> None:
    config = RunConfig().to_mapping()
    assert (config["device"], config["replay"]["source"]) == ("auto", "auto")
    logger = OffPolicyLogger(tmp_path, config, header, [], PlainLines(io.StringIO(), header))
    logger.set_device("cuda:1", "")
    logger.set_in_force("replay.source", "resident")
    assert (logger.config_mapping["device"], logger.config_mapping["replay"]["source"]) == ("cuda", "resident")
    assert logger.config_mapping["replay"]["slots"] == config["replay"]["slots"]
    verdict = Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "", LEARNER_ADVICE[LearnerPhase.TRAIN])
    advised = possible_advice(verdict, logger.config_mapping, has_gpu=True).advice
    assert "device" not in {advice.key for advice in advised}


@pytest.mark.parametrize(
    ("asked", "chosen", "has_gpu"), [("auto", "cpu", False), ("auto", "cuda:0", True), ("cpu", "cpu", True)]
)
def test_a_gpu_that_torch_cannot_use_is_none_to_advise(
    logger: OffPolicyLogger, asked: str, chosen: str, has_gpu: bool
) -> None:
    """There is a driver. `device=auto` becomes the CPU where torch is a CPU build; `device=cpu` says nothing of it."""
    logger.header = dataclasses.replace(logger.header, has_gpu=True)
    logger.config_mapping = {"device": asked}
    for _ in range(2):  # again when learners were started again
        logger.set_device(chosen, "")
    assert logger.header.has_gpu is has_gpu


def test_a_slow_rank_causes_one_warning(tmp_path: Path, header: RunHeader, make_snapshot: Any) -> None:
    """Two ranks, 6.4 ms of work in an iteration of 6.6; from second 20 on, rank 0 waits 6 ms of it for rank 1."""

    def snapshot(second: int) -> Snapshot:
        now = make_snapshot(100 * second)
        slow = now.learners[0]
        waited_ns = 100 * max(0, second - 20) * 6_000_000
        phases_ns = {**slow.account.phases_ns, "rank_barrier": waited_ns}
        phases_ns["train"] -= waited_ns
        fast = dataclasses.replace(slow, account=dataclasses.replace(slow.account, phases_ns=phases_ns))
        return dataclasses.replace(now, wall_s=float(second), learners=(fast, slow))

    stream = io.StringIO()
    logger = OffPolicyLogger(tmp_path, {}, header, [], PlainLines(stream, header))
    for second in range(0, 200, 2):
        logger.log_interval(snapshot(second))
    (line,) = [number for number, line in enumerate(stream.getvalue().splitlines()) if line.startswith("warning")]
    # Second 22 is the first slow window, and 82 is a minute later: the record's line, then the warning.
    assert line == 82 // 2 + 1
    assert "learner rank 1 has been slow for 60 s: 6.4 ms of its own" in stream.getvalue()


def test_the_rank_that_the_others_wait_for_is_in_the_record(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    now = make_snapshot(100)
    late = ArrivalTotals(iterations=100, late=98, late_ns=300_000_000, capped_ns=300_000_000, clock_error_ns=0)
    ranks = (now.learners[0], dataclasses.replace(now.learners[0], arrivals=late))
    record = logger.log_interval(dataclasses.replace(now, learners=ranks))
    assert (record["rank/straggler"], record["rank/late_ms"]) == (1, pytest.approx(3.0))
    logger.close()


def test_no_time_left_is_guessed_before_there_is_anything_to_guess_from(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    early = [logger.log_interval(make_snapshot(updates)) for updates in (0, 10, 20, 500)]
    assert all("time/eta_s" not in record for record in early)
    known = logger.log_interval(make_snapshot(1000))
    assert known["time/eta_s"] == pytest.approx(18_000 * 0.0066, rel=0.01)
    logger.close()


def test_the_time_left_is_that_of_all_hosts(tmp_path: Path, header: RunHeader, make_snapshot: Any) -> None:
    two = dataclasses.replace(header, num_hosts=2)
    logger = OffPolicyLogger(tmp_path, {}, two, [], PlainLines(io.StringIO(), two))
    logger.log_interval(make_snapshot(100))
    record = logger.log_interval(make_snapshot(10_000))
    assert record["time/eta_s"] == pytest.approx(9000 * 0.0066 / 2)


def test_dropped_calls_are_counted_by_sink(tmp_path: Path, header: RunHeader, make_snapshot: Any) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    stream = io.StringIO()
    view = PlainLines(stream, header)
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), view.message)
    logger = OffPolicyLogger(tmp_path, {}, header, [sink], view)
    logger.log_interval(make_snapshot(100))
    logger.log_interval(make_snapshot(200))
    logger.close()
    assert logger.num_dropped == {"metrics.jsonl": 3}  # two records and the first verdict
    assert stream.getvalue().count("warning: metrics.jsonl is disabled") == 1
    assert "step=1200/20000" in stream.getvalue()


@pytest.mark.parametrize("tensorboard", [True, False])
def test_the_configuration_chooses_the_sinks(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch, tensorboard: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    cfg = RunConfig.from_mapping({"log": {"tensorboard": tensorboard}})
    logger = open_logger(tmp_path, cfg, header, None)
    logger.log_interval(make_snapshot(100))
    logger.close()
    assert bool(list(tmp_path.glob("events.out.tfevents.*"))) is tensorboard
    assert len(records_of(tmp_path)) == 1
    assert stream.getvalue().startswith("5% step=1100/20000")


@pytest.mark.parametrize(("word", "is_full"), [(True, False), ("full", True)])
def test_full_hands_every_key_to_tensorboard(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, word: bool | str, is_full: bool
) -> None:
    cfg = RunConfig.from_mapping({"log": {"tensorboard": word, "panel": "off"}})
    logger = open_logger(tmp_path, cfg, header, None)
    logger.log_interval(make_snapshot(100))
    logger.close()
    (row,) = read_event_rows(event_paths(tmp_path))
    assert "perf/steps_per_sec" in row
    assert ("replay/rows" in row) is is_full


def test_a_sink_that_cannot_open_does_not_stop_the_run(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    (tmp_path / "metrics.jsonl").mkdir()
    logger = open_logger(tmp_path, RunConfig(), header, None)
    logger.log_interval(make_snapshot(100))
    logger.close()
    assert "warning: metrics.jsonl is disabled for the rest of the run: IsADirectoryError" in stream.getvalue()
    assert list(tmp_path.glob("events.out.tfevents.*"))


class Texts(JsonlSink):
    """Keeps the texts that are written."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir, None)
        self.texts: list[tuple[str, str, int]] = []

    def text(self, tag: str, content: str, env_steps: int) -> None:
        self.texts.append((tag, content, env_steps))


def test_a_changed_verdict_is_written_as_a_text(tmp_path: Path, header: RunHeader, make_snapshot: Any) -> None:
    view, sink = PlainLines(io.StringIO(), header), Texts(tmp_path)
    logger = OffPolicyLogger(tmp_path, {}, header, [SafeSink("texts", sink, view.message)], view)
    for updates in (0, 100, 200, 300):
        logger.log_interval(make_snapshot(updates))
    logger.close()
    assert [(tag, content.splitlines()[0], env_steps) for tag, content, env_steps in sink.texts] == [
        ("verdict", "**warming up**", 1000), ("verdict", "**learner(train 92%)**", 1100),
    ]  # fmt: skip
    assert "- threads.learner=auto: the fastest number of threads is found while the run trains" in sink.texts[1][1]


def test_a_verdict_that_holds_for_one_window_only_is_not_shown(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    for updates in (100, 200):
        logger.log_interval(make_snapshot(updates))
    odd = make_snapshot(300)
    odd.learners[0].account.phases_ns["collector_wait"] += 10**12
    assert logger.log_interval(odd)["perf/bottleneck"] == "learner(train 0%)"  # of this window
    logger.close()


def test_sides_that_report_at_different_moments_do_not_change_the_ratio(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    """Three updates beside two vector steps were 1.5 updates per env step, and a third of what the learner can do."""
    logger.log_interval(make_snapshot(100))
    record = logger.log_interval(dataclasses.replace(make_snapshot(103), collectors=make_snapshot(102).collectors))
    assert record["perf/utd"] == pytest.approx(1.0)
    assert record["perf/learner_capacity"] == pytest.approx(
        logger.log_interval(make_snapshot(200))["perf/learner_capacity"]
    )
    logger.close()


def test_a_collector_that_has_not_reported_keeps_its_capacity_and_not_its_throughput(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    logger.log_interval(make_snapshot(100))
    before = logger.log_interval(make_snapshot(200))
    record = logger.log_interval(dataclasses.replace(make_snapshot(300), collectors=make_snapshot(200).collectors))
    assert record["perf/collector_capacity"] == pytest.approx(before["perf/collector_capacity"])
    assert "perf/steps_per_sec" not in record
    logger.close()


def test_the_last_record_is_judged_without_what_came_after_the_last_iteration(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    """A final evaluation of a minute: its phase shows it, rates, time left and verdict do not know it."""
    for updates in (100, 200, 300):
        before = logger.log_interval(make_snapshot(updates))
    snapshot = make_snapshot(400)
    learner, collector = (
        dataclasses.replace(totals, account=evaluated(totals.account, phase))
        for totals, phase in ((snapshot.learners[0], "evaluation"), (snapshot.collectors[0], "learner_wait"))
    )
    record = logger.log_interval(dataclasses.replace(snapshot, learners=(learner,), collectors=(collector,)))
    for rate in ("steps_per_sec", "updates_per_sec", "samples_per_sec", "learner_capacity", "predicted_steps_per_sec"):
        assert record[f"perf/{rate}"] == pytest.approx(before[f"perf/{rate}"])
    assert record["perf/bottleneck"] == "learner(train 92%)"
    assert record["timing/learner_evaluation_ms"] == pytest.approx(600.0)
    logger.close()


def evaluated(account: Account, phase: str) -> Account:
    """The account with a cooldown of a minute in `phase`."""
    minute_ns = 60 * 10**9
    phases_ns = {**account.phases_ns, phase: account.phases_ns[phase] + minute_ns}
    after = Cooldown({**dict.fromkeys(phases_ns, 0), phase: minute_ns}, 0, SchedulerStats())
    return dataclasses.replace(account, wall_ns=account.wall_ns + minute_ns, phases_ns=phases_ns, cooldown=after)


def test_a_window_without_a_verdict_follows_one_with_a_new_verdict(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    """A collector that did not report leaves the window without a verdict, which is no error."""
    first = make_snapshot(500)
    assert "perf/bottleneck" in logger.log_interval(first)
    late = dataclasses.replace(make_snapshot(600), collectors=first.collectors)
    assert "perf/bottleneck" not in logger.log_interval(late)
    logger.close()


HEADER = RunHeader(algo="es", env_id="X-v0", seed=0, mode="overlap", total_timesteps=1000)
QUIET = LogConfig(every_s=1e-9, tensorboard=False, panel="off")


class Calls(PlainLines):
    """Plain lines that note which of their methods were called."""

    noted = ("record", "last_record", "status", "stopping", "tick", "evaluation", "activity", "finish", "close")

    def __init__(self, header: RunHeader) -> None:
        super().__init__(io.StringIO(), header)
        self.names: list[str] = []
        self.headers: list[RunHeader] = []

    def __getattribute__(self, name: str) -> Any:
        if name in Calls.noted:
            self.names.append(name)
        return super().__getattribute__(name)

    def set_header(self, header: RunHeader) -> None:
        self.headers.append(header)


def test_the_record_behind_the_last_iteration_is_the_last_one(
    tmp_path: Path, header: RunHeader, make_snapshot: Any
) -> None:
    view = Calls(dataclasses.replace(header, total_timesteps=1))  # the budget was spent long ago
    logger = OffPolicyLogger(tmp_path, {}, view._header, [], view)
    for updates in (100, 200):
        logger.log_interval(make_snapshot(updates))
    assert view.names == ["record", "record"]
    end = make_snapshot(300)
    account = end.learners[0].account
    ended = dataclasses.replace(account, cooldown=Cooldown(dict.fromkeys(account.phases_ns, 0), 0, SchedulerStats()))
    learner = dataclasses.replace(end.learners[0], account=ended)
    logger.log_interval(dataclasses.replace(end, learners=(learner,)))
    assert view.names[2] == "last_record"


class Ends(JsonlSink):
    """Notes how a run ended."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir, None)
        self.ends: list[str] = []

    def finish(self, summary: Summary) -> None:
        self.ends.append(summary["status"])

    def close(self) -> None:
        super().close()
        self.ends.append("closed")


def test_the_end_of_a_run_reaches_every_sink_and_the_terminal(
    tmp_path: Path, header: RunHeader, make_snapshot: Any
) -> None:
    view, inner = Calls(header), [Ends(tmp_path), Ends(tmp_path)]
    logger = OffPolicyLogger(tmp_path, {}, header, [SafeSink("ends", one, print) for one in inner], view)
    result = RunResult(status="failed", exit_code=65, reason="NaN")
    logger.finish(build_summary(make_snapshot(100), header, result))
    logger.close()
    assert [one.ends for one in inner] == [["failed", "closed"]] * 2
    assert view.names == ["finish", "close"]


def test_an_evaluation_is_shown_when_it_has_ended(tmp_path: Path, header: RunHeader, evaluation: EvalResult) -> None:
    view = Calls(header)
    logger = OffPolicyLogger(tmp_path, {}, header, [], view)
    logger.log_eval(evaluation)
    logger.activity("evaluating")
    assert view.names == ["evaluation", "activity"]


def test_what_the_learner_has_chosen_is_shown_and_kept(tmp_path: Path, header: RunHeader) -> None:
    view = Calls(header)
    logger = OffPolicyLogger(tmp_path, {}, header, [], view)
    logger.set_speed(2, "overlap", {1: 0.006, 2: 0.004})
    logger.set_speed(1, "free")  # it does not try again: what it tried before stays
    logger.set_update_mode("graph", "it is faster")
    logger.set_device("cuda:0", "oneDNN")
    assert [(one.learner_threads, one.mode, one.update_mode, one.device) for one in view.headers] == [
        (2, "overlap", "", ""), (1, "free", "", ""), (1, "free", "graph", ""), (1, "free", "graph", "cuda:0"),
    ]  # fmt: skip
    assert logger.header.tried_update_s == {1: 0.006, 2: 0.004}
    assert (logger.header.update_reason, logger.header.products) == ("it is faster", "oneDNN")


def test_the_work_of_the_networks_and_what_the_machine_attains_are_kept(logger: OffPolicyLogger) -> None:
    logger.set_flops(3e6, 2e3, {1: 1e9, 2: 2e9}, beside_factor=1.2)
    found = logger.header
    assert (found.flops_per_update, found.flops_per_decision, found.beside_factor) == (3e6, 2e3, 1.2)
    assert found.attainable_by_threads == {1: 1e9, 2: 2e9}
    logger.close()


def test_the_rates_of_a_resumed_run_begin_where_it_went_on(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    """Without timing there are no accounts, which know when their process began."""
    logger.start_from(make_snapshot(1000, is_timed=False))
    record = logger.log_interval(make_snapshot(1100, is_timed=False))
    assert record["perf/steps_per_sec"] == pytest.approx(100 / 0.66)
    logger.close()


def test_the_error_of_the_predictions_is_in_the_record_in_percent(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    for updates in range(100, 2100, 100):
        record = logger.log_interval(make_snapshot(updates))
    predicted, came = record["perf/predicted_steps_per_sec"], record["perf/steps_per_sec"]
    assert predicted != pytest.approx(came)
    assert record["perf/prediction_error_pct"] == pytest.approx(100.0 * abs(predicted / came - 1.0))
    logger.close()


def test_sinks_of_plug_ins_are_opened_with_where_the_run_goes_on(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SinkContext] = []

    def open_plugins(names: object, options: object, context: SinkContext, warn: Any) -> list[SafeSink]:
        opened.append(context)
        return [SafeSink("texts", texts, warn)]

    (tmp_path / "texts").mkdir()
    texts = Texts(tmp_path / "texts")
    monkeypatch.setattr(logger_module, "open_plugins", open_plugins)
    cfg = RunConfig.from_mapping({"log": {"panel": "off", "tensorboard": False}})
    with closing(open_logger(tmp_path, cfg, header, 500)) as logger:
        logger.log_interval(make_snapshot(100))
    assert [(context.run_dir, context.resume_step) for context in opened] == [(tmp_path, 500)]
    assert [record["env_steps"] for record in records_of(tmp_path / "texts")] == [1100]


def test_advice_is_held_against_the_configuration_in_force(tmp_path: Path, header: RunHeader) -> None:
    cfg = RunConfig.from_mapping({"log": {"panel": "off", "tensorboard": False}})
    in_force = dataclasses.replace(cfg, eval=dataclasses.replace(cfg.eval, beside="true"))
    with closing(open_logger(tmp_path, cfg, header, None, in_force)) as logger:
        assert logger.config_mapping["eval"]["beside"] == "true"


def test_a_loop_that_gives_no_date_has_the_one_of_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger_module, "unix_s", lambda: 1_700_000_000.0)
    with closing(open_step_logger(tmp_path / "a", HEADER, QUIET)) as logger:
        assert logger.header.started_unix_s == 1_700_000_000.0
    dated = dataclasses.replace(HEADER, started_unix_s=5.0)
    with closing(open_step_logger(tmp_path / "b", dated, QUIET)) as logger:
        assert logger.header.started_unix_s == 5.0


def test_no_status_follows_the_answer_to_ctrl_c(tmp_path: Path, header: RunHeader) -> None:
    view = Calls(header)
    logger = OffPolicyLogger(tmp_path, {}, header, [], view)
    logger.status("starting")
    logger.stopping("stopping")
    logger.status("starting: waiting for learner 0")
    assert view.names == ["status", "stopping"]


def test_every_step_of_another_loop_answers_the_terminal(tmp_path: Path, header: RunHeader) -> None:
    view = Calls(header)
    logger = OffPolicyLogger(tmp_path, {}, header, [], view, steps=StepTotals(header))
    for iteration in (1, 2, 3):
        logger.log_step(iteration, train_time=0.1)
    assert view.names.count("tick") == 3


def test_log_step_has_the_arguments_of_unilabs_logger() -> None:
    assert list(inspect.signature(OffPolicyLogger.log_step).parameters)[1:] == [
        "iteration", "metrics", "reward", "reward_metrics", "reward_components", "train_time", "collector_wait_time",
        "replay_batch_wait_time", "learner_replay_sample_time", "rank_barrier_time", "sync_coordination_time",
        "learner_incremental_h2d_time", "learner_param_sync_time", "weight_sync_time", "iteration_time", "extra_info",
    ]  # fmt: skip


def test_steps_are_recorded_under_our_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET, {"lr": 0.1})) as logger:
        logger.log_collector(500, 400)
        logger.log_step(
            3, {"qf_loss": 2.0, "vibes": 1.0}, -7.0, train_time=0.006, rank_barrier_time=0.001, weight_sync_time=0.002,
            iteration_time=0.010, extra_info={"learner_samples_per_iter": 256},
        )  # fmt: skip
        logger.finish_steps("interrupted", "it was asked to", np.int64(130))  # type: ignore[arg-type]
    record, *_ = records_of(tmp_path / "run")
    assert record.items() >= {
        "env_steps": 500, "iteration": 3, "timing/learner_train_ms": 6.0, "timing/learner_rank_barrier_ms": 1.0,
        "timing/learner_weight_publish_ms": 2.0, "timing/learner_other_ms": 1.0, "perf/iter_ms": 10.0,
        "perf/samples_per_sec": 25_600.0, "train/critic_loss": 2.0, "rollout/ep_rew_mean": -7.0, "replay/rows": 400,
    }.items()  # fmt: skip
    assert "log_step: left out, as docs/metrics.md has no name for them: train/vibes" in capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"], summary["reason"]) == ("interrupted", 130, "it was asked to")
    assert summary["bottleneck"]["reason"].startswith("the loop reported no times of a collector")
    assert (tmp_path / "run" / "config.yaml").read_text() == "lr: 0.1\n"


def test_steps_with_both_sides_get_a_verdict_and_no_advice_on_keys_they_do_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_totals, "scheduler_stats", lambda: SchedulerStats())  # whoever else uses the cores
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET)) as logger:
        logger.update_collector_timing({"env_step_ms": 20.0, "sync_coordination_ms": 80.0})
        for iteration in range(1, 20):
            info = {"throughput_steps": 1, "learner_samples_per_iter": 8}
            logger.log_step(iteration, train_time=0.09, collector_wait_time=0.01, extra_info=info)
        logger.finish_steps()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["bottleneck"]["verdict"], summary["bottleneck"]["phase"]) == ("learner", "train")
    assert summary["bottleneck"]["advice"] == []
    assert summary["rates"]["collector_capacity"] == pytest.approx(50.0)
    last = records_of(tmp_path / "run")[-1]
    assert last["perf/bottleneck"] == "learner(train 90%)"
    assert "perf/bottleneck_advice" not in last


def test_the_summary_keeps_the_newest_return_of_training(tmp_path: Path) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET)) as logger:
        for iteration in (1, 2):
            logger.log_step(iteration, train_time=0.09, reward_metrics={"mean_ep100": -7.0 * iteration})
        logger.finish_steps()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rollout"] == {"ep_rew_mean": -14.0}
    assert summary["eval"]["mean_reward"] is None


def test_every_record_of_a_loop_that_counts_no_env_steps_is_kept(tmp_path: Path) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET)) as logger:
        for iteration in (1, 2, 3):
            logger.log_step(iteration, train_time=0.001 * iteration)
    records = records_of(tmp_path / "run")
    assert [(record["iteration"], record["timing/learner_train_ms"]) for record in records] == [
        (1, 1.0), (2, 2.0), (3, 3.0)
    ]  # fmt: skip


def test_the_summary_of_another_loop_has_its_evaluation_and_the_error_of_the_predictions(
    tmp_path: Path, evaluation: EvalResult
) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET)) as logger:
        logger.update_collector_timing({"env_step_ms": 20.0, "sync_coordination_ms": 80.0})
        for iteration in range(1, 20):
            logger.log_step(iteration, train_time=0.09, extra_info={"throughput_steps": 1})
        logger.log_eval(evaluation)
        logger.finish_steps()
        error = logger.prediction_error
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval"] == {"mean_reward": -150.25, "std_reward": 80.5, "episodes": 10}
    assert error is not None
    assert summary["rates"]["prediction_error"] == error


def test_a_slow_first_iteration_of_another_loop_lowers_no_rate_of_its_summary(tmp_path: Path) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET)) as logger:
        logger.update_collector_timing({"env_step_ms": 20.0, "sync_coordination_ms": 80.0})
        for iteration in range(1, 20):
            seconds = 9.0 if iteration == 1 else 0.1
            logger.log_step(iteration, train_time=seconds, extra_info={"throughput_steps": 1})
        logger.finish_steps()
    rates = json.loads((tmp_path / "run" / "summary.json").read_text())["rates"]
    assert rates["learner_capacity"] == pytest.approx(10.0)


def test_a_logger_of_snapshots_takes_no_steps(logger: OffPolicyLogger) -> None:
    with pytest.raises(OffPolicyError, match="log_step: this logger gets snapshots; open one with open_step_logger"):
        logger.log_step(1, train_time=0.1)
    logger.close()


def test_unilabs_names_reach_every_sink_and_callback(tmp_path: Path, make_snapshot: Any, header: RunHeader) -> None:
    cfg = RunConfig.from_mapping({"log": {"unilab_keys": True, "panel": "off"}})
    logger = open_logger(tmp_path, cfg, header, None)
    record = logger.log_interval(make_snapshot(100))
    logger.close()
    assert record["timing/learner_weight_sync_ms"] == record["timing/learner_weight_publish_ms"]
    (written,) = records_of(tmp_path)
    assert written["timing/learner_weight_sync_ms"] == record["timing/learner_weight_publish_ms"]
    (row,) = read_event_rows(event_paths(tmp_path))
    assert row["timing/learner_weight_sync_ms"] == pytest.approx(record["timing/learner_weight_publish_ms"])
    assert row["timing/learner_wait_ms"] == pytest.approx(0.15)  # 0.12 for the collector, 0.03 for the handshake


def test_a_configuration_that_yaml_cannot_hold_is_refused_and_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config: got PosixPath\('data'\), allowed texts, numbers, lists"):
        open_step_logger(tmp_path / "run", HEADER, QUIET, {"lr": 0.1, "data": Path("data")})
    assert not (tmp_path / "run").exists()


def test_a_loop_without_a_goal_is_refused_when_its_logger_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="total_timesteps: got 0, allowed 1 or more"):
        open_step_logger(tmp_path / "run", dataclasses.replace(HEADER, total_timesteps=0), QUIET)
    assert not (tmp_path / "run").exists()
