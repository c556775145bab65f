"""The guard of sinks, and the JSON lines of a run directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy import plugins
from offpolicy.config.extensions import SinkInfo
from offpolicy.logger import sinks
from offpolicy.logger.record import Record
from offpolicy.logger.sinks import (
    JsonlSink,
    NewEvaluations,
    SafeSink,
    Sink,
    SinkContext,
    Summary,
    open_plugins,
    open_sink,
)
from offpolicy.types import EpisodeRecord
from tests.unit.logger.descriptors import open_below

EPISODE = EpisodeRecord(10, 0, -1.0, 5, True, False, float("nan"))


class ListSink:
    """Keeps what it is given; raises from the call number `fails_at` on."""

    def __init__(self, fails_at: int = 10**9) -> None:
        self.calls: list[str] = []
        self._fails_at = fails_at

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) >= self._fails_at:
            raise OSError(28, "No space left on device")

    def write(self, record: Record) -> None:
        self._call(f"write {record['env_steps']}")

    def episode(self, episode: EpisodeRecord) -> None:
        self._call("episode")

    def text(self, tag: str, content: str, env_steps: int) -> None:
        self._call("text")

    def finish(self, summary: Summary) -> None:
        self._call("finish")

    def close(self) -> None:
        self._call("close")


def test_a_working_sink_gets_every_call() -> None:
    inner, warnings = ListSink(), []
    sink = SafeSink("list", inner, warnings.append)
    sink.write({"env_steps": 1})
    sink.episode(EPISODE)
    sink.text("verdict", "x", 7)
    sink.finish({})
    sink.close()
    assert inner.calls == ["write 1", "episode", "text", "finish", "close"]
    assert (warnings, sink.num_dropped) == ([], 0)


def test_a_failing_sink_warns_once_naming_itself_and_the_cause() -> None:
    inner, warnings = ListSink(fails_at=2), []
    sink = SafeSink("tensorboard", inner, warnings.append)
    for steps in range(5):
        sink.write({"env_steps": steps})
    sink.close()
    assert warnings == [
        "warning: tensorboard is disabled for the rest of the run: OSError: [Errno 28] No space left on device"
    ]


def test_a_failed_sink_is_closed_at_once_and_its_missed_calls_are_counted() -> None:
    inner, warnings = ListSink(fails_at=2), []
    sink = SafeSink("list", inner, warnings.append)
    for steps in range(5):
        sink.write({"env_steps": steps})
    assert inner.calls == ["write 0", "write 1", "close"]
    assert (sink.is_enabled, sink.num_dropped) == (False, 4)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_a_sink_that_fails_in_its_end_is_closed_once(error: BaseException) -> None:
    """It was closed again, half closed as it was."""

    class Fails(ListSink):
        def close(self) -> None:
            self.calls.append("close")
            raise error

    inner, warnings = Fails(), list[str]()
    sink = SafeSink("cloud", inner, warnings.append)
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else contextlib.nullcontext():
        sink.close()
    sink.close()
    assert inner.calls == ["close"]
    assert len(warnings) == sink.num_dropped == (not isinstance(error, KeyboardInterrupt))


def test_a_sink_that_would_end_the_process_is_disabled_like_others() -> None:
    class Leaves(ListSink):
        def write(self, record: Record) -> None:
            raise SystemExit(3)

    warnings: list[str] = []
    sink = SafeSink("leaves", Leaves(), warnings.append)
    sink.write({"env_steps": 1})
    assert warnings == ["warning: leaves is disabled for the rest of the run: SystemExit: 3"]


def test_a_sink_whose_call_was_cancelled_is_disabled_like_others() -> None:
    """`asyncio.run` raises it, and it is no `Exception`."""

    class Cancelled(ListSink):
        def write(self, record: Record) -> None:
            raise asyncio.CancelledError

        def close(self) -> None:
            raise asyncio.CancelledError

    warnings: list[str] = []
    SafeSink("cloud", Cancelled(), warnings.append).write({"env_steps": 1})
    assert warnings == ["warning: cloud is disabled for the rest of the run: CancelledError"]


def test_an_error_without_a_text_is_named_by_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def factory() -> Sink:
        raise Mute

    warnings: list[str] = []
    assert open_sink("cloud", factory, warnings.append) is None
    assert warnings == ["warning: cloud is disabled for the rest of the run: Mute"]


def test_a_sink_has_records_and_a_summary_of_its_own() -> None:
    class Clears(ListSink):
        def write(self, record: Record) -> None:
            record.clear()  # type: ignore[attr-defined]

        def finish(self, summary: Summary) -> None:
            summary["eval"].clear()
            summary.clear()  # type: ignore[attr-defined]

    summary = {"status": "completed", "eval": {"episodes": 3}}
    record: Record = {"env_steps": 1}
    sink = SafeSink("clears", Clears(), print)
    sink.write(record)
    sink.finish(summary)
    assert record == {"env_steps": 1}
    assert summary == {"status": "completed", "eval": {"episodes": 3}}


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted(ListSink):
        def write(self, record: Record) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeSink("list", Interrupted(), print).write({"env_steps": 1})


def test_an_interrupt_while_a_failed_sink_is_closed_is_not_swallowed() -> None:
    class Fails(ListSink):
        def write(self, record: Record) -> None:
            raise OSError

        def close(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeSink("list", Fails(), [].append).write({"env_steps": 1})


def test_a_sink_that_cannot_be_opened_is_left_out_with_a_warning() -> None:
    def factory() -> Sink:
        raise TimeoutError("no answer\nfor 30 s")

    warnings: list[str] = []
    assert open_sink("wandb", factory, warnings.append) is None
    assert warnings == ["warning: wandb is disabled for the rest of the run: TimeoutError: no answer for 30 s"]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_a_sink_that_would_end_the_process_when_it_is_opened_is_left_out(error: BaseException) -> None:
    def factory() -> Sink:
        raise error

    warnings: list[str] = []
    assert open_sink("cloud", factory, warnings.append) is None
    assert len(warnings) == 1


def test_an_interrupt_while_a_sink_is_opened_is_not_swallowed() -> None:
    def factory() -> Sink:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_sink("cloud", factory, [].append)


def test_what_follows_the_end_of_a_sink_does_not_reach_it() -> None:
    inner = ListSink()
    sink = SafeSink("list", inner, print)
    sink.close()
    sink.write({"env_steps": 1})
    sink.close()
    assert (inner.calls, sink.num_dropped) == (["close"], 1)


def test_each_plug_in_gets_its_own_options_and_one_that_fails_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[SinkContext] = []

    def open_one(context: SinkContext) -> Sink:
        contexts.append(context)
        if context.options == "of broken":
            raise OSError("no such host")
        return ListSink()

    monkeypatch.setattr(
        sinks, "sink_plugin", lambda name: plugins.Plugin("sinks", name, "own:INFO", "own-sinks", "1.2")
    )
    monkeypatch.setattr(plugins, "load", lambda plugin, kind: SinkInfo("own:open", object))
    monkeypatch.setattr(plugins, "resolve", lambda plugin, target: open_one)
    options: Any = SimpleNamespace(good="of good", broken="of broken")
    warnings: list[str] = []
    context = SinkContext(tmp_path, {"seed": 3}, None, 40)
    (opened,) = open_plugins(["broken", "good"], options, context, warnings.append)
    assert opened.name == "own-sinks 1.2 (entry point sinks: good = own:INFO)"
    assert contexts == [replace(context, options="of broken"), replace(context, options="of good")]
    assert [warning.split(" is disabled")[0] for warning in warnings] == [
        "warning: own-sinks 1.2 (entry point sinks: broken = own:INFO)"
    ]


def test_a_repeated_evaluation_is_not_new() -> None:
    evaluations = NewEvaluations()
    first: Record = {"env_steps": 10, "eval/env_steps": 8, "eval/mean_reward": -1.0}
    assert evaluations.take(first) == ({"env_steps": 10}, {"eval/env_steps": 8, "eval/mean_reward": -1.0})
    assert evaluations.take({**first, "env_steps": 12}) == ({"env_steps": 12}, {})
    assert evaluations.take({**first, "eval/env_steps": 16})[1] == {"eval/env_steps": 16, "eval/mean_reward": -1.0}


def test_an_evaluation_of_an_earlier_start_of_the_run_is_not_new() -> None:
    evaluations = NewEvaluations(8)
    assert evaluations.take({"env_steps": 10, "eval/env_steps": 8, "eval/mean_reward": -1.0}) == ({"env_steps": 10}, {})


def test_a_record_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.write({"env_steps": 10, "perf/bottleneck": "learner(train 94%)"})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_steps": 10, "perf/bottleneck": "learner(train 94%)"}\n'
    sink.close()


@pytest.mark.parametrize(("is_unique", "num_lines"), [(True, 1), (False, 2)])
def test_records_of_one_env_step_take_one_line_where_steps_are_unique(
    tmp_path: Path, is_unique: bool, num_lines: int
) -> None:
    sink = JsonlSink(tmp_path, None, is_unique=is_unique)
    sink.write({"env_steps": 0, "iteration": 1})
    sink.write({"env_steps": 0, "iteration": 2})
    sink.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == num_lines


def test_episodes_that_a_resumed_run_makes_again_are_moved_out(tmp_path: Path) -> None:
    lines = [f'{{"env_steps": {steps}, "ep_return": -1.0}}\n' for steps in (10, 20)]
    (tmp_path / "episodes.jsonl").write_text("".join(lines))
    JsonlSink(tmp_path, 15).close()
    assert (tmp_path / "episodes.jsonl").read_text() == lines[0]
    assert (tmp_path / "episodes.superseded.jsonl").read_text() == lines[1]


def test_no_file_is_open_after_the_end(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    assert open_below(tmp_path) == ["episodes.jsonl", "metrics.jsonl"]
    sink.close()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("unknown", [float("nan"), float("inf")])
def test_an_episode_leaves_out_an_unknown_success(unknown: float, tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.episode(EpisodeRecord(200, 3, -1.5, 200, False, True, unknown))
    sink.episode(EpisodeRecord(400, 3, -1.5, 200, True, False, 1.0))
    sink.close()
    first, second = (json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines())
    assert first == {
        "env_steps": 200,
        "env_index": 3,
        "ep_return": -1.5,
        "ep_length": 200,
        "terminated": False,
        "truncated": True,
    }
    assert second["success"] == 1.0


def test_a_full_disk_disables_the_sink_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    warnings: list[str] = []
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), warnings.append)
    for steps in range(3):
        sink.write({"env_steps": steps})
    sink.close()
    assert (len(warnings), sink.num_dropped) == (1, 3)
    assert "No space left on device" in warnings[0]
