"""The panel on a terminal, its keys, and what takes its place where it fails."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from offpolicy.logger.panel import Panel, open_view
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.view import PlainLines, SafeView
from offpolicy.model.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import LearnerPhase
from tests.full_pipe import FullPipe
from tests.unit.logger.terminal import Terminal

RECORD: Record = {"env_steps": 2000, "wall_s": 1.0}
VERDICT = Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", share=0.92)
SIZES = [(160, 50), (100, 30), (80, 24), (60, 20), (60, 19), (40, 12)]


class Screen:
    """A panel on a terminal whose size the test sets."""

    def __init__(self, header: RunHeader, width: int = 80, height: int = 24) -> None:
        self.terminal = Terminal()
        self.console = Console(file=self.terminal, force_terminal=True, width=width, height=height, color_system=None)
        self.panel = Panel(self.console, header)

    def resize(self, width: int, height: int) -> None:
        self.console.size = (width, height)  # type: ignore[assignment]  # rich takes a pair
        self.panel.tick()

    @property
    def text(self) -> str:
        return "\n".join(self.terminal.frame)


@pytest.fixture
def screen(header: RunHeader) -> Iterator[Screen]:
    screen = Screen(header)
    yield screen
    screen.panel.close()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_resize_leaves_no_ghost(header: RunHeader, record: Record, width: int, height: int) -> None:
    resized, fresh = Screen(header), Screen(header, width, height)
    for one in (resized, fresh):
        one.panel.record(record, VERDICT)
    resized.resize(width, height)
    assert resized.terminal.frame == fresh.terminal.frame
    assert "thru" in resized.text
    assert resized.terminal.ordinary.strip() == ""


def test_closing_gives_the_terminal_back_with_messages_and_the_last_frame(screen: Screen, record: Record) -> None:
    screen.panel.status("starting")
    path = "long/" * 40
    screen.panel.message(f"run directory: {path}")
    screen.panel.record(record, VERDICT)
    assert screen.terminal.is_alternate
    assert not screen.terminal.has_cursor
    screen.panel.finish(Text("the summary"))
    assert (screen.terminal.is_alternate, screen.terminal.has_cursor) == (False, True)
    left = screen.terminal.ordinary
    assert [left.count(text) for text in (path, "Train takes 92%", "the summary")] == [1, 1, 1]
    assert left.index(path) < left.index("Train takes") < left.index("the summary")
    screen.panel.close()
    assert screen.terminal.ordinary == left


def test_the_last_frame_is_the_last_of_learning(screen: Screen, record: Record) -> None:
    learning = {**record, "wall_s": 10.0}
    closing: Record = {
        "env_steps": 20_000, "wall_s": 12.0, "time/elapsed_s": 12.0, "timing/learner_evaluation_ms": 500.0,
        "perf/iter_ms": 501.0, "eval/mean_reward": -140.0, "eval/env_steps": 20_000,
    }  # fmt: skip
    screen.panel.record(learning, VERDICT)
    screen.panel.record(closing, is_last=True)
    shown = screen.text
    assert "20,000 / 20,000 steps" in shown
    assert "eval -140.0" in shown
    assert "Train takes 92%" in shown
    assert "6.10  92%" in shown
    assert "Evaluation" not in shown


def test_what_goes_on_is_shown_at_once_within_the_frame(screen: Screen) -> None:
    for number in range(30):
        screen.panel.message(f"first {number}\nsecond {number}")
    screen.panel.status("random steps\n10/1000")
    assert (screen.terminal.frame[0][0], screen.terminal.frame[23][0]) == ("╭", "╰")
    assert "second 29" in screen.text
    assert "random steps 10/1000" in screen.text
    screen.panel.record(RECORD)
    screen.panel.status("too late")
    assert "10/1000" not in screen.text
    assert "too late" not in screen.text
    screen.panel.stopping("stopping, saving")
    for activity in ("saving a checkpoint", ""):
        assert "stopping, saving" in screen.text
        screen.panel.activity(activity)
    assert "stopping, saving" in screen.text


def test_neither_a_closed_terminal_nor_a_reader_that_has_left_ends_the_run(header: RunHeader, record: Record) -> None:
    read, write = os.pipe()
    os.close(read)
    closed = io.StringIO()
    closed.close()
    with os.fdopen(write, "w") as unread:
        for stream, option in ((closed, "on"), (closed, "auto"), (unread, "on")):
            view = open_view(option, stream, header)
            view.status("starting")
            view.record(record)
            view.message("still here")
            view.stopping("stopping")
            view.tick()
            view.finish(Text("the end"))
            view.close()


@pytest.mark.promise("plain-line")
def test_a_terminal_gets_a_panel_and_all_else_plain_lines(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    written: list[str] = []
    only_written, ascii_only = SimpleNamespace(write=written.append, flush=lambda: None), Terminal()
    ascii_only.encoding = "ascii"
    for option in ("auto", "off", "full"):
        for stream in (io.StringIO(), only_written, ascii_only):
            view = open_view(option, stream, header)  # type: ignore[arg-type]  # a stream
            assert isinstance(view, PlainLines)
            view.message("hello")
        assert isinstance(open_view(option, Terminal(), header), PlainLines if option == "off" else SafeView)
    assert written == 3 * ["hello\n"]
    assert isinstance(open_view("on", io.StringIO(), header), SafeView)


def test_a_terminal_that_takes_nothing_stops_nobody_and_shows_the_newest_frame_once_it_does(header: RunHeader) -> None:
    pipe = FullPipe()
    view = open_view("on", pipe.file, header)
    for number in range(10):
        view.status(f"frame {number}")
        view.tick()
    pipe.read()
    deadline_s = time.monotonic() + 60.0
    while b"frame 9" not in pipe.said and time.monotonic() < deadline_s:
        time.sleep(0.01)
        view.tick()
    view.message("the last message")
    view.close()
    said = pipe.close()
    assert [f"frame {number}" in said for number in (0, 5, 9)] == [True, False, True]
    assert said.rstrip().endswith("the last message")
