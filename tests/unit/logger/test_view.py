"""Plain lines, the view of a notebook, the panel on a terminal, and what takes the place of a view that fails."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offpolicy.logger.console import count, duration, milliseconds, plain_console, plain_text, rate
from offpolicy.logger.panel_lines import plain_line
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.view import NotebookView, Panel, PlainLines, SafeView, View, open_view
from offpolicy.model.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import EvalResult
from tests.full_pipe import FullPipe
from tests.unit.processes.test_signals import shell

ENTER, LEAVE, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[1;1H"
EXAMPLE: Record = {
    "env_steps": 2000, "rollout/ep_rew_mean": -812.31, "perf/steps_per_sec": 151.24, "perf/collector_capacity": 4100.4,
    "perf/learner_capacity": 155.0, "timing/learner_collector_wait_ms": 0.1, "perf/utd": 1.0, "time/eta_s": 118.6,
    "perf/bottleneck": "learner(train 94%)",
}  # fmt: skip
VERDICT = Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", share=0.92)
ODD = "runs/a[red]b[/x]:fire:"
WRITING = """
import sys
from offpolicy.logger.view import open_view
from offpolicy.logger.record import RunHeader
view = open_view("auto", sys.stdout, RunHeader(algo="sac", env_id="X", seed=1, mode="free", total_timesteps=1))
for _ in range(20000): view.message("x" * 80)
view.close()
view.message("the end")
print("printed")
sys.stderr.write("alive ")
"""


@pytest.mark.promise("plain-line")
def test_the_plain_line_is_the_documented_one() -> None:
    assert plain_line(EXAMPLE, 20_000) == (
        "10% step=2000/20000 ret=-812.3 thru=151.2/s I=4100/s T=155.0/s wait=0.1ms utd=1.00 eta=1:58"
        " bottleneck=learner(train 94%)"
    )
    assert plain_line({"env_steps": 0}, 20_000) == "0% step=0/20000"  # without what is not known


def test_a_status_is_one_line_however_often_it_is_shown_and_an_evaluation_another(
    header: RunHeader, evaluation: EvalResult
) -> None:
    stream = io.StringIO()
    view = PlainLines(stream, header)
    for status in ("for learner 0", "for learner 0", "for the first update"):
        view.status(status)
    view.activity("evaluating")
    view.evaluation(evaluation)
    assert stream.getvalue().splitlines() == [
        "for learner 0", "for the first update", "evaluation step=1500 ret=-150.2 std=80.5 episodes=10"
    ]  # fmt: skip


def test_an_ascii_pipe_replaces_other_characters(header: RunHeader) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w", encoding="ascii") as stream:
        view = open_view("off", stream, header)
        view.message("Größe")
        view.close()
        assert source.readline() == "Gr??e\n"


def test_a_pipe_to_head_changes_neither_stderr_nor_exit_code(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(WRITING)
    assert shell(f'{{ "$PY" {tmp_path}/run.py; echo $? >&2; }} | head -1').stderr == "alive 0\n"


def test_durations_read_like_a_clock_and_no_zero_is_negative() -> None:
    shown = [duration(seconds) for seconds in (None, 0.9, 118.9, 3600.0, 90061.0)]
    assert shown == ["-", "0:00", "1:58", "1:00:00", "1d 1:01:01"]
    assert (count(-0.4), rate(-0.0), milliseconds(-0.001)) == ("0", "0.0", "0.00")


def test_what_looks_like_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    plain_console().print(ODD, table)
    assert capsys.readouterr().out.count(ODD) == 4
    assert plain_text(ODD, table, width=60).count(ODD) == 4


class Outputs:
    """The outputs of a cell, each as the list of what it has shown."""

    def __init__(self) -> None:
        self.shown: list[list[dict[str, str]]] = []

    def __call__(self, obj: Any, *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        own = [obj]
        self.shown.append(own)
        return SimpleNamespace(update=lambda obj, *, raw: own.append(obj))


def test_records_share_one_output_with_the_newest_messages_escaped(header: RunHeader, evaluation: EvalResult) -> None:
    outputs = Outputs()
    view = NotebookView(outputs, header)
    view.status("starting: waiting for learner 0")
    for number in range(8):
        view.message(f"message <{number}>")
    view.evaluation(evaluation)
    view.record({"env_steps": 500.0, "rollout/ep_rew_mean": -3.5})
    (shown,) = outputs.shown
    assert "waiting for learner 0" in shown[1]["text/plain"]
    assert '<progress value="500" max="20000"' in shown[-1]["text/html"]
    assert "message &lt;7&gt;" in shown[-1]["text/html"]
    assert shown[-1]["text/plain"].startswith("2% step=500/20000 ret=-3.50\nmessage <3>\n")
    assert shown[-1]["text/plain"].endswith("evaluation step=1500 ret=-150.2 std=80.5 episodes=10")


def test_a_notebook_has_its_view_unless_the_panel_is_off(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, stream = Outputs(), io.StringIO()
    display = SimpleNamespace(display=outputs)
    kernel = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=kernel))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]
    assert isinstance(open_view("off", stream, header), PlainLines)
    open_view("auto", stream, header).status("starting")
    assert len(outputs.shown) == 1


class Broken(View):
    """Fails with its first message, and again when it is closed."""

    num_closed = 0

    def message(self, message: str) -> None:
        raise ZeroDivisionError("a bug")

    def close(self) -> None:
        self.num_closed += 1
        raise OSError("no terminal")


def test_a_view_that_raises_is_closed_and_plain_lines_go_on(header: RunHeader) -> None:
    broken, stream = Broken(), io.StringIO()
    view = SafeView(broken, PlainLines(stream, header))
    view.message("hello")
    view.finish("the end")
    assert broken.num_closed == 1
    assert stream.getvalue().splitlines() == [
        "warning: the panel is disabled for the rest of the run: ZeroDivisionError: a bug", "hello", "the end"
    ]  # fmt: skip


class Terminal(io.StringIO):
    """A terminal of which a test reads both screens, without colours."""

    encoding = "utf-8"  # type: ignore[assignment]  # of the stream

    def isatty(self) -> bool:
        return True

    @property
    def is_alternate(self) -> bool:
        return self.getvalue().rfind(ENTER) > self.getvalue().rfind(LEAVE)

    @property
    def has_cursor(self) -> bool:
        return self.getvalue().rfind("\x1b[?25l") <= self.getvalue().rfind("\x1b[?25h")

    @property
    def frame(self) -> list[str]:
        """The lines that the panel has drawn last: each frame fills the alternate screen."""
        newest = self.getvalue().rpartition(ENTER)[2].rpartition(HOME)[2]
        return [plain(line) for line in re.split(r"\x1b\[\d+;1H", newest)]  # each goes to its row

    @property
    def ordinary(self) -> str:
        """All that was written to the ordinary screen."""
        return plain(re.sub(rf"{re.escape(ENTER)}.*?({re.escape(LEAVE)}|$)", "", self.getvalue(), flags=re.DOTALL))


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)


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


def test_a_resize_leaves_no_ghost(header: RunHeader, record: Record) -> None:
    for width, height in ((160, 50), (80, 24), (40, 12)):
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
    screen.panel.record({"env_steps": 2000, "wall_s": 1.0})
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


def test_a_terminal_that_takes_nothing_stops_nothing_and_shows_the_newest_frame_once_it_does(header: RunHeader) -> None:
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
