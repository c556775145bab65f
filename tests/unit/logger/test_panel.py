from __future__ import annotations

import io
import os
import pty
import sys
import time
from collections.abc import Iterator

import pytest
from rich.console import Console, Group
from rich.text import Text

from offpolicy.logger.console import PlainLines
from offpolicy.logger.panel import Panel, open_view
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.safe_view import SafeView
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import LearnerPhase
from tests.full_pipe import FullPipe
from tests.unit.logger.terminal import Terminal

RECORD: Record = {"env_steps": 2000, "wall_s": 1.0}
VERDICT = Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", share=0.92)
SIZES = [(160, 50), (100, 30), (80, 24), (60, 20), (60, 15), (40, 12)]


class Screen:
    """A panel on a terminal whose size the test sets."""

    def __init__(self, header: RunHeader, width: int = 80, height: int = 24) -> None:
        self.terminal = Terminal(width, height)
        self.console = Console(file=self.terminal, force_terminal=True, width=width, height=height, color_system=None)
        self.panel = Panel(self.console, header)

    def resize(self, width: int, height: int) -> None:
        self.terminal.resize(width, height)
        self.console.size = (width, height)  # type: ignore[assignment]  # rich takes a pair
        self.panel.tick()

    @property
    def text(self) -> str:
        return "\n".join(self.terminal.frame)

    @property
    def left(self) -> str:
        return "\n".join(self.terminal.ordinary)


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
    assert [line.strip() for line in resized.terminal.ordinary] == [""]


def test_a_terminal_of_the_same_size_is_not_drawn_again(screen: Screen, record: Record) -> None:
    screen.panel.record(record)
    screen.terminal.frame[0] = "still here"
    screen.panel.tick()
    assert screen.terminal.frame[0] == "still here"


def test_the_panel_redraws_at_most_four_times_a_second(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24, color_system=None)
    panel = Panel(console, header)
    for tick in range(20):
        panel.record({**RECORD, "wall_s": tick * 0.05})
    assert 4 <= stream.getvalue().count("sac | Pendulum-v1") <= 5


def test_closing_gives_the_terminal_back_with_messages_and_the_last_frame(screen: Screen, record: Record) -> None:
    screen.panel.status("starting")
    screen.panel.message("run directory: here")
    screen.panel.record(record, VERDICT)
    assert screen.terminal.is_alternate
    assert not screen.terminal.has_cursor
    screen.panel.finish(Text("the summary"))
    assert (screen.terminal.is_alternate, screen.terminal.has_cursor) == (False, True)
    assert [screen.left.count(text) for text in ("run directory: here", "Train takes 92%", "the summary")] == [1, 1, 1]
    assert screen.left.index("run directory") < screen.left.index("Train takes") < screen.left.index("the summary")
    before = screen.left
    screen.panel.close()
    assert screen.left == before


def test_the_last_frame_is_the_last_of_learning(screen: Screen, record: Record) -> None:
    learning = {**record, "wall_s": 10.0}
    closing: Record = {
        "env_steps": 20_000, "wall_s": 12.0, "time/elapsed_s": 12.0, "timing/learner_evaluation_ms": 500.0,
        "perf/iter_ms": 501.0, "eval/mean_reward": -140.0, "eval/env_steps": 20_000,
    }  # fmt: skip
    screen.panel.record(learning, VERDICT)
    screen.panel.last_record(closing)
    shown = screen.text
    assert "20,000 / 20,000 steps" in shown
    assert "eval -140.0" in shown
    assert "Train takes 92%" in shown
    assert "6.10  92%" in shown
    assert "Evaluation" not in shown


def test_records_beyond_the_budget_are_still_of_learning(screen: Screen, record: Record) -> None:
    screen.panel.message("warning: look here")
    for seconds in range(1, 5):  # a learner that works off its debt
        now = {**record, "env_steps": 20_000, "wall_s": 1.0 * seconds, "time/elapsed_s": 1.0 * seconds}
        screen.panel.record({**now, "timing/learner_train_ms": 7.0 + seconds}, VERDICT)
    assert "11.00" in screen.text
    assert "warning" not in screen.text


def test_all_messages_are_printed_at_the_end_and_no_path_is_cut(screen: Screen) -> None:
    for number in range(300):
        screen.panel.message(f"message {number}.")
    screen.panel.message("run directory: " + "long/" * 40)
    screen.panel.close()
    assert all(f"message {number}." in screen.left for number in range(300))
    assert "long/" * 40 in screen.left


