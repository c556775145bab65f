from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offpolicy.analysis.records import event_paths, read_event_rows
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import LogConfig
from offpolicy.logger.logger import OffPolicyLogger, open_logger
from offpolicy.logger.predictions import possible_advice
from offpolicy.logger.record import RunHeader
from offpolicy.logger.sinks import JsonlSink, SafeSinks, Sink, Summary
from offpolicy.logger.step_logger import open_step_logger
from offpolicy.logger.summary import RunResult, build_summary
from offpolicy.logger.view import PlainLines
from offpolicy.model.bottleneck import LEARNER_ADVICE, Bottleneck, Verdict
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import EpisodeRecord, EvalResult, Snapshot
from tests.unit.logger.conftest import evaluated

NO_SINKS: Mapping[str, Callable[[], Sink]] = {}


@pytest.fixture
def logger(tmp_path: Path, header: RunHeader) -> Iterator[OffPolicyLogger]:
    with closing(logger_of(header, {"metrics.jsonl": partial(JsonlSink, tmp_path, None)})) as opened:
        yield opened


def logger_of(
    header: RunHeader, sinks: Mapping[str, Callable[[], Sink]] = NO_SINKS, stream: io.StringIO | None = None
) -> OffPolicyLogger:
    view = PlainLines(stream or io.StringIO(), header)
    return OffPolicyLogger(Path("run"), {}, header, SafeSinks(view.message, sinks), view)


def records_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


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
    assert [record["env_steps"] for record in records_of(tmp_path)] == [1100, 1200, 1300]


def test_an_evaluation_is_in_every_record_from_then_on(
    logger: OffPolicyLogger, make_snapshot: Any, evaluation: EvalResult
) -> None:
    assert "eval/mean_reward" not in logger.log_interval(make_snapshot(100))
    logger.log_eval(evaluation)
    logger.log_interval(make_snapshot(200))
    assert logger.log_interval(make_snapshot(300))["eval/mean_reward"] == -150.25


def test_episodes_reach_file_and_curve(logger: OffPolicyLogger, make_snapshot: Any, tmp_path: Path) -> None:
    logger.log_episode(EpisodeRecord(200, 0, -900.0, 200, False, True, float("nan")))
    record = logger.log_interval(make_snapshot(100))
    assert (record["rollout/ep_rew_mean"], record["rollout/episodes"]) == (-900.0, 1)
    assert json.loads((tmp_path / "episodes.jsonl").read_text())["ep_return"] == -900.0


def test_the_time_left_is_known_after_some_learning_and_not_multiplied_by_an_evaluation(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    early = [logger.log_interval(make_snapshot(updates)) for updates in (0, 10, 20, 500)]
    assert all("time/eta_s" not in record for record in early)
    assert logger.log_interval(make_snapshot(1000))["time/eta_s"] == pytest.approx(18_000 * 0.0066, rel=0.01)
    paused = make_snapshot(1001)
    paused.collectors[0].account.phases_ns["learner_wait"] += 1
    assert logger.log_interval(paused)["time/eta_s"] == pytest.approx(17_999 * 0.0066, rel=0.01)


@pytest.mark.parametrize("ranks", ["spread", "all"])
def test_every_rank_is_written_on_request_only(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, ranks: str
) -> None:
    snapshot = make_snapshot(100)
    two = dataclasses.replace(snapshot, learners=snapshot.learners * 2)
    stream = io.StringIO()
    sinks = SafeSinks(print, {"metrics.jsonl": partial(JsonlSink, tmp_path, None)})
    view = PlainLines(stream, header)
    record = OffPolicyLogger(tmp_path, {}, header, sinks, view, LogConfig(ranks=ranks)).log_interval(two)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert ("rank/1/train_ms" in json.loads(line)) is (ranks == "all")
    assert record.keys() == json.loads(line).keys(), "callbacks get what is written"


def test_advice_is_compared_with_what_auto_stands_for(tmp_path: Path, header: RunHeader) -> None:
    config = RunConfig().to_mapping()
    assert (config["device"], config["replay"]["source"]) == ("auto", "auto")
    logger = OffPolicyLogger(tmp_path, config, header, SafeSinks(print, {}), PlainLines(io.StringIO(), header))
    logger.set_device("cuda:1", "", "textbook")
    logger.set_in_force("replay.source", "resident")
    assert (logger.config_mapping["device"], logger.config_mapping["replay"]["source"]) == ("cuda", "resident")
    assert logger.config_mapping["replay"]["slots"] == config["replay"]["slots"]
    verdict = Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "", LEARNER_ADVICE[LearnerPhase.TRAIN])
    advised = possible_advice(verdict, logger.config_mapping, has_gpu=True).advice
    assert "device" not in {advice.key for advice in advised}


