"""The layout of the panel: one column below 80 columns, two below 120, else three; a plain line below 60 x 15."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offpolicy.logger.account_rows import COLLECTOR, LEARNER, Row, Side, account_rows, num_rows
from offpolicy.logger.console import UNKNOWN, milliseconds, number, plain_line
from offpolicy.logger.panel_lines import (
    LEGEND,
    Shown,
    core_line,
    device_line,
    fitting,
    learning_pairs,
    machine_line,
    progress_text,
    rate_lines,
    reason_lines,
    return_line,
    speed_line,
    status_line,
    verdict_lines,
)
from offpolicy.logger.rank_lines import rank_lines
from offpolicy.logger.record import PLAIN_RUNNER, RunHeader

LEAST_WIDTH, LEAST_HEIGHT = 60, 15  # terminal columns and lines below which there is one plain line
TWO_COLUMNS, THREE_COLUMNS = 80, 120
BROAD = 100  # terminal columns from which on there is a line for every rank and one for the packer
ROOMY = 30  # terminal lines from which on the parts have empty lines between them
EIGHTHS = " ▏▎▍▌▋▊▉█"
NAME, MS, SHARE = 17, 8, 4  # characters of an account's columns


class Room(NamedTuple):
    """What the terminal has room for, and can draw."""

    width: int
    height: int
    ascii_only: bool = False
    is_full: bool = False  # all rows and metrics, also those that this run cannot have

    @property
    def inner(self) -> int:
        """Columns within the frame."""
        return self.width - 4


def render(shown: Shown, room: Room) -> RenderableType:
    """Returns the panel, never wider or higher than the room."""
    if room.width < LEAST_WIDTH or room.height < LEAST_HEIGHT:
        return Text(plain_line(shown.record, shown.header.total_timesteps), overflow="fold")
    top = [
        return_line(shown, room.inner, ascii_only=room.ascii_only),
        speed_line(shown, room.inner, ascii_only=room.ascii_only),
        *verdict_lines(shown.verdict),
    ]
    lines = room.height - 2 - 1 - len(top)
    table, below = _account_and_lines(shown, room, lines)
    for line in (*top, *below):
        line.no_wrap, line.overflow = True, "crop" if room.ascii_only else "ellipsis"
    return _framed(Group(_progress(shown, room), *top, table, *below), shown.header, room)


def render_help(shown: Shown, room: Room) -> RenderableType:
    """Returns what the short names and colours mean, and the keys."""
    lines = [Text.assemble((f"{name:<8}", "cyan"), meaning) for name, meaning in LEGEND.items()]
    lines += [
        Text.assemble(("yellow  ", "bold yellow"), "the bottleneck; red: a side got no core"),
        Text.assemble(("blue    ", "blue"), "a side waits for the other one, a rank or the packer"),
        Text.assemble(("ms, %   ", "cyan"), "a side's times sum to its last row; two sides are never added"),
        Text.assemble(("keys    ", "cyan"), "? help and back   Ctrl-C saves and ends, twice: ends now"),
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop" if room.ascii_only else "ellipsis"
    return _framed(Group(*lines), shown.header, room)


def render_status(status: str, messages: Sequence[str], header: RunHeader, room: Room) -> RenderableType:
    """Returns the panel of a run without a record: what it waits for, and what has been said."""
    said = [line for message in messages for line in message.splitlines()]
    lines = [Text(" ".join(status.splitlines()), "bold magenta"), *map(Text, said[-(max(1, room.height - 3)) :])]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop" if room.ascii_only else "ellipsis"
    if room.width < LEAST_WIDTH or room.height < LEAST_HEIGHT:
        return lines[0]
    return _framed(Group(*lines), header, room)


def _framed(content: RenderableType, header: RunHeader, room: Room) -> RenderableType:
    title = Text(_title(header, ascii_only=room.ascii_only), "bold")
    title.truncate(max(1, room.width - 6))
    frame = box.ASCII if room.ascii_only else box.ROUNDED
    return Box(content, box=frame, title=title, title_align="left", border_style="blue", width=room.width)


def _title(header: RunHeader, *, ascii_only: bool) -> str:
    envs = f"{header.num_envs} env" + "s" * (header.num_envs != 1)
    if header.num_collectors > 1:
        envs = f"{header.num_collectors} collectors x {envs}"
    runner = header.runner if header.runner not in (PLAIN_RUNNER, header.algo) else ""
    algo = f"{header.algo} {header.stage}".rstrip()
    parts = (algo, header.env_id, f"seed {header.seed}", header.mode, header.device, envs, runner)
    line = " | ".join(part for part in parts if part)
    return line.encode("ascii", "replace").decode() if ascii_only else line


def _progress(shown: Shown, room: Room) -> Table:
    steps = number(shown.record, "env_steps") or 0.0
    done = min(1.0, steps / shown.header.total_timesteps)
    grid = Table.grid(padding=(0, 0, 0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, overflow="crop" if room.ascii_only else "ellipsis")
    bar = ProgressBar(1.0, done, complete_style="green", finished_style="green")
    grid.add_row(bar, progress_text(shown.record, shown.header, is_narrow=room.width < TWO_COLUMNS))
    return grid


def _account_and_lines(shown: Shown, room: Room, lines: int) -> tuple[Table, list[Text]]:
    """Returns the account, and the lines below it: as many as there are lines for, the account's rows before them."""
    record, header = shown.record, shown.header
    rates = rate_lines(record, header, room.inner)
    machine = machine_line(record, room.inner)
    ranks = rank_lines(record, header, is_broad=room.width >= BROAD and room.height >= ROOMY)
    device = device_line(record)
    status = status_line(shown, room.inner)
    first = [*ranks[:1], *(device[:1] if not ranks else []), *([] if ranks or device else machine)]
    least = lines - 1 - _least_rows(room)  # lines besides status and account
    must = [*rates, *first][: max(0, least)]
    wanted = _wanted_rows(shown, room)
    rows = min(wanted, lines - 1 - len(must))
    later = [*(machine if ranks or device else []), *(device if ranks else []), *reason_lines(shown.verdict)]
    later += [*ranks[1:], *(core_line(record) if room.width >= THREE_COLUMNS else [])]
    extras = later[: max(0, lines - 1 - len(must) - rows)]
    gaps = [[Text("")] if spare > 0 else [] for spare in range(lines - 1 - len(must) - rows - len(extras), -1, -1)]
    gaps += [[], [], []]
    table = _account(shown, room, rows)
    return table, [*gaps[0], *must, *gaps[1], *extras, *gaps[2], status]


