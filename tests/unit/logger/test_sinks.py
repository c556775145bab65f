"""The guard of sinks, and the JSON lines of a run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.logger.built_in_sinks import open_sinks
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import (
    JsonlSink,
    SafeSink,
    Sink,
    Summary,
    open_sink,
)
from offpolicy.types import EpisodeRecord

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


def test_a_sink_that_would_end_the_process_is_disabled_like_others() -> None:
    class Leaves(ListSink):
        def write(self, record: Record) -> None:
            raise SystemExit(3)

    warnings: list[str] = []
    sink = SafeSink("leaves", Leaves(), warnings.append)
    sink.write({"env_steps": 1})
    assert warnings == ["warning: leaves is disabled for the rest of the run: SystemExit: 3"]


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


def test_a_sink_that_cannot_be_opened_is_left_out_with_a_warning() -> None:
    def factory() -> Sink:
        raise TimeoutError("no answer\nfor 30 s")

    warnings: list[str] = []
    assert open_sink("wandb", factory, warnings.append) is None
    assert warnings == ["warning: wandb is disabled for the rest of the run: TimeoutError: no answer for 30 s"]


def test_a_record_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.write({"env_steps": 10, "perf/bottleneck": "learner(train 94%)"})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_steps": 10, "perf/bottleneck": "learner(train 94%)"}\n'
    sink.close()


def test_records_of_one_env_step_take_one_line(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.write({"env_steps": 0, "iteration": 1})
    sink.write({"env_steps": 0, "iteration": 2})
    sink.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_episodes_that_a_resumed_run_makes_again_are_moved_out(tmp_path: Path) -> None:
    lines = [f'{{"env_steps": {steps}, "ep_return": -1.0}}\n' for steps in (10, 20)]
    (tmp_path / "episodes.jsonl").write_text("".join(lines))
    JsonlSink(tmp_path, 15).close()
    assert (tmp_path / "episodes.jsonl").read_text() == lines[0]
    assert (tmp_path / "episodes.superseded.jsonl").read_text() == lines[1]


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


@pytest.mark.promise("full-disk")
def test_a_full_disk_disables_the_sink_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    warnings: list[str] = []
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), warnings.append)
    for steps in range(3):
        sink.write({"env_steps": steps})
    sink.close()
    assert (len(warnings), sink.num_dropped) == (1, 3)
    assert "No space left on device" in warnings[0]


def test_records_of_updates_that_are_made_again_are_moved_out(tmp_path: Path, header: RunHeader) -> None:
    lines = [f'{{"env_steps": {steps}, "train/n_updates": {steps}}}\n' for steps in (10, 20, 30)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    cfg = RunConfig.from_mapping({"log": {"tensorboard": False}})
    open_sinks(tmp_path, {}, cfg.log, header, print, 30, 15)
    assert (tmp_path / "metrics.jsonl").read_text() == lines[0]
    assert (tmp_path / "metrics.superseded.jsonl").read_text() == "".join(lines[1:])