def test_a_slow_rank_causes_one_warning(header: RunHeader, make_snapshot: Any) -> None:
    """Two ranks, 6.4 ms of work in an iteration of 6.6; rank 0 waits 6 ms of it for rank 1."""

    def snapshot(second: int) -> Snapshot:
        now = make_snapshot(100 * second)
        slow = now.learners[0]
        waited_ns = 100 * second * 6_000_000
        phases_ns = {**slow.account.phases_ns, "rank_barrier": waited_ns}
        phases_ns["train"] -= waited_ns
        fast = dataclasses.replace(slow, account=dataclasses.replace(slow.account, phases_ns=phases_ns))
        return dataclasses.replace(now, wall_s=float(second), learners=(fast, slow))

    stream = io.StringIO()
    logger = logger_of(header, stream=stream)
    for second in range(2, 200, 2):
        logger.log_interval(snapshot(second))
    (line,) = [line for line in stream.getvalue().splitlines() if line.startswith("warning")]
    assert "learner rank 1 has been slow for 60 s: 6.4 ms of own work" in line


def test_the_configuration_chooses_the_sinks(
    tmp_path: Path, header: RunHeader, make_snapshot: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(
        open_logger(tmp_path, RunConfig.from_mapping({"log": {"tensorboard": False}}), header, None)
    ) as logger:
        logger.log_interval(make_snapshot(100))
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "episodes.jsonl"}
    assert capsys.readouterr().out.startswith("5% step=1100/20000")


