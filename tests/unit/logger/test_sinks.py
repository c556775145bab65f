"""The guard of sinks, and the JSON lines of a run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.logger.logger import open_sinks
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import JsonlSink, SafeSink, Sink, Summary
from offpolicy.types import EpisodeRecord

EPISODE = EpisodeRecord(10, 0, -1.0, 5, True, False, float("nan"))


class ListSink(Sink):
    """Keeps what it is given, and clears it; raises `error` from the second call on."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[object] = []
        self._error = error

    def _call(self, *given: object) -> None:
        self.calls.append(given)
        if self._error is not None and len(self.calls) > 1:
            raise self._error

    def write(self, record: Record) -> None:
        self._call("write", dict(record))
        record.clear()

    def episode(self, episode: EpisodeRecord) -> None:
        self._call("episode", episode)

    def text(self, tag: str, content: str, env_steps: int) -> None:
        self._call("text", tag, content, env_steps)

    def finish(self, summary: Summary) -> None:
        self._call("finish", dict(summary))
        summary["eval"].clear()

    def close(self) -> None:
        self._call("close")


def test_a_working_sink_gets_every_call_with_values_of_its_own() -> None:
    inner, warnings = ListSink(), list[str]()
    sink = SafeSink("list", inner, warnings.append)
    record: Record = {"env_steps": 1}
    summary = {"status": "completed", "eval": {"episodes": 3}}
    sink.write(record)
    sink.episode(EPISODE)
    sink.text("verdict", "x", 7)
    sink.finish(summary)
    sink.close()
    assert [call[0] for call in inner.calls] == ["write", "episode", "text", "finish", "close"]  # type: ignore[index]
    assert (warnings, record, summary["eval"]) == ([], {"env_steps": 1}, {"episodes": 3})


@pytest.mark.parametrize(
    ("error", "cause"),
    [(OSError(28, "No space\nleft"), "OSError: [Errno 28] No space left"), (SystemExit(3), "SystemExit: 3")],
)
def test_a_failing_sink_is_disabled_with_one_warning_that_names_the_cause(error: BaseException, cause: str) -> None:
    inner, warnings = ListSink(error), list[str]()
    sink = SafeSink("tensorboard", inner, warnings.append)
    for steps in range(5):
        sink.write({"env_steps": steps})
    sink.close()
    assert [call[0] for call in inner.calls] == ["write", "write", "close"]  # type: ignore[index]
    assert warnings == [f"warning: tensorboard is disabled for the rest of the run: {cause}"]


def test_an_interrupt_is_not_swallowed() -> None:
    sink = SafeSink("list", ListSink(KeyboardInterrupt()), print)
    sink.write({"env_steps": 1})
    with pytest.raises(KeyboardInterrupt):
        sink.write({"env_steps": 2})


def test_a_sink_that_cannot_be_opened_is_left_out_with_a_warning(tmp_path: Path, header: RunHeader) -> None:
    cfg, warnings = RunConfig.from_mapping({"log": {"tensorboard": False}}), list[str]()
    assert open_sinks(tmp_path / "none", {}, cfg.log, header, warnings.append) == []
    (warning,) = warnings
    assert warning.startswith("warning: metrics.jsonl is disabled for the rest of the run: FileNotFoundError")


def test_a_record_is_in_the_file_as_soon_as_it_is_written_and_once_per_env_step(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.write({"env_steps": 10, "perf/bottleneck": "learner(train 90%)"})
    sink.write({"env_steps": 10, "perf/bottleneck": "learner(train 94%)"})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_steps": 10, "perf/bottleneck": "learner(train 94%)"}\n'
    sink.close()


@pytest.mark.parametrize("unknown", [float("nan"), float("inf")])
def test_an_episode_leaves_out_an_unknown_success(unknown: float, tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.episode(EpisodeRecord(200, 3, -1.5, 200, False, True, unknown))
    sink.episode(EpisodeRecord(400, 3, -1.5, 200, True, False, 1.0))
    sink.close()
    first, second = (json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines())
    fields = {"env_steps": 200, "env_index": 3, "ep_return": -1.5, "ep_length": 200}
    assert first == fields | {"terminated": False, "truncated": True}
    assert second["success"] == 1.0


@pytest.mark.promise("full-disk")
def test_a_full_disk_disables_the_sink_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    warnings: list[str] = []
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), warnings.append)
    for steps in range(3):
        sink.write({"env_steps": steps})
    sink.close()
    (warning,) = warnings
    assert "No space left on device" in warning


def test_records_of_steps_and_updates_that_are_made_again_are_moved_out(tmp_path: Path, header: RunHeader) -> None:
    lines = [f'{{"env_steps": {steps}, "train/n_updates": {steps}}}\n' for steps in (10, 20, 30)]
    for name in ("metrics", "episodes"):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    cfg = RunConfig.from_mapping({"log": {"tensorboard": False}})
    (sink,) = open_sinks(tmp_path, {}, cfg.log, header, print, 20, 15)
    sink.close()
    assert (tmp_path / "metrics.jsonl").read_text() == lines[0]
    assert (tmp_path / "metrics.superseded.jsonl").read_text() == "".join(lines[1:])
    assert (tmp_path / "episodes.superseded.jsonl").read_text() == lines[2]
