"""Plain lines, the numbers in them, the view of a notebook, and what takes the place of a view that fails."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

from offpolicy.logger.console import count, duration, fixed, milliseconds, plain_console, plain_text, rate
from offpolicy.logger.panel import open_view
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.view import NotebookView, PlainLines, SafeView, View, plain_line
from offpolicy.types import EvalResult
from tests.unit.processes.test_signals import shell

EXAMPLE: Record = {
    "env_steps": 2000, "rollout/ep_rew_mean": -812.31, "perf/steps_per_sec": 151.24, "perf/collector_capacity": 4100.4,
    "perf/learner_capacity": 155.0, "timing/learner_collector_wait_ms": 0.1, "perf/utd": 1.0, "time/eta_s": 118.6,
    "perf/bottleneck": "learner(train 94%)",
}  # fmt: skip


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


WRITING = """
import sys
from offpolicy.logger.panel import open_view
from offpolicy.logger.record import RunHeader
view = open_view("auto", sys.stdout, RunHeader(algo="sac", env_id="X", seed=1, mode="free", total_timesteps=1))
for _ in range(20000): view.message("x" * 80)
view.close()
view.message("the end")
print("printed")
sys.stderr.write("alive ")
"""


def test_a_pipe_to_head_changes_neither_stderr_nor_exit_code(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(WRITING)
    assert shell(f'{{ "$PY" {tmp_path}/run.py; echo $? >&2; }} | head -1').stderr == "alive 0\n"


def test_durations_read_like_a_clock_and_no_zero_is_negative() -> None:
    shown = [duration(seconds) for seconds in (None, 0.9, 118.9, 3600.0, 90061.0)]
    assert shown == ["-", "0:00", "1:58", "1:00:00", "1d 1:01:01"]
    assert (fixed(-0.04, 1), count(-0.4), rate(-0.0), milliseconds(-0.001)) == ("0.0", "0", "0.0", "0.00")


ODD = "runs/a[red]b[/x]:fire:"


def test_what_looks_like_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    plain_console().print(ODD, table)
    assert capsys.readouterr().out.count(ODD) == 4
    assert plain_text(ODD, table, width=60).count(ODD) == 4


HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=1000)


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


def test_records_share_one_output_with_the_newest_messages_escaped(evaluation: EvalResult) -> None:
    outputs = Outputs()
    view = NotebookView(outputs, HEADER)
    view.status("starting: waiting for learner 0")
    for number in range(8):
        view.message(f"message <{number}>")
    view.evaluation(evaluation)
    view.record({"env_steps": 500.0, "rollout/ep_rew_mean": -3.5})
    (shown,) = outputs.shown
    assert "waiting for learner 0" in shown[0]["text/plain"]
    assert '<progress value="500" max="1000"' in shown[-1]["text/html"]
    assert "message &lt;7&gt;" in shown[-1]["text/html"]
    assert shown[-1]["text/plain"].startswith("50% step=500/1000 ret=-3.50\nmessage <3>\n")
    assert shown[-1]["text/plain"].endswith("evaluation step=1500 ret=-150.2 std=80.5 episodes=10")


def test_a_notebook_has_its_view_unless_the_panel_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, stream = Outputs(), io.StringIO()
    display = SimpleNamespace(display=outputs)
    kernel = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=kernel))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]
    assert isinstance(open_view("off", stream, HEADER), PlainLines)
    open_view("auto", stream, HEADER).status("starting")
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
