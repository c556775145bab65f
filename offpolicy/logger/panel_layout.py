"""The layout of the panel: two columns below 120 terminal columns, else three; a plain line below 80 x 20."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.text import Text

from offpolicy.logger.console import milliseconds, number
from offpolicy.logger.metrics import METRICS, PHASES
from offpolicy.logger.panel_lines import (
    LEGEND,
    Shown,
    learning_pairs,
    lines_above,
    lines_below,
    named,
    plain_line,
    status_line,
)
from offpolicy.logger.record import PLAIN_RUNNER, RunHeader
from offpolicy.output import UNKNOWN, counted
from offpolicy.timing.phases import LEARNER_WAITS, CollectorPhase, LearnerPhase

LEAST_WIDTH, LEAST_HEIGHT = 80, 20  # terminal columns and lines below which there is one plain line
THREE_COLUMNS = 120
MUST = 3  # lines below the account that come before its rows
LEAST_LINES = 10  # of the account: heading, the learner's standing phases, the rest in one row, and wall
NAME, MS, SHARE = 17, 8, 4  # characters of an account's columns
EIGHTHS = " ▏▎▍▌▋▊▉█"
WAITS = {*(f"timing/learner_{phase}_ms" for phase in LEARNER_WAITS), "timing/collector_learner_wait_ms"}


class Side(NamedTuple):
    """One clock, and the phases that have a row in every panel, in this order."""

    name: str
    unit: str
    wall_key: str
    standing: tuple[str, ...]


LEARNER = Side(
    "Learner", "ms/iteration", "perf/iter_ms",
    (
        LearnerPhase.COLLECTOR_WAIT, LearnerPhase.REPLAY_BATCH_WAIT, LearnerPhase.H2D, LearnerPhase.RANK_BARRIER,
        LearnerPhase.SYNC_COORDINATION, LearnerPhase.TRAIN, LearnerPhase.PARAM_SYNC,
    ),
)  # fmt: skip
COLLECTOR = Side(
    "Collector", "ms/vector step", "perf/collector_cycle_ms",
    (CollectorPhase.LEARNER_WAIT, CollectorPhase.ENV_STEP, CollectorPhase.ACTION_SELECT),
)  # fmt: skip


def render(shown: Shown, width: int, height: int) -> RenderableType:
    """Returns the panel, never wider or higher than the terminal: help, the status before a record, or the run."""
    status = " ".join((shown.activity or shown.status).splitlines())
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        text = plain_line(shown.record, shown.header.total_timesteps) if shown.num_records else status
        return Text(text, overflow="fold")
    if shown.is_helping:
        lines = [
            *(named(f"{name:<7}", meaning) for name, meaning in LEGEND.items()),
            Text.assemble(("yellow  ", "bold yellow"), "the bottleneck; red: a side got no core"),
            Text.assemble(("blue    ", "blue"), "a side waits for the other one, a rank or the packer"),
            named("ms, %  ", "a side's times sum to its last row; two sides are never added"),
            named("keys   ", "? help and back   Ctrl-C saves and ends, twice: ends now"),
        ]
    elif shown.num_records:
        inner, room = width - 4, height - 3  # without the frame, and the status
        above, below = lines_above(shown, inner), [*lines_below(shown, inner)]
        account = _account(shown, width, max(LEAST_LINES, room - len(above) - min(MUST, len(below))))
        lines = [*above, *account, *below[: room - len(above) - len(account)], status_line(shown, inner)]
    else:
        said = [line for message in shown.messages for line in message.splitlines()]
        lines = [Text(status, "bold magenta"), *map(Text, said[3 - height :])]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    title = Text(_title(shown.header), "bold")
    return Box(Group(*lines), box=box.ROUNDED, title=title, title_align="left", border_style="blue", width=width)


def _title(header: RunHeader) -> str:
    collectors = f"{header.num_collectors} collectors x " if header.num_collectors > 1 else ""
    envs = collectors + counted(header.num_envs, "env")
    runner = header.runner if header.runner not in (PLAIN_RUNNER, header.algo) else ""
    algo = f"{header.algo} {header.stage}".rstrip()
    parts = (algo, header.env_id, f"seed {header.seed}", header.mode, header.device, envs, runner)
    return " | ".join(filter(None, parts))


def _account(shown: Shown, width: int, most: int) -> list[Text]:
    """Returns `most` lines, or as many as are of use: learner and collector beside each other, and the learning."""
    inner, pairs = width - 4, learning_pairs(shown)
    heading = [Text("Learning", "bold cyan")]
    if width < THREE_COLUMNS:
        widths = [(inner - 3) // 2, (inner - 2) // 2]
        cells = [_pair(*pair, (widths[1] - 2) // 2) for pair in pairs]
        learning = [Text("  ").join(cells[index : index + 2]) for index in range(0, len(cells), 2)]
        right = _side(COLLECTOR, shown, max(len(COLLECTOR.standing) + 3, most - len(learning)), widths[1])
        right += heading if len(right) + len(learning) < most else []
        columns = [_side(LEARNER, shown, most, widths[0]), [*right, *learning]]
    else:
        third = (inner - 6) * 9 // 25
        widths = [third, third, inner - 6 - 2 * third]
        sides = (_side(side, shown, most, third) for side in (LEARNER, COLLECTOR))
        columns = [*sides, [*heading, *(_pair(*pair, widths[2]) for pair in pairs)]]
    separator = Text.assemble((" │ ", "bright_black"))
    lines = []
    for row in zip_longest(*(column[:most] for column in columns)):
        cells = [cell or Text() for cell in row]
        for cell, cell_width in zip(cells, widths, strict=True):
            cell.truncate(cell_width, pad=True)
        lines.append(separator.join(cells))
    return lines


def _side(side: Side, shown: Shown, most: int, width: int) -> list[Text]:
    """Returns a heading, the standing phases, others while there is room, the rest of them in one row, and the wall.

    most: lines, at least three more than phases always stand, so that the rows sum to the wall.
    """
    record, header, clock = shown.record, shown.header, side.name.lower()
    wall_ms, cpu_pct = number(record, side.wall_key), number(record, f"cpu/{clock}_pct")
    cause = None if shown.verdict is None else shown.verdict.phase  # both sides have phases such as `other`
    cause_key = f"timing/{clock}_{cause}_ms" if isinstance(cause, PHASES[clock]) else ""
    standing = [f"timing/{clock}_{phase}_ms" for phase in side.standing]
    keys = (f"timing/{clock}_{phase}_ms" for phase in PHASES[clock] if phase not in side.standing)
    others = [key for key in keys if shown.is_full or key == cause_key or key in shown.seen]
    num = most - len(standing) - 2
    if len(others) > num:
        num -= 1
        others.sort(key=lambda key: key != cause_key)
    rows = {METRICS[key].row: [key] for key in (*standing, *others[:num])}
    rows |= {f"{len(others) - num} more": others[num:]} if others[num:] else {}
    rows[METRICS[side.wall_key].row] = [side.wall_key]
    notes = {"timing/learner_h2d_ms": "CPU"} if header.device.startswith("cpu") else {}  # why there is hardly any time
    if header.world_size == 1:
        notes |= dict.fromkeys(("timing/learner_rank_barrier_ms", "timing/learner_param_sync_ms"), "one rank")
    heading = f"{side.name:<{NAME + 1 + MS - len(side.unit)}}{side.unit}{'%':>{SHARE + 1}}"
    cpu = "" if cpu_pct is None else f" {cpu_pct:.0f}% of a core"
    lines = [Text(heading + (cpu if len(heading) + len(cpu) <= width else ""), "bold cyan")]
    for name, (first, *more) in rows.items():
        ms, note, is_cause = number(record, first), notes.get(first, ""), first == cause_key
        ms = ms if ms is None else ms + sum(number(record, key) or 0.0 for key in more)
        share = None if ms is None or not wall_ms else ms / wall_ms
        percent = UNKNOWN if share is None else f"{share:.1%}" if abs(share) < 0.0995 else f"{share:.0%}"  # noqa: PLR2004  # rounds to 10
        style = "bold yellow" if is_cause else "bold" if first == side.wall_key else ""
        style = "bright_black" if note or not (ms or is_cause) else style
        line = Text(f"{name:<{NAME}} {note or milliseconds(ms):>{MS}} {percent:>{SHARE}}", style)
        if share and not note and first != side.wall_key:
            whole, eighths = divmod(round(min(1.0, max(0.0, share)) * (width - line.cell_len - 1) * 8), 8)
            color = "yellow" if is_cause else "blue" if first in WAITS else "green"
            line.append(" " + "█" * whole + EIGHTHS[eighths], color)
        lines.append(line)
    return lines


def _pair(name: str, value: str, width: int) -> Text:
    """Returns a name and a right-aligned value. Where both do not fit, the name is cut, never the value."""
    room = max(0, width - len(value) - 1)
    return Text(f"{name[:room]:<{room}} {value}", "bright_black" if value == UNKNOWN else "")
