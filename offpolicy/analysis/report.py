"""A comparison as a report: tables for the terminal, Markdown, and one HTML page with its picture inside."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offpolicy.analysis.compare import BUSY, NOISE, UNLIKE, Cell, ComparedSection

STYLES = {
    **dict.fromkeys((NOISE, BUSY, UNLIKE), "dim"),
    **dict.fromkeys(("faster", "better"), "bold cyan"),
    **dict.fromkeys(("slower", "worse"), "bold yellow"),
}
TITLE_WIDTH, VALUE_WIDTH, CHANGE_WIDTH, VERDICT_WIDTH = 22, 9, 6, 6  # characters, without the space between columns
OTHER_WIDTH = VALUE_WIDTH + CHANGE_WIDTH + VERDICT_WIDTH + 3  # characters of a label beside the baseline, with it
INTERVAL_WIDTH = 16  # characters that an interval adds
MANY_TIMES = 3.0  # relative change from which it is written as a factor rather than in percent
# What is rounded to this or more, in which unit, with which suffix: from three digits of the next lower one on.
SUFFIXES = ((999.5e9, 1e12, "T"), (999.5e6, 1e9, "G"), (999_999.5, 1e6, "M"))
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:15px/1.45 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222}}
table{{border-collapse:collapse;margin:1em 0}} th,td{{padding:.2em .7em;text-align:right;white-space:nowrap}}
th:first-child,td:first-child{{text-align:left}} thead th{{border-bottom:2px solid #888}}
tr.sum td{{border-top:1px solid #888}}
td small{{color:#666}} .noise,.busy,.unlike{{color:#888}} .faster,.better{{color:#00618f;font-weight:600}}
.slower,.worse{{color:#a34e00;font-weight:600}} img{{max-width:100%}} li{{margin:.2em 0}}
</style></head><body><h1>{title}</h1>
<img alt="time per iteration and learning curves" src="data:image/png;base64,{png}">
{tables}<ul>{notes}</ul></body></html>
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Compared labels, the first the baseline, with their tables; `notes` say what the numbers rest on."""

    labels: tuple[str, ...]
    sections: tuple[ComparedSection, ...]
    notes: tuple[str, ...]
    differs: tuple[str, ...] = ()  # versions of packages, said above the tables

    @property
    def title(self) -> str:
        """One line."""
        return f"{', '.join(self.labels[1:])} against {self.labels[0]}"


def terminal(report: Report, width: int) -> RenderableType:
    """Returns tables of as many columns as fit into `width`, with intervals where they fit."""
    others = range(1, len(report.labels))
    room = width - TITLE_WIDTH - VALUE_WIDTH - 1
    at_once = max(1, room // OTHER_WIDTH)
    with_intervals = room >= min(len(others), at_once) * (OTHER_WIDTH + INTERVAL_WIDTH)
    parts: list[RenderableType] = [*map(Text, report.differs)]
    for start in range(0, len(others), at_once):
        for section in report.sections:
            parts += [_table(report.labels, section, others[start : start + at_once], with_intervals), Text()]
    return Group(*parts, *map(Text, report.notes))


def _table(labels: Sequence[str], section: ComparedSection, others: Sequence[int], with_intervals: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column(section.title, width=TITLE_WIDTH, overflow="fold")
    table.add_column(labels[0], justify="right", width=VALUE_WIDTH, overflow="fold")
    for index in others:
        table.add_column(labels[index], justify="right", width=VALUE_WIDTH, overflow="fold")
        table.add_column("change", justify="right", width=CHANGE_WIDTH + (INTERVAL_WIDTH if with_intervals else 0))
        table.add_column("", width=VERDICT_WIDTH)
    for row in section.rows:
        first, *rest = (row.cells[index] for index in (0, *others))
        if any(cell.remark or math.isfinite(cell.value) for cell in (first, *rest)):
            texts = [Text(row.title, "bold" if row.is_sum else ""), Text(texts_of(first)[0])]
            for cell in rest:
                value, change, verdict = texts_of(cell, row.is_relative, with_intervals)
                texts += [Text(value), Text(change), Text(verdict, STYLES.get(verdict, ""))]
            table.add_row(*texts)
    return table


def quantity(value: float) -> str:
    """Returns three or four digits in at most 7 characters; a dash where nothing is known."""
    if not math.isfinite(value):
        return "-"
    for least, unit, suffix in SUFFIXES:
        if abs(value) >= least:
            return f"{value / unit:,.3g}{suffix}"
    if abs(value) >= 999.95:
        return f"{value:,.0f}"
    return f"{value:z.3f}" if abs(value) < 9.9995 else f"{value:.1f}"


def texts_of(cell: Cell, is_relative: bool = True, with_interval: bool = True) -> tuple[str, str, str]:
    """Returns value, change and verdict. A change is in percent, a factor where it is large, or absolute, as it is."""
    value, change = cell.remark or quantity(cell.value), cell.change
    if change is None:
        return value, "", cell.verdict
    if is_relative and change.value > MANY_TIMES:
        return value, f"x{1.0 + change.value:,.3g}", cell.verdict

    def percent(fraction: float) -> str:
        number = f"{round(100.0 * fraction) + 0:+d}"
        return number if abs(fraction) < 100.0 else "> 9999" if fraction > 0 else "< -9999"

    write, unit = (percent, "%") if is_relative else (quantity, "")
    sign = "+" if not is_relative and change.value >= 0.0 else ""
    bounds = f" [{write(change.low)}, {write(change.high)}]" if with_interval else ""
    return value, f"{sign}{write(change.value)}{unit}{bounds}", cell.verdict


def markdown(report: Report, picture: str | None) -> str:
    """Returns all labels in one table per section; `picture`: path of the image."""
    lines = [f"# {report.title}", "", *(f"{line}\n" for line in report.differs)]
    lines += [f"![time per iteration and learning curves]({picture})", ""] if picture else []
    for section in report.sections:
        names = [section.title, *(label.replace("|", "\\|") for label in report.labels)]
        lines += [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * len(report.labels)}"]
        for row in section.rows:
            cells = [f"**{row.title}**" if row.is_sum else row.title]
            for value, change, verdict in (texts_of(cell, row.is_relative) for cell in row.cells):
                marked = verdict if verdict in (NOISE, BUSY, UNLIKE, "") else f"**{verdict}**"
                cells.append(" ".join(filter(None, (value, change, marked))))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    notes = (note.replace("|", "\\|") for note in report.notes)
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


def html(report: Report, png: bytes) -> str:
    """Returns one page that needs no other file."""
    tables = "".join(f"<p>{escape(line)}</p>" for line in report.differs)
    for section in report.sections:
        rows, head = "", "".join(f"<th>{escape(text)}</th>" for text in (section.title, *report.labels))
        for row in section.rows:
            cells = f"<td>{escape(row.title)}</td>"
            for value, change, verdict in (texts_of(cell, row.is_relative) for cell in row.cells):
                marked = f'<span class="{verdict}">{verdict}</span>'
                cells += f"<td>{escape(value)} <small>{escape(change)}</small> {marked}</td>"
            rows += f'<tr class="{"sum" if row.is_sum else ""}">{cells}</tr>'
        tables += f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return PAGE.format(title=escape(report.title), png=base64.b64encode(png).decode(), tables=tables, notes=notes)
