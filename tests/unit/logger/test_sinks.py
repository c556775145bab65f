"""The guard of sinks, and the JSON lines of a run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.config.sections import LogConfig
from offpolicy.logger.logger import open_sinks
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import JsonlSink, SafeSinks, Sink
from offpolicy.types import EpisodeRecord

QUIET = LogConfig(tensorboard=False)


class ListSink(Sink):
    """Keeps what it is given; raises `error` from the second call on."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[object] = []
        self._error = error

    def write(self, record: Record) -> None:
        self.calls.append(record["env_steps"])
        if self._error is not None and len(self.calls) > 1:
            raise self._error

    def close(self) -> None:
        self.calls.append("closed")


def write(sinks: SafeSinks, env_steps: int) -> None:
    sinks.each(lambda sink: sink.write({"env_steps": env_steps}))


@pytest.mark.parametrize(
    ("error", "cause"),
    [(OSError(28, "No space\nleft"), "OSError: [Errno 28] No space left"), (SystemExit(3), "SystemExit: 3")],
)
def test_a_failing_sink_is_closed_with_one_warning_and_the_others_go_on(error: BaseException, cause: str) -> None:
    bad, good, warnings = ListSink(error), ListSink(), list[str]()
    sinks = SafeSinks(warnings.append, {"tensorboard": lambda: bad, "good": lambda: good})
    for steps in range(3):
        write(sinks, steps)
    sinks.close()
    assert (bad.calls, good.calls) == ([0, 1, "closed"], [0, 1, 2, "closed"])
    assert warnings == [f"warning: tensorboard is disabled for the rest of the run: {cause}"]


def test_an_interrupt_is_not_swallowed() -> None:
    sinks = SafeSinks(print, {"list": lambda: ListSink(KeyboardInterrupt())})
    write(sinks, 1)
    with pytest.raises(KeyboardInterrupt):
        write(sinks, 2)


def test_a_sink_that_cannot_be_opened_is_left_out_with_a_warning(tmp_path: Path, header: RunHeader) -> None:
    warnings: list[str] = []
    write(open_sinks(tmp_path / "none", {}, QUIET, header, warnings.append), 1)
    (warning,) = warnings
    assert warning.startswith("warning: metrics.jsonl is disabled for the rest of the run: FileNotFoundError")


def test_an_episode_leaves_out_an_unknown_success(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    for success in (float("nan"), float("inf"), 1.0):
        sink.episode(EpisodeRecord(200, 3, -1.5, 200, False, True, success))
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    fields = {"env_steps": 200, "env_index": 3, "ep_return": -1.5, "ep_length": 200}
    assert lines[:2] == [fields | {"terminated": False, "truncated": True}] * 2
    assert lines[2]["success"] == 1.0


def test_records_of_steps_and_updates_that_are_made_again_are_moved_out(tmp_path: Path, header: RunHeader) -> None:
    lines = [f'{{"env_steps": {steps}, "train/n_updates": {steps}}}\n' for steps in (10, 20, 30)]
    for name in ("metrics", "episodes"):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    open_sinks(tmp_path, {}, QUIET, header, print, 20, 15).close()
    assert (tmp_path / "metrics.jsonl").read_text() == lines[0]
    assert (tmp_path / "metrics.superseded.jsonl").read_text() == "".join(lines[1:])
    assert (tmp_path / "episodes.superseded.jsonl").read_text() == lines[2]
