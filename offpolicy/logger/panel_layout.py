"""The layout of the panel: one column below 80 columns, two below 120, else three; a plain line below 60 x 20."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.text import Text

from offpolicy.logger.console import milliseconds, number
from offpolicy.logger.metrics import COLLECTOR_ROWS, LEARNER_ROWS, METRICS
from offpolicy.logger.panel_lines import (
    LEGEND,
    Shown,
    core_line,
    device_line,
    fitting,
    learning_pairs,
    machine_line,
    packer_line,
    progress_line,
    rank_lines,
    rate_lines,
    return_line,
    speed_line,
    status_line,
    verdict_lines,
)
from offpolicy.logger.record import PLAIN_RUNNER, RunHeader
from offpolicy.logger.view import plain_line
from offpolicy.output import UNKNOWN
from offpolicy.timing.phases import LEARNER_WAITS, CollectorPhase, LearnerPhase

LEAST_WIDTH, LEAST_HEIGHT = 60, 20  # terminal columns and lines below which there is one plain line
TWO_COLUMNS, THREE_COLUMNS = 80, 120
BROAD, ROOMY = 100, 30  # columns and lines from which on there is a line for every rank and one for the packer
MUST = 3  # lines below the account that come before its rows
NAME, MS, SHARE = 17, 8, 4  # characters of an account's columns
EIGHTHS = " ▏▎▍▌▋▊▉█"
WAITS = frozenset({*map(str, LEARNER_WAITS), str(CollectorPhase.LEARNER_WAIT)})


class Side(NamedTuple):
    """One clock, its phases, and those that have a row in every panel, in this order."""

    name: str
    unit: str
    kind: type[LearnerPhase] | type[CollectorPhase]
    rows: Mapping[str, str]  # names by phase
    wall_key: str
    standing: Sequence[str]

    def key(self, phase: str) -> str:
        """Returns the key of a phase."""
        return f"timing/{self.name.lower()}_{phase}_ms"

    def named(self, shown: Shown) -> str | None:
        """Returns the phase of this side that the verdict names: both sides have phases such as `other`."""
        phase = shown.verdict.phase if shown.verdict is not None else None
        return str(phase) if isinstance(phase, self.kind) else None

    def others(self, shown: Shown) -> list[str]:
        """Returns the other phases that have held time in this run, or the verdict names; all in a full panel."""
        others, named = [phase for phase in self.rows if phase not in self.standing], self.named(shown)
        return [phase for phase in others if shown.is_full or phase == named or self.key(phase) in shown.seen]


LEARNER = Side(
    "Learner", "ms/iteration", LearnerPhase, LEARNER_ROWS, "perf/iter_ms",
    (
        LearnerPhase.COLLECTOR_WAIT, LearnerPhase.REPLAY_BATCH_WAIT, LearnerPhase.H2D, LearnerPhase.RANK_BARRIER,
        LearnerPhase.SYNC_COORDINATION, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC,
    ),
)  # fmt: skip
COLLECTOR = Side(
    "Collector", "ms/vector step", CollectorPhase, COLLECTOR_ROWS, "perf/collector_cycle_ms",
    (CollectorPhase.LEARNER_WAIT, CollectorPhase.ENV_STEP, CollectorPhase.ACTION_SELECT),
)  # fmt: skip
LEAST_LINES = len(LEARNER.standing) + 3  # of the learner: heading, the rest in one row, and wall


class Row(NamedTuple):
    """A phase, or several together, of one side's wall. `note` stands in place of the time where there can be none."""

    name: str
    ms: float | None
    share: float | None  # of the wall, 0 to 1
    color: str = ""  # of the bar: yellow of the bottleneck, blue of a wait, none of the wall
    note: str = ""


