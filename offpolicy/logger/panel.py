"""The panel of a terminal: the newest record as tables side by side, redrawn by the caller's calls only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich import box
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from offpolicy.config.schema import algorithm_info
from offpolicy.logger.console import (
    UNKNOWN,
    PlainLines,
    View,
    count,
    duration,
    fixed,
    milliseconds,
    number,
    percent,
    rate,
    significant,
    silence,
)
from offpolicy.logger.metrics import (
    COLLECTOR_ROWS,
    LEARNER_ROWS,
    METRICS,
    RANK_STATISTICS,
    ROLLOUT_KEY,
    collector_key,
    device_key,
    learner_key,
    rank_key,
)
from offpolicy.logger.record import PLAIN_RUNNER, Record, RunHeader
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import DeviceSpan, LearnerPhase

REFRESH_S = 0.25  # at most 4 Hz: a redraw costs milliseconds and a reader gains nothing from more
WIDE = 120  # columns from which on the panel has a third column, and bars
ROOMY = 30  # lines from which on it has space between its parts and the whole verdict
SPEEDS = (
    "perf/steps_per_sec",
    "perf/collector_capacity",
    "perf/learner_capacity",
    "perf/predicted_steps_per_sec",
    "perf/updates_per_sec",
)

Pairs = Sequence[tuple[str, str]]  # names and values


@dataclass(frozen=True, slots=True)
class Side:
    """One clock: its phases as (row, key, phase), the key of its wall, and the key of its process's CPU time."""

    name: str
    bottleneck: Bottleneck  # the verdict that names this side
    phases: tuple[tuple[str, str, str], ...]
    wall_key: str
    cpu_key: str


LEARNER = Side(
    "Learner",
    Bottleneck.LEARNER,
    tuple((row, learner_key(phase), phase) for phase, row in LEARNER_ROWS.items()),
    "perf/iter_ms",
    "cpu/learner_pct",
)
COLLECTOR = Side(
    "Collector",
    Bottleneck.COLLECTOR,
    tuple((row, collector_key(phase), phase) for phase, row in COLLECTOR_ROWS.items()),
    "perf/collector_cycle_ms",
    "cpu/collector_pct",
)


def render(  # noqa: PLR0913  # what is shown, and the room for it
    record: Record, verdict: Verdict | None, header: RunHeader, width: int, height: int, *, ascii_only: bool = False
) -> RenderableType:
    """The panel of `record`, never wider than `width` columns nor higher than `height` lines."""
    is_roomy = height >= ROOMY
    overflow: OverflowMethod = "crop" if ascii_only else "ellipsis"
    gap = [Text("")] if is_roomy else []
    extras = _rank_lines(record, header) + _device_lines(record)
    # Where lines are scarce, the first of these is the rule, and there is no second.
    rule = [Rule(characters="-" if ascii_only else "─", style="bright_black")]
    below = [*_rate_lines(record, header, width - 4), *(extras if is_roomy else []), *gap]
    below += _verdict_lines(verdict, is_roomy)
    for line in (*extras, *below):
        line.no_wrap, line.overflow = True, overflow
    title = Text(_title(header, ascii_only=ascii_only), "bold")
    title.truncate(max(1, width - 6))
    columns = _wide_columns if width >= WIDE else _narrow_columns
    table, num_rows = columns(record, verdict, header, overflow)
    parts = [
        _progress(record, header, overflow),
        *gap,
        table,
        *(extras[:1] if extras and not is_roomy else rule),
        *below,
    ]
    return Box(
        Group(*parts),
        box=box.ASCII if ascii_only else box.ROUNDED,
        title=title,
        title_align="left",
        border_style="blue",
        width=width,
        height=min(height, len(parts) - 1 + num_rows + 2),
    )


