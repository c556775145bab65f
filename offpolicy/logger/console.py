"""Texts of numbers, paths and outcomes, and plain lines for pipes and files. A closed terminal never raises."""

from __future__ import annotations

import errno
import io
import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from offpolicy.logger.metrics import METRICS, core_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.summary import RunStatus
from offpolicy.output import drain, return_text, silence, three_digits
from offpolicy.timing.bottleneck import Verdict
from offpolicy.types import EvalResult

UNKNOWN = "-"
STATUS_STYLES = {
    RunStatus.COMPLETED.value: "bold green",
    RunStatus.INTERRUPTED.value: "bold yellow",
    RunStatus.FAILED.value: "bold red",
}
LEAST_CORES = 0.005  # rounded to 0.01
TABLE_WIDTH = 100  # characters of the final table of a run


def number(record: Mapping[str, float | str | None], key: str) -> float | None:
    """Returns the number under `key`, or None."""
    value = record.get(key)
    return None if value is None or isinstance(value, str) else value


def text(record: Mapping[str, float | str | None], key: str) -> str:
    """Returns the text under `key`, or ''."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def duration(seconds: float | None) -> str:
    """Returns `1:58`, `2:03:04` or `3d 4:05:06`."""
    if seconds is None:
        return UNKNOWN
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not hours:
        return f"{minute}:{second:02d}"
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02d}:{second:02d}"
    return f"{days}d {clock}" if days else clock


def rate(value: float | None) -> str:
    """Returns one decimal below 1000, none from there on; below 1 three significant digits."""
    if value is None:
        return UNKNOWN
    if 0.0 < abs(value) < 1.0:
        return three_digits(value)
    return f"{value:z.1f}" if abs(value) < 999.95 else f"{value:.0f}"


def fixed(value: float | None, decimals: int) -> str:
    """Returns the value with `decimals` decimals."""
    return UNKNOWN if value is None else f"{value:z.{decimals}f}"


def significant(value: float | None) -> str:
    """Returns three significant digits, for losses and values of any size."""
    return UNKNOWN if value is None else three_digits(value)


def mean_return(value: float | None) -> str:
    """Returns a mean return, or the spread of returns."""
    return UNKNOWN if value is None else return_text(value)


def milliseconds(value: float | None) -> str:
    """Returns two decimals below 1000 ms, none from there on: a column of 8 characters."""
    if value is None:
        return UNKNOWN
    return f"{value:z.2f}" if value < 999.995 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """Returns the value with thousands separators."""
    return UNKNOWN if value is None else f"{value:z,.0f}"


def percent(part: float | None, whole: float | None) -> str:
    """Returns `part` as a percentage of `whole` with one decimal."""
    return UNKNOWN if part is None or not whole else f"{100.0 * part / whole:.1f}%"


def cores_text(used: Mapping[str, float], capacity: float) -> str:
    """Returns the classes of the core ledger in cores, without those that used none, such as `learner 0.98 of 2`."""
    parts = [f"{METRICS[core_key(row)].row} {cores:.2f}" for row, cores in used.items() if abs(cores) >= LEAST_CORES]
    return "  ".join([*parts, f"of {capacity:g}"])


def shown_path(path: Path) -> str:
    """Returns a path as it is typed from here: relative where it is below the working directory, quoted for a shell."""
    try:
        whole, here = path.absolute(), Path.cwd()
    except OSError:  # the working directory was deleted
        return shlex.quote(str(path))
    return shlex.quote(os.path.relpath(whole, here) if whole.is_relative_to(here) else str(whole))


class OwnConsole(Console):
    """A console that raises `BrokenPipeError` when its reader has left, where rich ends the process with 1."""

    def on_broken_pipe(self) -> None:
        """Raises `BrokenPipeError`."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def plain_console() -> Console:
    """Returns the console of a command: a label or path is printed as it is, `[red]` no style and `:word:` no emoji."""
    return OwnConsole(markup=False, highlight=False, emoji=False)


def plain_text(*parts: RenderableType, width: int) -> str:
    """Returns what it prints, as text without colours, `width` characters wide; what must not be cut is longer."""
    text = io.StringIO()
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False,
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    for part in parts:
        console.print(part, crop=False)
    return text.getvalue()