class Kept(Sink):
    """Keeps texts, and how a run ended."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, int]] = []
        self.ends: list[str] = []

    def text(self, tag: str, content: str, env_steps: int) -> None:
        self.texts.append((tag, content, env_steps))

    def finish(self, summary: Summary) -> None:
        self.ends.append(summary["status"])

    def close(self) -> None:
        self.ends.append("closed")


def test_a_changed_verdict_is_written_as_a_text(header: RunHeader, make_snapshot: Any) -> None:
    sink = Kept()
    logger = logger_of(header, {"texts": lambda: sink})
    for updates in (0, 100, 200, 300):
        logger.log_interval(make_snapshot(updates))
    logger.close()
    assert [(tag, content.splitlines()[0], env_steps) for tag, content, env_steps in sink.texts] == [
        ("verdict", "**warming up**", 1000), ("verdict", "**learner(train 92%)**", 1100),
    ]  # fmt: skip
    assert "- threads.learner=auto: the fastest number of threads is found while the run trains" in sink.texts[1][1]


def move_to_collector(snapshot: Snapshot, ns: int) -> None:
    """The learner waits for so long instead of training, and the collector steps instead of waiting."""
    learner, collector = snapshot.learners[0].account.phases_ns, snapshot.collectors[0].account.phases_ns
    for phases_ns, idle, busy in ((learner, "train", "collector_wait"), (collector, "learner_wait", "env_step")):
        phases_ns[idle] -= ns
        phases_ns[busy] += ns


def test_a_new_verdict_is_shown_when_it_has_held_for_three_windows(header: RunHeader, make_snapshot: Any) -> None:
    logger = logger_of(dataclasses.replace(header, mode="overlap"))
    labels = []
    for number in range(5):
        now = make_snapshot(100 * (number + 1))
        move_to_collector(now, 600_000_000 * max(0, number - 1))
        labels.append(logger.log_interval(now)["perf/bottleneck"])
    logger.close()
    assert labels == ["learner(train 92%)"] * 2 + ["learner(train 2%)"] * 2 + ["collector(env_step 92%)"]


def test_what_the_first_window_of_learning_showed_is_not_held(header: RunHeader, make_snapshot: Any) -> None:
    """It mixes random steps with learning, and a short run said `balanced` for three records."""
    logger = logger_of(header)
    first, second = make_snapshot(100), make_snapshot(200)
    for snapshot in (first, second):  # the first window's time was the collector's
        move_to_collector(snapshot, 600_000_000)
    labels = [logger.log_interval(snapshot)["perf/bottleneck"] for snapshot in (first, second)]
    logger.close()
    assert [label.partition("(")[0] for label in labels] == ["collector", "learner"]


def test_the_last_record_is_judged_without_what_came_after_the_last_iteration(
    logger: OffPolicyLogger, make_snapshot: Any
) -> None:
    """A final evaluation of a minute: its phase shows it, rates, time left and verdict do not know it."""
    for updates in (100, 200, 300):
        before = logger.log_interval(make_snapshot(updates))
    record = logger.log_interval(evaluated(make_snapshot(400), 60))
    for rate in ("steps_per_sec", "updates_per_sec", "samples_per_sec", "learner_capacity", "predicted_steps_per_sec"):
        assert record[f"perf/{rate}"] == pytest.approx(before[f"perf/{rate}"])
    assert record["perf/bottleneck"] == "learner(train 92%)"
    assert record["timing/learner_evaluation_ms"] == pytest.approx(600.0)


HEADER = RunHeader(algo="es", env_id="X-v0", seed=0, mode="overlap", total_timesteps=1000)
QUIET = LogConfig(every_s=1e-9, tensorboard=False, panel="off")


def test_the_end_of_a_run_reaches_every_sink_and_the_terminal(header: RunHeader, make_snapshot: Any) -> None:
    stream, first, second = io.StringIO(), Kept(), Kept()
    logger = logger_of(header, {"first": lambda: first, "second": lambda: second}, stream)
    result = RunResult(status="failed", exit_code=65, reason="NaN")
    logger.finish(build_summary(make_snapshot(100), header, result))
    logger.close()
    assert [one.ends for one in (first, second)] == [["failed", "closed"]] * 2
    assert stream.getvalue().startswith("failed after 1,100 env steps")


def test_the_rates_of_a_resumed_run_begin_where_it_went_on(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    """Without timing there are no accounts, which know when their process began."""
    logger.start_from(make_snapshot(1000, is_timed=False))
    record = logger.log_interval(make_snapshot(1100, is_timed=False))
    assert record["perf/steps_per_sec"] == pytest.approx(100 / 0.66)


def test_the_error_of_the_predictions_is_in_the_record_in_percent(logger: OffPolicyLogger, make_snapshot: Any) -> None:
    for updates in range(100, 2100, 100):
        record = logger.log_interval(make_snapshot(updates))
    predicted, came = record["perf/predicted_steps_per_sec"], record["perf/steps_per_sec"]
    assert predicted != pytest.approx(came)
    assert record["perf/prediction_error_pct"] == pytest.approx(100.0 * abs(predicted / came - 1.0))


def test_no_status_follows_the_answer_to_ctrl_c(header: RunHeader) -> None:
    stream = io.StringIO()
    logger = logger_of(header, stream=stream)
    logger.status("starting")
    logger.stopping("stopping")
    logger.status("starting: waiting for learner 0")
    assert stream.getvalue() == "starting\nstopping\n"


def test_steps_with_both_sides_get_a_verdict_and_no_advice_on_keys_they_do_not_have(tmp_path: Path) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET, {})) as logger:
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


def test_a_slow_first_iteration_of_another_loop_lowers_no_rate_of_its_summary(tmp_path: Path) -> None:
    with closing(open_step_logger(tmp_path / "run", HEADER, QUIET, {})) as logger:
        logger.update_collector_timing({"env_step_ms": 20.0, "sync_coordination_ms": 80.0})
        for iteration in range(1, 20):
            seconds = 9.0 if iteration == 1 else 0.1
            logger.log_step(iteration, train_time=seconds, extra_info={"throughput_steps": 1})
        logger.finish_steps()
    rates = json.loads((tmp_path / "run" / "summary.json").read_text())["rates"]
    assert rates["learner_capacity"] == pytest.approx(10.0)


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