def _title(header: RunHeader, *, ascii_only: bool) -> str:
    envs = f"{header.num_envs} env" + "s" * (header.num_envs != 1)
    if header.num_collectors > 1:
        envs = f"{header.num_collectors} collectors x {envs}"
    runner = header.runner if header.runner not in (PLAIN_RUNNER, header.algo) else ""
    algo = f"{header.algo} {header.stage}".rstrip()
    parts = (algo, header.env_id, f"seed {header.seed}", header.mode, header.device, envs, runner)
    line = " | ".join(part for part in parts if part)
    return line.encode("ascii", "replace").decode() if ascii_only else line


def _grid(overflow: OverflowMethod, num_values: int, name_width: int | None = None) -> Table:
    """A table of names and right-aligned values. Where both do not fit, the name is cut, never a value."""
    grid = Table.grid(padding=(0, 0, 0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow=overflow, ratio=1 if name_width is None else None, min_width=name_width)
    for width in (9, 8) if num_values == 2 else (None,):
        grid.add_column(no_wrap=True, overflow=overflow, justify="right", min_width=width)
    return grid


def _progress(record: Record, header: RunHeader, overflow: OverflowMethod) -> Table:
    done = min(1.0, (number(record, "env_steps") or 0.0) / header.total_timesteps)
    numbers = (
        f"{done:4.0%}  {count(number(record, 'env_steps') or 0.0)} / {count(header.total_timesteps)} steps"
        f"   elapsed {duration(number(record, 'time/elapsed_s'))}   ETA {duration(number(record, 'time/eta_s'))}"
    )
    grid = Table.grid(padding=(0, 0, 0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, overflow=overflow)
    grid.add_row(ProgressBar(1.0, done, complete_style="green", finished_style="green"), numbers)
    return grid


def _beside(*blocks: tuple[RenderableType, int]) -> Table:
    """Blocks side by side, each with its share of the width."""
    table = Table(box=box.MINIMAL, show_header=False, show_edge=False, pad_edge=False, expand=True)
    table.border_style = "bright_black"
    for _, ratio in blocks:
        table.add_column(ratio=ratio)
    table.add_row(*(block for block, _ in blocks))
    return table


def _narrow_columns(
    record: Record, verdict: Verdict | None, header: RunHeader, overflow: OverflowMethod
) -> tuple[Table, int]:
    """Two columns and their height: the learner, and the collector above the learning curves."""
    learner = _side(LEARNER, record, verdict, overflow)
    collector = _side(COLLECTOR, record, verdict, overflow)
    shown = _learning(record, header)[:12]
    pairs = Table.grid(padding=(0, 0, 0, 2), expand=True)
    for ratio in (17, 20):  # in cells, on a terminal of 80 columns
        pairs.add_column(ratio=ratio)
    pairs.add_row(_pairs(shown[::2], overflow), _pairs(shown[1::2], overflow))
    right = Group(collector, Text("Learning", "bold cyan"), pairs)
    height = max(learner.row_count, collector.row_count + 1 + len(shown[::2]))
    return _beside((learner, 36), (right, 37)), height


def _wide_columns(
    record: Record, verdict: Verdict | None, header: RunHeader, overflow: OverflowMethod
) -> tuple[Table, int]:
    """Three columns, phases with bars, and their height: the learner, the collector, the learning curves."""
    sides = [_side(side, record, verdict, overflow, has_bars=True) for side in (LEARNER, COLLECTOR)]
    learning = _pairs(_learning(record, header), overflow, heading="Learning")
    table = _beside(*((side, 9) for side in sides), (learning, 7))
    return table, max(column.row_count for column in (*sides, learning))


def _side(
    side: Side, record: Record, verdict: Verdict | None, overflow: OverflowMethod, *, has_bars: bool = False
) -> Table:
    """A heading, one row per phase and the wall; zero rows are kept, the bottleneck's is lit."""
    wall_ms, cpu_pct = number(record, side.wall_key), number(record, side.cpu_key)
    grid = _grid(overflow, 2, 20 if has_bars else None)
    if has_bars:
        grid.add_column(ratio=1)
    grid.add_row(side.name + ("" if cpu_pct is None else f" ({cpu_pct:.0f}% cpu)"), "ms", "%", style="bold cyan")
    for row, key, phase in (*side.phases, (METRICS[side.wall_key].row, side.wall_key, "")):
        value_ms = number(record, key)
        style = "bold" if key == side.wall_key else "" if value_ms else "bright_black"
        if verdict is not None and (verdict.bottleneck, verdict.phase) == (side.bottleneck, phase):
            style = "bold yellow"
        share = value_ms / wall_ms if value_ms is not None and wall_ms else 0.0
        bar = [ProgressBar(1.0, share, style="default", complete_style=style, finished_style=style)] * has_bars
        grid.add_row(row, milliseconds(value_ms), percent(value_ms, wall_ms), *bar, style=style)
    return grid


def _pairs(pairs: Pairs, overflow: OverflowMethod, heading: str = "") -> Table:
    """One name and value per line, below a heading if there is one."""
    grid = _grid(overflow, 1)
    if heading:
        grid.add_row(heading, style="bold cyan")
    for name, value in pairs:
        grid.add_row(name, value, style="bright_black" if value == UNKNOWN else "")
    return grid


def _learning(record: Record, header: RunHeader) -> list[tuple[str, str]]:
    """Names and values of rewards and losses, the most wanted first: a small terminal shows the first twelve."""
    curves = [f"train/{name}" for name in algorithm_info(header.algo, header.stage).curves]
    return [
        ("Return", fixed(number(record, "rollout/ep_rew_mean"), 1)),
        ("Ep Length", fixed(number(record, "rollout/ep_len_mean"), 1)),
        ("Eval", fixed(number(record, "eval/mean_reward"), 1)),
        ("Eval Std", fixed(number(record, "eval/std_reward"), 1)),
        ("Success", percent(number(record, "rollout/success_rate"), 1.0)),
        ("Episodes", count(number(record, "rollout/episodes"))),
        *((METRICS[key].row, significant(number(record, key))) for key in curves),
        ("Updates", count(number(record, "train/n_updates"))),
    ]


def _rate_lines(record: Record, header: RunHeader, width: int) -> list[Text]:
    """Rates in two lines; in one where they fit."""
    speeds = [(METRICS[key].row, rate(number(record, key))) for key in SPEEDS]
    speeds[3] = (speeds[3][0], speeds[3][1] + " env steps/s")
    lines = [
        Text("   ").join([Text.assemble((name + " ", "cyan"), (value, "bold")) for name, value in pairs])
        for pairs in (speeds, _states(record, header))
    ]
    joined = Text("   ").join(lines)
    return [joined] if joined.cell_len <= width else lines


def _states(record: Record, header: RunHeader) -> Pairs:
    """How far apart the two sides are, and what lies between them."""
    utd = ("utd", fixed(number(record, "perf/utd"), 2))
    lag = ("lag", fixed(number(record, "perf/policy_lag"), 1))
    if header.has_rollouts:
        lost = (number(record, "perf/rollouts_dropped") or 0) + (number(record, "perf/rollouts_too_old") or 0)
        rollout = f"{milliseconds(number(record, ROLLOUT_KEY))} ms"
        last = fixed(number(record, "perf/policy_lag_p95"), 0)
        return [utd, lag, ("lag p95", last), ("rollout", rollout), ("lost", count(lost))]
    debt = ("debt", fixed(number(record, "perf/update_debt"), 1))
    replay = f"{count(number(record, 'replay/rows'))} ({percent(number(record, 'replay/fill'), 1.0)})"
    return [utd, debt, lag, ("age", count(number(record, "perf/sample_age"))), ("replay", replay)]


def _rank_lines(record: Record, header: RunHeader) -> list[Text]:
    """How long several ranks wait for each other, and for whom; no line for one rank."""
    if header.world_size == 1:
        return []
    waits = "/".join(fixed(number(record, rank_key(LearnerPhase.RANK_BARRIER, name)), 1) for name in RANK_STATISTICS)
    working = number(record, "rank/num")
    of_all = "" if working in (None, header.world_size) else f"{count(working)} of "
    late = count(number(record, "rank/straggler"))
    line = f"{of_all}{header.world_size}: barrier {waits} ms ({'/'.join(RANK_STATISTICS)}), straggler rank {late}"
    return [Text.assemble(("ranks ", "cyan"), line)]


def _device_lines(record: Record) -> list[Text]:
    """What the device did beside the phases; no line where there is no device timer."""
    train_ms = number(record, device_key(DeviceSpan.TRAIN))
    if train_ms is None:
        return []
    spans = (DeviceSpan.H2D, DeviceSpan.H2D_HIDDEN)
    copies = "+".join(milliseconds(number(record, device_key(span))) for span in spans)
    busy = percent(number(record, "device/busy_share"), 1.0)
    launch_bound = percent(number(record, "device/launch_bound"), 1.0)
    line = f"train {milliseconds(train_ms)} ms   h2d {copies} hidden   busy {busy}   launch-bound {launch_bound}"
    return [Text.assemble(("device ", "cyan"), line)]


def _verdict_lines(verdict: Verdict | None, is_roomy: bool) -> list[Text]:
    """The bottleneck and the first advice; with room, the whole reason and every advice."""
    label, reason = (UNKNOWN, UNKNOWN) if verdict is None else (verdict.label, verdict.reason)
    advice = [advice.text for advice in verdict.advice] if verdict is not None else []
    rows = [("bottleneck", Text(label, "bold yellow"))]
    if is_roomy:
        rows += [("because", Text(reason)), ("advice", Text("".join(advice[:1])))]
        rows += [("", Text(line)) for line in advice[1:]]
    else:
        rows.append(("advice", Text(advice[0] if advice else UNKNOWN)))
    return [Text.assemble((f"{name:<11}", "cyan"), text) for name, text in rows]


class Panel:
    """A rich panel on a terminal, redrawn by the caller's calls only: no refresh thread."""

    def __init__(self, console: Console, header: RunHeader) -> None:
        self._console = console
        self._header = header
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._is_open = True
        self._is_started = False
        self._record: Record | None = None
        self._verdict: Verdict | None = None
        self._drawn_s = float("-inf")

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Draws the record, unless the last drawing is less than 250 ms old on the run's clock."""
        wall_s = number(record, "wall_s") or 0.0
        self._record, self._verdict = record, verdict
        if wall_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = wall_s
            self._draw(self._rendered(record))

    def status(self, status: str) -> None:
        """Draws the status, until there is a record."""
        if self._record is None:
            self._draw(Box(Text(status), title="offpolicy", title_align="left"))

    def message(self, message: str) -> None:
        """Prints above the panel."""
        self._output(lambda: self._console.print(Text(message)))

    def finish(self, table: RenderableType) -> None:
        """Leaves the last record on screen, with the summary below it."""
        if self._record is not None:
            self._draw(self._rendered(self._record))
        self.close()
        self._output(lambda: self._console.print(table))

    def close(self) -> None:
        """Stops drawing; a second call does nothing."""
        if self._is_started:
            self._is_started = False
            self._output(self._live.stop)

    def _rendered(self, record: Record) -> RenderableType:
        width, height = self._console.size
        # One line less than the terminal: a full screen would scroll by one line at each redraw.
        ascii_only = self._console.options.ascii_only
        return render(record, self._verdict, self._header, width, height - 1, ascii_only=ascii_only)

    def _draw(self, renderable: RenderableType) -> None:
        if not self._is_started:
            self._output(self._live.start)
            self._is_started = self._is_open
        self._output(lambda: self._live.update(renderable, refresh=True))

    def _output(self, write: Callable[[], None]) -> None:
        """A terminal that was closed ends the output, never the run."""
        if self._is_open:
            try:
                write()
            except (OSError, ValueError):
                self._is_open = False
                silence(self._console.file)


def open_view(panel: str, stream: TextIO, header: RunHeader) -> View:
    """The panel if `panel` is on, or auto on a terminal; else plain lines."""
    if panel == "on" or (panel == "auto" and stream.isatty()):
        return Panel(Console(file=stream, force_terminal=True if panel == "on" else None), header)
    return PlainLines(stream, header)
