"""Texts of numbers and paths, and the consoles and tables of commands."""

from __future__ import annotations

import errno
import io
import os
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from offpolicy.logger.metrics import METRICS, listed
from offpolicy.logger.summary import RunStatus
from offpolicy.output import UNKNOWN, return_text, three_digits

STATUS_STYLES = {
    RunStatus.COMPLETED.value: "bold green",
    RunStatus.INTERRUPTED.value: "bold yellow",
    RunStatus.FAILED.value: "bold red",
}
LEAST_CORES = 0.005  # rounded to 0.01


def number(record: Mapping[str, float | str | None], key: str) -> float | None:
    """Returns the number under `key`, or None."""
    value = record.get(key)
    return None if value is None or isinstance(value, str) else value


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


def milliseconds(value: float | None) -> str:
    """Returns two decimals below 1000 ms, none from there on: a column of 8 characters."""
    if value is None:
        return UNKNOWN
    return f"{value:z.2f}" if value < 999.995 else f"{value:,.0f}"


def count(value: float | None) -> str:
    """Returns the value with thousands separators."""
    return UNKNOWN if value is None else f"{value:z,.0f}"


# By unit; what has none of these is a count.
FORMATS: Mapping[str, Callable[[float], str]] = {
    "s": duration, "return": return_text, "env steps/s": rate, "updates/s": rate,
    **dict.fromkeys(("ms/iteration", "ms/vector step", "ms/rollout", "ms/packed batch"), milliseconds),
    **dict.fromkeys(("versions", "steps", "GiB", "%"), "{:z.1f}".format),
    "updates/env step": "{:z.2f}".format, "fraction": "{:.1%}".format,
}  # fmt: skip


def text_of(record: Mapping[str, float | str | None], key: str, spec: str = "") -> str:
    """Returns the number under `key` in the format `spec`, or in that of its unit; `-` where there is none."""
    value = number(record, key)
    if value is None:
        return UNKNOWN
    return f"{value:{spec}}" if spec else FORMATS.get(METRICS[listed(key)].unit, count)(value)


def cores_text(used: Mapping[str, float], capacity: float) -> str:
    """Returns the classes of the core ledger in cores, without those that used none, such as `learner 0.98 of 2`."""
    parts = [
        f"{METRICS[f'cores/{row}_ms_per_s'].row} {cores:.2f}"
        for row, cores in used.items()
        if abs(cores) >= LEAST_CORES
    ]
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
        file=text, width=width, color_system=None, force_terminal=False, force_jupyter=False, markup=False,
        highlight=False, emoji=False,
    )  # fmt: skip
    console.print(*parts, sep="\n", crop=False)
    return text.getvalue().rstrip("\n")


def text_table(first: str, *others: str, title: str | None = None, left: Collection[str] = ()) -> Table:
    """Returns an empty table of a command: `first` and the columns in `left` are texts, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table