def render(shown: Shown, width: int, height: int) -> RenderableType:
    """Returns the panel, never wider or higher than the terminal: help, the status before a record, or the run."""
    is_small = width < LEAST_WIDTH or height < LEAST_HEIGHT
    if is_small and shown.num_records:
        return Text(plain_line(shown.record, shown.header.total_timesteps), overflow="fold")
    if shown.is_helping and not is_small:
        lines = [
            *(Text.assemble((f"{name:<8}", "cyan"), meaning) for name, meaning in LEGEND.items()),
            Text.assemble(("yellow  ", "bold yellow"), "the bottleneck; red: a side got no core"),
            Text.assemble(("blue    ", "blue"), "a side waits for the other one, a rank or the packer"),
            Text.assemble(("ms, %   ", "cyan"), "a side's times sum to its last row; two sides are never added"),
            Text.assemble(("keys    ", "cyan"), "? help and back   Ctrl-C saves and ends, twice: ends now"),
        ]
    elif shown.num_records:
        lines = _run_lines(shown, width, height - 2)
    else:
        said = [line for message in shown.messages for line in message.splitlines()]
        status = " ".join((shown.activity or shown.status).splitlines())
        lines = [Text(status, "bold magenta"), *map(Text, said[-(height - 3) :])]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    if is_small:
        return lines[0]
    title = Text(_title(shown.header), "bold")
    title.truncate(width - 6)
    return Box(Group(*lines), box=box.ROUNDED, title=title, title_align="left", border_style="blue", width=width)


def _title(header: RunHeader) -> str:
    envs = f"{header.num_envs} env" + "s" * (header.num_envs != 1)
    if header.num_collectors > 1:
        envs = f"{header.num_collectors} collectors x {envs}"
    runner = header.runner if header.runner not in (PLAIN_RUNNER, header.algo) else ""
    algo = f"{header.algo} {header.stage}".rstrip()
    parts = (algo, header.env_id, f"seed {header.seed}", header.mode, header.device, envs, runner)
    return " | ".join(part for part in parts if part)


def _run_lines(shown: Shown, width: int, num: int) -> list[Text]:
    """Returns `num` lines at most: what people look at, the account, the lines below it, and the status."""
    record, header, inner = shown.record, shown.header, width - 4
    bottleneck, advice, *reasons = verdict_lines(shown.verdict)
    top = [progress_line(shown, inner), return_line(shown, inner), speed_line(shown, inner), bottleneck, advice]
    rank, *ranks = rank_lines(record, header) or [Text()]
    machine = [line for line in (rank, *device_line(record), *machine_line(record, inner)) if line]
    below = [*rate_lines(record, header, inner), *machine, *reasons]
    if width >= BROAD and num + 2 >= ROOMY:
        below += [*ranks, *packer_line(record)]
    below += core_line(record) if width >= THREE_COLUMNS else []
    account = _account(shown, width, num - len(top) - min(MUST, len(below)) - 1)
    return [*top, *account, *below[: num - len(top) - len(account) - 1], status_line(shown, inner)]


