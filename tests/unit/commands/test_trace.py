"""`offpolicy trace`: what is refused before a trace is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offpolicy.analysis.chrome_trace import TRACE_JSON
from offpolicy.commands.trace import chosen_start, trace
from offpolicy.errors import ConfigError
from offpolicy.timing.trace_writer import SUFFIX, Mark, TraceTrack, create_tracks


def test_a_run_that_was_not_traced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"was not traced; train with timing\.trace=true"):
        trace(tmp_path)


def test_a_start_that_was_not_traced_is_refused_with_those_that_were(tmp_path: Path) -> None:
    for name in ("0", "2", "notes"):
        (tmp_path / "trace" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="--start: got 1, allowed 0, 2"):
        trace(tmp_path, start=1)


def test_a_picture_without_matplotlib_is_refused_first_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "offpolicy.analysis.plots", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'offpolicy\[plot\]'"):
        trace(tmp_path / "missing", svg=tmp_path / "x.svg")


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


def traced_run(run: Path) -> Path:
    """A run with two traced starts, of one iteration and of two."""
    for start in (0, 1):
        create_tracks(run / "trace" / str(start), ["learner-0"], 1)
        names = [Mark.ITERATION, "train"]
        track = TraceTrack(run / "trace" / str(start) / f"learner-0{SUFFIX}", names, "learner 0", "learner 0")
        for number in range(start + 1):
            track.mark(Mark.ITERATION, 1_000_000 * number + 1_000, number)
    return run


def test_the_file_holds_the_start_that_is_shown(tmp_path: Path) -> None:
    """That of a start before, or of a moment before in a run that goes on, would be another one."""
    run, contents = traced_run(tmp_path), []
    for start in (None, 0, None):
        assert trace(run, start=start) == 0
        contents.append((run / TRACE_JSON).read_bytes())
    assert contents[0] == contents[2] != contents[1]