def test_a_long_command_below_the_last_frame_is_whole(screen: Screen) -> None:
    line = Text("offpolicy eval " + "long" * 40, no_wrap=True, overflow="ignore")
    screen.panel.finish(Group(line))
    assert line.plain in screen.terminal.ordinary


def test_an_activity_is_shown_while_it_lasts(screen: Screen) -> None:
    screen.panel.record(RECORD)
    screen.panel.activity("evaluating 10 episodes")
    assert "evaluating 10 episodes" in screen.text
    screen.panel.activity("")
    assert "evaluating" not in screen.text


def test_stopping_is_shown_at_once_and_stays(screen: Screen) -> None:
    screen.panel.record(RECORD)
    screen.panel.stopping("stopping, saving")
    assert "stopping, saving" in screen.text
    screen.panel.activity("saving a checkpoint")
    screen.panel.activity("")
    assert "stopping, saving" in screen.text


def test_stopping_is_shown_before_the_first_record(screen: Screen) -> None:
    screen.panel.stopping("stopping, saving")
    assert "stopping, saving" in screen.text
    screen.panel.status("starting: waiting for learner 0")
    assert "stopping, saving" in screen.text


def test_a_message_of_two_lines_leaves_the_frame_its_height(screen: Screen) -> None:
    for number in range(30):
        screen.panel.message(f"first {number}\nsecond {number}")
    screen.panel.status("starting\nand more")
    assert screen.terminal.frame[0].startswith("╭")
    assert screen.terminal.frame[23].startswith("╰")
    assert "second 29" in screen.text


def test_a_message_stands_in_the_panel_for_a_few_records(screen: Screen) -> None:
    screen.panel.record({**RECORD, "wall_s": 1.0})
    screen.panel.message("warning: look here")
    assert "warning: look here" in screen.text
    for wall_s in (2.0, 3.0, 4.0):
        screen.panel.record({**RECORD, "wall_s": wall_s})
    assert "warning" not in screen.text


def test_a_status_is_shown_until_there_is_a_record(screen: Screen) -> None:
    screen.panel.status("collecting random steps 10/1000")
    assert "collecting random steps 10/1000" in screen.text
    screen.panel.record(RECORD)
    screen.panel.status("too late")
    assert "10/1000" not in screen.text
    assert "too late" not in screen.text


def test_a_device_chosen_by_the_learner_is_in_the_title(screen: Screen, header: RunHeader) -> None:
    screen.panel.set_header(RunHeader(algo="td3", env_id="X", seed=1, mode="free", total_timesteps=9, device="cuda:0"))
    screen.panel.record(RECORD)
    assert "td3 | X | seed 1 | free | cuda:0" in screen.text


def test_a_question_mark_shows_help_and_any_key_goes_back(header: RunHeader) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as keys:
        terminal = Terminal()
        console = Console(file=terminal, force_terminal=True, width=80, height=24, color_system=None)
        panel = Panel(console, header, keys)
        panel.record(RECORD)
        panel._keyboard.read = iter(("", "?", "", "x")).__next__  # type: ignore[method-assign]
        for is_helping in (False, True, True, False):
            panel.tick()
            assert ("gradient updates still owed" in "\n".join(terminal.frame[2:9])) == is_helping
        panel.close()
    os.close(master)


def test_a_closed_terminal_never_raises(header: RunHeader, record: Record) -> None:
    stream = io.StringIO()
    stream.close()
    panel = open_view("on", stream, header)
    panel.record(record)
    panel.message("still here")
    panel.stopping("stopping")
    panel.tick()
    panel.finish(Text("the end"))
    panel.close()


