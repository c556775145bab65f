"""A comparison as text: for the terminal, Markdown, and one HTML page with its picture inside."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from offpolicy.analysis.intervals import Interval
from offpolicy.analysis.verdicts import NOISE, Cell, Row, Section

STYLES = {
    NOISE: "dim",
    **dict.fromkeys(("faster", "better"), "bold cyan"),
    **dict.fromkeys(("slower", "worse"), "bold yellow"),
}
TITLE_WIDTH, VALUE_WIDTH, CHANGE_WIDTH, VERDICT_WIDTH = 22, 9, 6, 6  # without the space between columns
OTHER_WIDTH = VALUE_WIDTH + CHANGE_WIDTH + VERDICT_WIDTH + 3  # with it
INTERVAL_WIDTH = 16  # what the intervals take more
MANY_TIMES = 3.0  # a change told as a factor rather than in percent
SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:15px/1.45 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222}}
table{{border-collapse:collapse;margin:1em 0}} th,td{{padding:.2em .7em;text-align:right;white-space:nowrap}}
th:first-child,td:first-child{{text-align:left}} thead th{{border-bottom:2px solid #888}}
tr.sum td{{border-top:1px solid #888}}
td small{{color:#666}} .noise{{color:#888}} .faster,.better{{color:#00618f;font-weight:600}}
.slower,.worse{{color:#a34e00;font-weight:600}} img{{max-width:100%}} li{{margin:.2em 0}}
</style></head><body><h1>{title}</h1>
{picture}{tables}<ul>{notes}</ul></body></html>
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What is compared: a column per label, the first the baseline; `notes` say what the numbers rest on."""

    labels: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """One line."""
        return f"{', '.join(self.labels[1:])} against {self.labels[0]}"


def terminal(report: Report, width: int) -> RenderableType:
    """Tables of as many columns as fit into `width`; intervals where one label is held against the first."""
    others = range(1, len(report.labels))
    room = width - TITLE_WIDTH - VALUE_WIDTH - 1
    at_once = max(1, room // OTHER_WIDTH)
    with_intervals = room >= min(len(others), at_once) * (OTHER_WIDTH + INTERVAL_WIDTH)
    parts: list[RenderableType] = []
    for start in range(0, len(others), at_once):
        chunk = others[start : start + at_once]
        for section in report.sections:
            parts += [_table(report, section, chunk, with_intervals), Text()]
    return Renderables(*parts, *(Text(note) for note in report.notes))


def _table(report: Report, section: Section, others: Sequence[int], with_intervals: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column(section.title, width=TITLE_WIDTH, overflow="fold")
    table.add_column(report.labels[0], justify="right", width=VALUE_WIDTH, overflow="fold")
    for index in others:
        table.add_column(report.labels[index], justify="right", width=VALUE_WIDTH, overflow="fold")
        table.add_column("change", justify="right", width=CHANGE_WIDTH + (INTERVAL_WIDTH if with_intervals else 0))
        table.add_column("", width=VERDICT_WIDTH)
    for row in section.rows:
        if not any(_is_told(row.cells[index]) for index in (0, *others)):
            continue
        cells: list[Text] = []
        for index in others:
            cell = row.cells[index]
            change = _change(cell, row.is_relative, with_intervals)
            cells += [Text(_shown(cell)), Text(change), Text(cell.verdict, STYLES.get(cell.verdict, ""))]
        table.add_row(Text(row.title, "bold" if row.is_sum else ""), Text(_shown(row.cells[0])), *cells)
    return table


def _is_told(cell: Cell) -> bool:
    return bool(cell.remark) or math.isfinite(cell.value)


def _shown(cell: Cell) -> str:
    return cell.remark or quantity(cell.value)


def quantity(value: float) -> str:
    """Three or four digits in at most 7 characters; a dash where nothing is known."""
    if not math.isfinite(value):
        return "-"
    for unit, suffix in SUFFIXES:
        if abs(value) >= unit:
            return f"{value / unit:,.3g}{suffix}"
    if abs(value) >= 1000.0:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10.0 else f"{value:.1f}"


def _change(cell: Cell, is_relative: bool, with_interval: bool) -> str:
    if cell.change is None:
        return ""
    return (_percent if is_relative else _difference)(cell.change, with_interval)


def _percent(change: Interval, with_interval: bool) -> str:
    if change.value > MANY_TIMES:
        return f"x{1.0 + change.value:,.3g}"
    bounds = f" [{_whole(change.low)}, {_whole(change.high)}]" if with_interval else ""
    return f"{_whole(change.value)}%{bounds}"


def _whole(share: float) -> str:
    return f"{round(100.0 * share) + 0:+d}" if abs(share) < 100.0 else "> 9999" if share > 0 else "< -9999"


def _difference(change: Interval, with_interval: bool) -> str:
    low, high = quantity(change.low), quantity(change.high)
    return f"{'+' if change.value >= 0.0 else ''}{quantity(change.value)}" + (
        f" [{low}, {high}]" if with_interval else ""
    )


def markdown(report: Report, picture: str | None) -> str:
    """All labels in one table per section; `picture`: where the image lies."""
    lines = [f"# {report.title}", ""]
    lines += [f"![time per iteration and learning curves]({picture})", ""] if picture else []
    for section in report.sections:
        lines += [f"| {' | '.join((section.title, *map(_bar_free, report.labels)))} |"]
        lines += [f"| --- |{' ---: |' * len(report.labels)}"]
        lines += [f"| {' | '.join(_markdown_cells(row))} |" for row in section.rows] + [""]
    return "\n".join([*lines, *(f"- {_bar_free(note)}" for note in report.notes)]) + "\n"


def _bar_free(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown_cells(row: Row) -> Iterator[str]:
    yield f"**{row.title}**" if row.is_sum else row.title
    for cell in row.cells:
        verdict = cell.verdict if cell.verdict in (NOISE, "") else f"**{cell.verdict}**"
        yield " ".join(part for part in (_shown(cell), _change(cell, row.is_relative, True), verdict) if part)


def html(report: Report, png: bytes) -> str:
    """One page that needs nothing else."""
    encoded = base64.b64encode(png).decode()
    return PAGE.format(
        title=escape(report.title),
        picture=f'<img alt="time per iteration and learning curves" src="data:image/png;base64,{encoded}">',
        tables="".join(_html_table(report, section) for section in report.sections),
        notes="".join(f"<li>{escape(note)}</li>" for note in report.notes),
    )


def _html_table(report: Report, section: Section) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in (section.title, *report.labels))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_html_row, section.rows))}</tbody></table>"


def _html_row(row: Row) -> str:
    cells = "".join(
        f"<td>{escape(_shown(cell))} <small>{escape(_change(cell, row.is_relative, True))}</small>"
        f' <span class="{cell.verdict}">{cell.verdict}</span></td>'
        for cell in row.cells
    )
    return f'<tr class="{"sum" if row.is_sum else ""}"><td>{escape(row.title)}</td>{cells}</tr>'