def text_table(first: str, *others: str, title: str | None = None, left: Collection[str] = ()) -> Table:
    """Returns an empty table of a command: `first` and the columns in `left` are texts, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


class View:
    """The output of the logger on a terminal, pipe or file; what a view does not define shows nothing."""

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Shows the newest record; `verdict` is the one that the record holds as text."""

    def last_record(self, record: Record) -> None:
        """Shows the record that holds the end of the run: no iteration follows."""

    def status(self, status: str) -> None:
        """Shows the status of the run before its first record."""

    def set_header(self, header: RunHeader) -> None:
        """Takes over what has become known of the run."""

    def evaluation(self, result: EvalResult) -> None:
        """Shows an evaluation that has just ended."""

    def activity(self, activity: str) -> None:
        """Shows what the run does besides learning, such as `evaluating`; '' when it learns again."""

    def stopping(self, message: str) -> None:
        """Shows at once that the run is being stopped."""

    def message(self, message: str) -> None:
        """Shows a line that stays readable."""

    def tick(self) -> None:
        """Answers keys and a resized terminal; called about ten times a second."""

    def finish(self, table: RenderableType) -> None:
        """Shows the final table; nothing follows but `close`."""

    def close(self) -> None:
        """Releases the terminal, once it has taken what was written to it."""


def plain_line(record: Record, total_timesteps: int) -> str:
    """Returns one interval in one line of ASCII; what is not known, as at the end of a run, is left out."""
    steps = int(number(record, "env_steps") or 0)
    eta = number(record, "time/eta_s")
    parts = {
        "ret": mean_return(number(record, "rollout/ep_rew_mean")),
        "thru": _with_unit(rate(number(record, "perf/steps_per_sec")), "/s"),
        "I": _with_unit(rate(number(record, "perf/collector_capacity")), "/s"),
        "T": _with_unit(rate(number(record, "perf/learner_capacity")), "/s"),
        "wait": _with_unit(fixed(number(record, "timing/learner_collector_wait_ms"), 1), "ms"),
        "utd": fixed(number(record, "perf/utd"), 2),
        "eta": duration(eta) if eta else UNKNOWN,
        "bottleneck": text(record, "perf/bottleneck") or UNKNOWN,
    }
    known = "".join(f" {name}={value}" for name, value in parts.items() if value != UNKNOWN)
    return f"{min(100, 100 * steps // total_timesteps)}% step={steps}/{total_timesteps}{known}"


def _with_unit(value: str, unit: str) -> str:
    return value if value == UNKNOWN else value + unit


def evaluation_line(result: EvalResult) -> str:
    """Returns an evaluation in one line of ASCII."""
    return (
        f"evaluation step={result.env_steps} ret={return_text(result.mean_reward)} std={return_text(result.std_reward)}"
        f" episodes={result.episodes}"
    )


class PlainLines(View):
    """Writes one flushed line per interval, for pipes and files, and whatever else a program has as its stdout.

    Once a line is refused, no further one is written. There may be no stream at all.
    """

    def __init__(self, stream: TextIO | None, header: RunHeader) -> None:
        self._stream = stream
        self._header = header
        self._is_open = True
        self._status = ""

    def set_header(self, header: RunHeader) -> None:
        """Takes over what has become known of the run."""
        self._header = header

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Writes the line of the record."""
        self._line(plain_line(record, self._header.total_timesteps))

    def last_record(self, record: Record) -> None:
        """Writes the line of the record."""
        self.record(record)

    def evaluation(self, result: EvalResult) -> None:
        """Writes the line of the evaluation."""
        self._line(evaluation_line(result))

    def status(self, status: str) -> None:
        """Writes the status as a line, once."""
        if status != self._status:
            self._status = status
            self._line(status)

    def stopping(self, message: str) -> None:
        """Writes the message as a line."""
        self._line(message)

    def message(self, message: str) -> None:
        """Writes the message as it is."""
        self._line(message)

    def finish(self, table: RenderableType) -> None:
        """Writes the table without colours."""
        self._line(plain_text(table, width=TABLE_WIDTH).rstrip("\n"))

    def close(self) -> None:
        """Waits until every line is taken, or nothing is read any more."""
        if self._stream is not None:
            drain(self._stream)

    def _line(self, line: str) -> None:
        if self._stream is None or not self._is_open:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._is_open = False
            silence(self._stream)
        except Exception:  # of a stream that a program has put in place of stdout: its file stays as it is
            self._is_open = False