def test_a_file_gets_plain_lines_and_a_terminal_a_panel(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for option in ("auto", "off", "full"):
        assert isinstance(open_view(option, io.StringIO(), header), PlainLines)
    assert isinstance(open_view("on", io.StringIO(), header), SafeView)
    assert isinstance(open_view("auto", Terminal(), header), SafeView)
    assert isinstance(open_view("full", Terminal(), header), SafeView)
    assert isinstance(open_view("off", Terminal(), header), PlainLines)


@pytest.mark.parametrize(("variable", "value"), [("TTY_COMPATIBLE", "0"), ("FORCE_COLOR", "")])
def test_a_terminal_that_must_not_be_taken_for_one_gets_plain_lines(
    header: RunHeader, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(variable, value)
    assert isinstance(open_view("auto", Terminal(), header), PlainLines)


class Tee:
    """The usual stream that a program puts in place of stdout."""

    def __init__(self) -> None:
        self.said = ""

    def write(self, text: str) -> None:
        self.said += text

    def flush(self) -> None:
        """Does nothing."""


class RaisingTee(Tee):
    """Raises errors of its own wherever it can."""

    @property
    def encoding(self) -> str:
        raise RuntimeError("no encoding")

    def write(self, text: str) -> None:
        raise RuntimeError("no file")

    def isatty(self) -> bool:
        raise RuntimeError("no terminal")

    def fileno(self) -> int:
        raise RuntimeError("no descriptor")


@pytest.mark.parametrize("option", ["auto", "on", "off", "full"])
@pytest.mark.parametrize("stream", [None, Tee(), RaisingTee()], ids=lambda stream: type(stream).__name__)
def test_whatever_a_program_has_as_its_stdout_does_not_end_a_run(
    header: RunHeader, record: Record, monkeypatch: pytest.MonkeyPatch, stream: Tee | None, option: str
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    view = open_view(option, stream, header)  # type: ignore[arg-type]  # a stream
    view.status("starting")
    view.record(record)
    view.stopping("stopping")
    view.tick()
    view.finish(Text("the end"))
    view.close()


@pytest.mark.parametrize("option", ["auto", "off", "full"])
def test_a_stream_that_can_only_be_written_gets_plain_lines(header: RunHeader, option: str) -> None:
    stream = Tee()
    view = open_view(option, stream, header)  # type: ignore[arg-type]  # a stream
    view.message("hello")
    assert (type(view), stream.said) == (PlainLines, "hello\n")


def test_a_reader_that_is_gone_does_not_end_the_run(header: RunHeader, record: Record) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        panel = open_view("on", stream, header)
        panel.status("starting")
        panel.record(record)
        panel.finish(Text("the end"))
        panel.close()


def test_a_frame_that_cannot_be_built_leaves_plain_lines_and_the_terminal_as_it_was(
    header: RunHeader, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpolicy.logger.panel.render", lambda *_: 1 / 0)
    terminal = Terminal()
    view = open_view("on", terminal, header)
    view.message("run directory: here")
    view.status("starting")
    view.record(record)
    assert (terminal.is_alternate, terminal.has_cursor) == (False, True)
    left = "\n".join(terminal.ordinary)
    assert "warning: the panel is disabled for the rest of the run: ZeroDivisionError" in left
    assert left.index("run directory: here") < left.index("warning") < left.index("bottleneck=")


class DeafTerminal:
    """A terminal that takes nothing."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError("gone")

    def flush(self) -> None:
        """Does nothing."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_takes_nothing_keeps_its_echo(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []  # True for every keyboard that is open
    monkeypatch.setattr("offpolicy.logger.panel.Keyboard", lambda keys: FakeKeyboard(opened, keys))
    view = open_view("on", DeafTerminal(), header)  # type: ignore[arg-type]  # a stream
    for _ in range(3):
        view.status("starting")
    assert opened == [False]
    view.close()


class FakeKeyboard:
    """Notes in a list whether it is open."""

    def __init__(self, opened: list[bool], keys: object) -> None:
        self.is_open = keys is not None
        self._opened, self._index = opened, len(opened)
        opened += [True] * self.is_open

    def read(self) -> str:
        return ""

    def close(self) -> None:
        if self.is_open:
            self.is_open = self._opened[self._index] = False


def test_a_dumb_terminal_gets_plain_lines(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_view("auto", Terminal(), header), PlainLines)


def test_no_color_is_obeyed(header: RunHeader, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    panel = Panel(Console(file=stream, force_terminal=True, width=80, height=24), header)
    panel.record(record, VERDICT)
    assert "\x1b[1m" in stream.getvalue()
    for color in range(30, 38):
        assert f"\x1b[{color}m" not in stream.getvalue()
        assert f";{color}m" not in stream.getvalue()


def test_the_panel_gives_stdout_back(screen: Screen) -> None:
    before = sys.stdout
    screen.panel.record(RECORD)
    assert sys.stdout is before


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
