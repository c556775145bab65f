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


def trace_start(run: Path, start: int, iterations: int) -> None:
    directory = run / "trace" / str(start)
    create_tracks(directory, ["learner-0"], 1)
    track = TraceTrack(directory / f"learner-0{SUFFIX}", [Mark.ITERATION, "train"], "learner 0", "learner 0")
    for number in range(iterations):
        track.mark(Mark.ITERATION, 1_000_000 * number + 1_000, number)


def test_the_file_holds_the_start_that_is_shown(run: Path, printed: Typed) -> None:
    """That of a start before, or of a moment before in a run that goes on, would be another one."""
    for start in range(3):
        trace_start(run, start, iterations=(1, 2, 0)[start])
    assert chosen_start(run, None) == run / "trace" / "1", "the last with an iteration"
    assert chosen_start(run, 2) == run / "trace" / "2"
    contents = []
    for options in ((), ("--start", "0"), ()):
        printed("trace", run, *options)
        contents.append((run / TRACE_JSON).read_bytes())
    assert contents[0] == contents[2] != contents[1]