def _account(shown: Shown, width: int, most: int) -> list[Text]:
    """Returns `most` lines, or as many as are of use: learner and collector beside each other, and the learning.

    With one column there is one line for the collector, in a high terminal all of its rows.
    """
    inner, pairs = width - 4, learning_pairs(shown)
    if width < TWO_COLUMNS:
        below = _side(COLLECTOR, shown, most, inner)
        if LEAST_LINES + len(LEARNER.others(shown)) - 1 + len(below) > most:
            below = [_summary(shown, inner)]
        # Of the least terminal one of the lines below is the account's: the rows of the contract stand.
        return [*_side(LEARNER, shown, max(most, LEAST_LINES + 1) - len(below), inner), *below]
    most = max(most, LEAST_LINES)
    heading = [Text("Learning", "bold cyan")]
    if width < THREE_COLUMNS:
        widths = [(inner - 3) // 2, (inner - 2) // 2]
        half = (widths[1] - 2) // 2
        cells = [_pair(*pair, half) for pair in pairs]
        learning = [Text("  ").join(cells[index : index + 2]) for index in range(0, len(cells), 2)]
        left = _side(LEARNER, shown, most, widths[0])
        right = _side(COLLECTOR, shown, max(len(COLLECTOR.standing) + 3, most - len(learning)), widths[1])
        columns = [left, [*right, *(heading if len(right) + len(learning) < most else []), *learning][:most]]
    else:
        third = (inner - 6) * 9 // 25
        widths = [third, third, inner - 6 - 2 * third]
        sides = [_side(side, shown, most, third) for side in (LEARNER, COLLECTOR)]
        columns = [*sides, [*heading, *(_pair(*pair, widths[2]) for pair in pairs[: most - 1])]]
    lines = []
    for row in zip_longest(*columns):
        cells = [cell or Text() for cell in row]
        for cell, cell_width in zip(cells, widths, strict=True):
            cell.truncate(cell_width, pad=True)
        lines.append(Text(" │ ", "bright_black").join(cells))
    return lines


def account_rows(side: Side, shown: Shown, room: int) -> list[Row]:
    """Returns the rows of a side: the standing ones, others while there is room, the rest in one, and the wall.

    room: at least two rows more than always stand, so that the rows sum to the wall.
    """
    record, wall_ms = shown.record, number(shown.record, side.wall_key)
    named, possible = side.named(shown), side.others(shown)
    left = room - len(side.standing) - 1
    kept = possible if len(possible) <= left else sorted(possible, key=lambda phase: phase != named)[: left - 1]

    def row(name: str, phases: Sequence[str], **looks: str) -> Row:
        known = [ms for phase in phases if (ms := number(record, side.key(phase))) is not None]
        total = sum(known) if known else None
        return Row(name, total, total / wall_ms if total is not None and wall_ms else None, **looks)

    rows = []
    notes = {"h2d": "CPU"} if shown.header.device.startswith("cpu") else {}  # why there is hardly any time
    notes |= {"rank_barrier": "one rank", "param_sync": "one rank"} if shown.header.world_size == 1 else {}
    for phase in [*side.standing, *(phase for phase in possible if phase in kept)]:
        color = "yellow" if phase == named else "blue" if phase in WAITS else "green"
        rows.append(row(side.rows[phase], [phase], color=color, note=notes.get(phase, "")))
    if rest := [phase for phase in possible if phase not in kept]:
        rows.append(row(f"{len(rest)} more", rest, color="green"))
    return [*rows, Row(METRICS[side.wall_key].row, wall_ms, 1.0 if wall_ms else None)]


def _side(side: Side, shown: Shown, most: int, width: int) -> list[Text]:
    """Returns a heading and the rows of one side, `most` lines in all."""
    heading = f"{side.name:<{NAME + 1 + MS - len(side.unit)}}{side.unit}{'%':>{SHARE + 1}}"
    cpu_pct = number(shown.record, f"cpu/{side.name.lower()}_pct")
    cpu = "" if cpu_pct is None else f" {cpu_pct:.0f}% of a core"
    lines = [Text(heading + (cpu if len(heading) + len(cpu) <= width else ""), "bold cyan")]
    for row in account_rows(side, shown, most - 1):
        style = {"yellow": "bold yellow", "": "bold"}.get(row.color, "")
        style = "bright_black" if row.note or not (row.ms or row.color == "yellow") else style
        name = row.name if len(row.name) <= NAME else row.name[: NAME - 1] + "…"
        line = Text(f"{name:<{NAME}} {row.note or milliseconds(row.ms):>{MS}} {_percent(row.share):>{SHARE}}", style)
        if row.share and row.color and not row.note:
            whole, eighths = divmod(round(min(1.0, max(0.0, row.share)) * (width - line.cell_len - 1) * 8), 8)
            line.append(" " + "█" * whole + EIGHTHS[eighths], row.color)
        lines.append(line)
    return lines


def _percent(share: float | None) -> str:
    """Returns a decimal below 10 %, none from there on: four characters."""
    if share is None:
        return UNKNOWN
    return f"{100 * share:.1f}%" if abs(share) < 0.0995 else f"{100 * share:.0f}%"  # noqa: PLR2004  # rounds to 10


def _summary(shown: Shown, width: int) -> Text:
    """Returns the standing rows of the collector in one line."""
    rows = account_rows(COLLECTOR, shown, len(COLLECTOR.standing) + 2)[: len(COLLECTOR.standing)]
    parts = [Text(f"{row.name} {_percent(row.share)}", "bold yellow" if row.color == "yellow" else "") for row in rows]
    return fitting([Text("Collector:", "bold cyan"), *parts], width)


def _pair(name: str, value: str, width: int) -> Text:
    """Returns a name and a right-aligned value. Where both do not fit, the name is cut, never the value."""
    room = max(0, width - len(value) - 1)
    return Text(f"{name[:room]:<{room}} {value}", "bright_black" if value == UNKNOWN else "")
