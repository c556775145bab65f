from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from offpolicy.logger.console import (
    PlainLines,
    cores_text,
    count,
    duration,
    fixed,
    milliseconds,
    percent,
    plain_console,
    plain_line,
    plain_text,
    rate,
    significant,
)
from offpolicy.logger.metrics import METRICS, core_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.types import EvalResult

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


def test_the_plain_line_is_the_documented_one() -> None:
    assert plain_line(EXAMPLE, 20_000) == (
        "10% step=2000/20000 ret=-812.3 thru=151.2/s I=4100/s T=155.0/s wait=0.1ms utd=1.00 eta=1:58"
        " bottleneck=learner(train 94%)"
    )


def test_a_plain_line_leaves_out_what_is_not_known() -> None:
    assert plain_line({"env_steps": 0}, 20_000) == "0% step=0/20000"


def test_a_pipe_gets_one_flushed_line_per_record(header: RunHeader) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w") as sink:
        PlainLines(sink, header).record(EXAMPLE)
        assert source.readline() == plain_line(EXAMPLE, 20_000) + "\n"


def lines_of(header: RunHeader, *calls: tuple[str, object]) -> list[str]:
    stream = io.StringIO()
    view = PlainLines(stream, header)
    for name, argument in calls:
        getattr(view, name)(argument)
    return stream.getvalue().splitlines()


def test_an_evaluation_is_a_line_when_it_ends(header: RunHeader) -> None:
    result = EvalResult(env_steps=1500, mean_reward=-150.25, std_reward=80.5, mean_length=200.0, episodes=10)
    assert lines_of(header, ("activity", "evaluating"), ("evaluation", result), ("activity", "")) == [
        "evaluation step=1500 ret=-150.2 std=80.5 episodes=10"
    ]


def test_what_is_waited_for_is_one_line_however_often_it_is_said(header: RunHeader) -> None:
    waits = [("status", text) for text in ("for learner 0", "for learner 0", "for learner 0", "for the first update")]
    assert lines_of(header, *waits) == ["for learner 0", "for the first update"]


def test_stopping_is_a_line(header: RunHeader) -> None:
    assert lines_of(header, ("stopping", "stopping, saving")) == ["stopping, saving"]


def test_a_long_command_of_the_summary_is_whole(header: RunHeader) -> None:
    line = Text("offpolicy eval " + "long" * 40, no_wrap=True, overflow="ignore")
    assert lines_of(header, ("finish", Group(line))) == [line.plain]


def test_the_lines_know_a_header_that_has_changed(header: RunHeader) -> None:
    stream = io.StringIO()
    view = PlainLines(stream, header)
    view.set_header(replace(header, total_timesteps=4000))
    view.tick()
    view.record(EXAMPLE)
    assert stream.getvalue().startswith("50% step=2000/4000 ")


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


def test_an_ascii_pipe_replaces_other_characters(header: RunHeader) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainLines(stream, header).message("Größe")
    assert raw.getvalue() == b"Gr??e\n"


def test_a_stream_of_an_unknown_encoding_is_written(header: RunHeader) -> None:
    class Strange(io.StringIO):
        encoding = "klingon"

    stream = Strange()
    PlainLines(stream, header).message("Größe \udcff")
    assert stream.getvalue() == "Größe ?\n"


def test_an_error_of_a_stream_ends_the_lines_and_leaves_its_file_as_it_is(header: RunHeader, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:

        class Broken(io.StringIO):
            fileno = file.fileno
            num_writes = 0

            def write(self, text: str) -> int:
                self.num_writes += 1
                raise RuntimeError("of the program")

        stream = Broken()
        lines = PlainLines(stream, header)
        for _ in range(2):
            lines.message("hello")
        lines.close()
        assert stream.num_writes == 1
        file.write("still written")
    assert (tmp_path / "out").read_text() == "still written"


def test_a_pipe_to_head_changes_neither_stderr_nor_exit_code(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from offpolicy.logger.panel import open_view\n"
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


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0.9, "0:00"), (118.9, "1:58"), (3600.0, "1:00:00"), (90061.0, "1d 1:01:01")],
)
def test_durations_read_like_a_clock(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (151.23, "151.2"), (999.96, "1000"), (0.0123, "0.0123"), (0.0, "0.0"), (155.0, "155.0")],
)
def test_rates_have_one_decimal_below_a_thousand(value: float | None, expected: str) -> None:
    assert rate(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0.0, "0.00"), (-812.34, "-812"), (3.1, "3.10"), (1.23e7, "1.23e7"), (-4.5e-9, "-4.50e-9")],
)
def test_losses_have_three_digits_and_fit_eight_characters(value: float | None, expected: str) -> None:
    assert significant(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.1, "0.10"), (999.994, "999.99"), (999.996, "1,000")])
def test_milliseconds_fit_their_column(value: float, expected: str) -> None:
    assert milliseconds(value) == expected


def test_cores_are_named_where_they_were_used_or_a_tick_has_taken_some_back() -> None:
    used = {"learner": 0.98, "collector": 0.004, "others": -0.02}
    learner, others = METRICS[core_key("learner")].row, METRICS[core_key("others")].row
    assert cores_text(used, 2.0) == f"{learner} 0.98  {others} -0.02  of 2"


def test_a_share_of_zero_or_of_what_is_not_known_is_a_dash() -> None:
    assert (percent(0.0, 2.0), percent(0.5, 2.0), percent(1.0, 0.0), percent(None, 2.0)) == ("0.0%", "25.0%", "-", "-")


def test_no_zero_is_negative() -> None:
    assert (fixed(-0.04, 1), count(-0.4), rate(-0.0), milliseconds(-0.001)) == ("0.0", "0", "0.0", "0.00")


ODD = "runs/a[red]b[/x]:fire:"


def test_what_looks_like_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    plain_console().print(ODD, table)
    assert capsys.readouterr().out.count(ODD) == 4
    assert plain_text(ODD, table, width=60).count(ODD) == 4
