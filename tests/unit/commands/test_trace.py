"""`offpolicy trace`: what is refused before a trace is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.analysis.chrome_trace import TRACE_JSON
from offpolicy.commands.trace import chosen_start
from offpolicy.timing.trace_writer import SUFFIX, Mark, TraceTrack, create_tracks
from tests.unit.commands.conftest import Typed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").touch()
    return tmp_path


def test_what_was_not_traced_is_refused(run: Path, refused: Typed) -> None:
    assert "was not traced; train with timing.trace=true" in refused("trace", run)
    for name in ("0", "2", "notes"):
        (run / "trace" / name).mkdir(parents=True)
    assert "--start: got 1, allowed 0, 2" in refused("trace", run, "--start", "1")


def test_the_last_start_with_an_iteration_is_chosen(tmp_path: Path) -> None:
    for start, has_iteration in (("0", True), ("1", True), ("2", False)):
        create_tracks(tmp_path / "trace" / start, ["learner-0"], 1)
        track = TraceTrack(
            tmp_path / "trace" / start / f"learner-0{SUFFIX}", [Mark.ITERATION], "learner 0", "learner 0"
        )
        if has_iteration:
            track.mark(Mark.ITERATION, 1_000, 1)
    assert chosen_start(tmp_path, None) == tmp_path / "trace" / "1"
    assert chosen_start(tmp_path, 2) == tmp_path / "trace" / "2"


def traced_run(run: Path) -> None:
    """A run with two traced starts, of one iteration and of two."""
    for start in (0, 1):
        create_tracks(run / "trace" / str(start), ["learner-0"], 1)
        names = [Mark.ITERATION, "train"]
        track = TraceTrack(run / "trace" / str(start) / f"learner-0{SUFFIX}", names, "learner 0", "learner 0")
        for number in range(start + 1):
            track.mark(Mark.ITERATION, 1_000_000 * number + 1_000, number)


def test_the_file_holds_the_start_that_is_shown(run: Path, printed: Typed) -> None:
    """That of a start before, or of a moment before in a run that goes on, would be another one."""
    traced_run(run)
    contents = []
    for options in ((), ("--start", "0"), ()):
        printed("trace", run, *options)
        contents.append((run / TRACE_JSON).read_bytes())
    assert contents[0] == contents[2] != contents[1]
