from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from offpolicy.logger.console import Panel, PlainLines, open_view, plain_line
from offpolicy.logger.record import Record, RunHeader

EXAMPLE: Record = {
    "env_steps": 2000,
    "rollout/ep_rew_mean": -812.31,
    "perf/steps_per_sec": 151.24,
    "perf/collector_capacity": 4100.4,
    "perf/learner_capacity": 155.0,
    "timing/learner_collector_wait_ms": 0.1,
    "perf/utd": 1.0,
    "time/eta_s": 118.6,
    "perf/bottleneck": "learner(train 94%)",
}


def panel_on(stream: io.StringIO, header: RunHeader) -> Panel:
    return Panel(Console(file=stream, force_terminal=True, width=80, height=24, color_system=None), header)


def test_the_plain_line_is_the_documented_one() -> None:
    assert plain_line(EXAMPLE, 20_000) == (
        "10% step=2000/20000 ret=-812.3 thru=151.2 I=4100 T=155.0 wait=0.1ms utd=1.00 eta=1:58"
        " bottleneck=learner(train 94%)"
    )


def test_a_plain_line_without_data_has_dashes() -> None:
    assert plain_line({"env_steps": 0}, 20_000) == (
        "0% step=0/20000 ret=- thru=- I=- T=- wait=- utd=- eta=- bottleneck=-"
    )


def test_a_pipe_gets_one_flushed_line_per_record(header: RunHeader) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w") as sink:
        PlainLines(sink, header).record(EXAMPLE)
        assert source.readline() == plain_line(EXAMPLE, 20_000) + "\n"


def test_a_closed_pipe_never_raises(header: RunHeader) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as sink:
        view = PlainLines(sink, header)
        view.record(EXAMPLE)
        view.message("still here")
        view.finish(Text("the end"))


def test_a_closed_stream_never_raises(header: RunHeader) -> None:
    stream = io.StringIO()
    stream.close()
    PlainLines(stream, header).record(EXAMPLE)
    panel_on_closed = Panel(Console(file=stream, force_terminal=True), header)
    panel_on_closed.record(EXAMPLE)
    panel_on_closed.close()


def test_an_ascii_pipe_replaces_what_it_cannot_say(header: RunHeader) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainLines(stream, header).message("Größe")
    assert raw.getvalue() == b"Gr??e\n"


def test_head_ends_a_run_neither_with_a_traceback_nor_with_another_exit_code(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from offpolicy.logger.console import open_view\n"
        "from offpolicy.logger.record import RunHeader\n"
        "header = RunHeader(algo='sac', env_id='X', seed=1, mode='alternate', total_timesteps=1)\n"
        "view = open_view('auto', sys.stdout, header)\n"
        "for _ in range(20000): view.message('x' * 80)\n"
        "sys.stderr.write('alive')\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    pipeline = f'"{sys.executable}" "{script}" | head -1 > /dev/null; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", pipeline],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "alive")


def test_a_file_gets_plain_lines_and_a_forced_panel_gets_a_panel(header: RunHeader) -> None:
    assert isinstance(open_view("auto", io.StringIO(), header), PlainLines)
    assert isinstance(open_view("off", io.StringIO(), header), PlainLines)
    assert isinstance(open_view("on", io.StringIO(), header), Panel)


def test_the_panel_redraws_at_most_four_times_a_second(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    for tick in range(20):
        panel.record({**EXAMPLE, "wall_s": tick * 0.05})
    panel.close()
    drawn = stream.getvalue().count("sac | Pendulum-v1")
    assert 4 <= drawn <= 5


def test_a_message_stands_above_the_panel(header: RunHeader) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    panel.record({**EXAMPLE, "wall_s": 1.0})
    panel.message("warning: look here")
    panel.close()
    shown = stream.getvalue()
    assert shown.rindex("warning: look here") < shown.rindex("sac | Pendulum-v1")


def test_a_status_is_shown_until_there_is_a_record(header: RunHeader) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    panel.status("collecting random steps 10/1000")
    panel.record({**EXAMPLE, "wall_s": 1.0})
    panel.status("too late")
    panel.close()
    assert "collecting random steps 10/1000" in stream.getvalue()
    assert "too late" not in stream.getvalue()


def test_the_summary_follows_the_last_record(header: RunHeader) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    panel.record({**EXAMPLE, "wall_s": 1.0})
    panel.record({**EXAMPLE, "wall_s": 1.1, "env_steps": 20_000})
    panel.finish(Text("the summary"))
    panel.close()
    shown = stream.getvalue()
    assert "20,000 / 20,000" in shown
    assert shown.rstrip().endswith("the summary")


def test_the_panel_leaves_no_thread_and_gives_stdout_back(header: RunHeader) -> None:
    before = sys.stdout
    panel = panel_on(io.StringIO(), header)
    panel.record({**EXAMPLE, "wall_s": 1.0})
    panel.close()
    assert sys.stdout is before