def _least_rows(room: Room) -> int:
    """Returns the rows of the account that always stand, with heading and wall where they have room."""
    framed = 2 if room.height > LEAST_HEIGHT + 2 else 0  # heading and wall
    return len(LEARNER.standing) + framed + (1 if framed and room.width < TWO_COLUMNS else 0)


def _wanted_rows(shown: Shown, room: Room) -> int:
    """Returns the rows with which nothing of the account is left out."""
    rows = {side.name: 1 + num_rows(side, shown.seen, is_full=room.is_full) for side in (LEARNER, COLLECTOR)}
    if room.width < TWO_COLUMNS:
        return rows["Learner"] + rows["Collector"]
    if room.width < THREE_COLUMNS:
        pairs = len(learning_pairs(shown, is_full=room.is_full))
        return max(rows["Learner"], rows["Collector"] + 1 + (pairs + 1) // 2)
    return max(*rows.values(), 1 + len(learning_pairs(shown, is_full=room.is_full)))


def _account(shown: Shown, room: Room, rows: int) -> Table:
    """Returns learner and collector with `rows` rows, side by side where they have room, and the learning curves."""
    if room.width < TWO_COLUMNS:
        return _one_column(shown, room, rows)
    separator = "|" if room.ascii_only else "│"
    is_wide = room.width >= THREE_COLUMNS
    usable = room.inner - 3 * (2 if is_wide else 1)
    widths = [usable * 9 // 25, usable * 9 // 25] if is_wide else [usable // 2]
    widths.append(usable - sum(widths))
    left = _side(LEARNER, shown, room, rows, widths[0])
    pairs = learning_pairs(shown, is_full=room.is_full)
    if is_wide:
        middle = _side(COLLECTOR, shown, room, rows, widths[1])
        right = [Text("Learning", "bold cyan"), *(_pair(*pair, widths[2]) for pair in pairs)][:rows]
        columns = [left, middle, right]
    else:
        least = 1 + len(COLLECTOR.standing) + 2
        taken = min(1 + num_rows(COLLECTOR, shown.seen, is_full=room.is_full), max(least, rows - (len(pairs) + 1) // 2))
        right = _side(COLLECTOR, shown, room, taken, widths[1])
        gap = [Text("Learning", "bold cyan")] if rows > taken + (len(pairs) + 1) // 2 else []
        columns = [left, [*right, *gap, *_in_twos(pairs, widths[1])][:rows]]
    table = Table.grid(padding=0)
    for index in range(rows):
        cells = [column[index] if index < len(column) else Text("") for column in columns]
        for cell, width in zip(cells, widths, strict=True):
            cell.truncate(width, pad=True)
        table.add_row(Text.assemble((f" {separator} ", "bright_black")).join(cells))
    return table


def _one_column(shown: Shown, room: Room, rows: int) -> Table:
    """Returns the learner's rows above the collector's; without room for those, one line of the collector."""
    least = len(LEARNER.standing) + 2
    summary = [_summary(COLLECTOR, shown, room)] if rows > least else []
    learner_rows = 1 + num_rows(LEARNER, shown.seen, is_full=room.is_full)
    collector_rows = 1 + num_rows(COLLECTOR, shown.seen, is_full=room.is_full)
    lines = _side(LEARNER, shown, room, min(learner_rows, rows - len(summary)), room.inner)
    if rows - len(lines) >= collector_rows:
        lines += _side(COLLECTOR, shown, room, rows - len(lines), room.inner)
    else:
        lines += summary
    table = Table.grid(padding=0)
    for line in lines[:rows] + [Text("")] * (rows - len(lines)):
        table.add_row(line)
    return table


def _side(side: Side, shown: Shown, room: Room, rows: int, width: int) -> list[Text]:
    """Returns a heading, where there is room for one, and the rows of one side, each `width` wide."""
    has_heading = rows > len(side.standing)
    found = account_rows(
        side, shown.record, shown.verdict, shown.header, shown.seen, rows - has_heading, is_full=room.is_full
    )
    lines = [_row_text(row, width, ascii_only=room.ascii_only) for row in found]
    if not has_heading:
        return lines
    heading = f"{side.name:<{NAME + 1 + MS - len(side.unit)}}{side.unit}{'%':>{SHARE + 1}}"
    cpu_pct = number(shown.record, side.cpu_key)
    cpu = "" if cpu_pct is None else f" {cpu_pct:.0f}% of a core"
    return [Text(heading + (cpu if len(heading) + len(cpu) <= width else ""), "bold cyan"), *lines]


def _row_text(row: Row, width: int, *, ascii_only: bool) -> Text:
    """Returns name, time, share and a bar. What holds no time is dimmed."""
    style = "bold yellow" if row.is_bottleneck else "bold" if row.is_wall else "" if row.ms else "bright_black"
    style = "bright_black" if row.note else style
    shown = row.note or milliseconds(row.ms)
    line = Text(
        f"{_cut(row.name, NAME, ascii_only=ascii_only):<{NAME}} {shown:>{MS}} {_percent(row.share):>{SHARE}}", style
    )
    length = width - line.cell_len - 1
    if row.share and not row.is_wall and not row.note and length > 0:
        color = "yellow" if row.is_bottleneck else "blue" if row.is_wait else "green"
        line.append(" " + _bar(row.share, length, ascii_only=ascii_only), color)
    return line


def _cut(name: str, width: int, *, ascii_only: bool) -> str:
    return name if len(name) <= width else name[: width - 1] + ("." if ascii_only else "…")


def _percent(share: float | None) -> str:
    """Returns a decimal below 10 %, none from there on: four characters."""
    if share is None:
        return UNKNOWN
    return f"{100 * share:.1f}%" if abs(share) < 0.0995 else f"{100 * share:.0f}%"  # noqa: PLR2004  # rounds to 10


def _bar(share: float, length: int, *, ascii_only: bool) -> str:
    share = min(1.0, max(0.0, share))
    if ascii_only:
        return "#" * round(share * length)
    whole, eighths = divmod(round(share * length * 8), 8)
    return "█" * whole + (EIGHTHS[eighths] if eighths else "")


def _summary(side: Side, shown: Shown, room: Room) -> Text:
    """Returns the standing rows of a side in one line."""
    rows = account_rows(side, shown.record, shown.verdict, shown.header, shown.seen, len(side.standing))
    parts = [Text(f"{row.name} {_percent(row.share)}", "bold yellow" if row.is_bottleneck else "") for row in rows]
    return fitting([Text(f"{side.name}:", "bold cyan"), *parts], room.inner, "  ")


def _pair(name: str, value: str, width: int) -> Text:
    """Returns a name and a right-aligned value. Where both do not fit, the name is cut, never the value."""
    room = max(0, width - len(value) - 1)
    style = "bright_black" if value == UNKNOWN else ""
    return Text(f"{name[:room]:<{room}} {value}", style)


def _in_twos(pairs: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """Returns two names and values in each line."""
    left, right = (width - 2) // 2, width - 2 - (width - 2) // 2
    lines: list[Text] = []
    for index in range(0, len(pairs), 2):
        cells = [_pair(*pairs[index], left)] + [_pair(*pair, right) for pair in pairs[index + 1 : index + 2]]
        lines.append(Text("  ").join(cells))
    return lines
