"""The panel of a terminal: the newest record as tables side by side, redrawn by the caller's calls only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TextIO

from rich import box
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from offpolicy.config.sections import algorithm_info
from offpolicy.logger.console import (
    UNKNOWN,
    PlainLines,
    View,
    cores_text,
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
    CORES_KEY,
    LEARNER_ROWS,
    METRICS,
    ROLLOUT_KEY,
    collector_key,
    core_key,
    device_key,
    learner_key,
)
from offpolicy.logger.rank_lines import rank_lines
from offpolicy.logger.record import PLAIN_RUNNER, Record, RunHeader
from offpolicy.logger.timing_keys import MS_PER_S
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import RARE, CoreClass, DeviceSpan

REFRESH_S = 0.25  # least seconds between two drawings: each costs milliseconds
WIDE = 120  # terminal columns from which on the panel has a third column, and bars
BROAD = 100  # terminal columns from which on a roomy panel has a line for every rank and one for the packer
ROOMY = 30  # terminal lines from which on the panel has empty lines and the whole verdict
LEFT_OUT = ("Eval Std", "Episodes")  # rows of the learning curves that a small terminal has no room for
SPEEDS = (
    "perf/steps_per_sec",
    "perf/predicted_steps_per_sec",
    "perf/collector_capacity",
    "perf/learner_capacity",
    "perf/updates_per_sec",
)

Pairs = Sequence[tuple[str, str]]  # names and values


class Side(NamedTuple):
    """One clock: its rows by phase, the keys of its phases and wall, and the key of its process's CPU time."""

    name: str
    bottleneck: Bottleneck  # the verdict that names this side
    rows: Mapping[str, str]
    phase_key: Callable[[str], str]
    wall_key: str
    cpu_key: str


LEARNER = Side("Learner", Bottleneck.LEARNER, LEARNER_ROWS, learner_key, "perf/iter_ms", "cpu/learner_pct")
COLLECTOR_ROWS_SHOWN = len([phase for phase in COLLECTOR_ROWS if phase not in RARE]) + 2  # with heading and wall
COLLECTOR = Side(
    "Collector", Bottleneck.COLLECTOR, COLLECTOR_ROWS, collector_key, "perf/collector_cycle_ms", "cpu/collector_pct"
)


def render(  # noqa: PLR0913  # what is shown, and the room for it
    record: Record, verdict: Verdict | None, header: RunHeader, width: int, height: int, *, ascii_only: bool = False
) -> RenderableType:
    """Returns the panel of `record`, never wider than `width` columns nor higher than `height` lines."""
    is_roomy = height >= ROOMY
    overflow: OverflowMethod = "crop" if ascii_only else "ellipsis"
    gap = [Text("")] if is_roomy else []
    extras = _extra_lines(record, header, is_broad=is_roomy and width >= BROAD)
    # Where lines are scarce, the first extra line takes the place of the rule, and the second is left out.
    rule = [Rule(characters="-" if ascii_only else "─", style="bright_black")]
    below = [*_rate_lines(record, header, width - 4), *(extras if is_roomy else [])]
    below += _core_lines(record) if is_roomy and width >= WIDE else []
    below += [*gap, *_verdict_lines(verdict, is_roomy)]
    for line in (*extras, *below):
        line.no_wrap, line.overflow = True, overflow
    title = Text(_title(header, ascii_only=ascii_only), "bold")
    title.truncate(max(1, width - 6))
    table, num_rows = _columns(record, verdict, header, overflow, is_wide=width >= WIDE, is_roomy=is_roomy)
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
    """Returns a table for names and right-aligned values. Where both do not fit, the name is cut, never a value."""
    grid = Table.grid(padding=(0, 0, 0, 1), expand=True)
    # The one column that may wrap is the one that rich narrows; its names are cut, for they do not wrap.
    grid.add_column(ratio=1 if name_width is None else None, min_width=name_width)
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


def _columns(  # noqa: PLR0913  # what is shown, and the room for it
    record: Record,
    verdict: Verdict | None,
    header: RunHeader,
    overflow: OverflowMethod,
    *,
    is_wide: bool,
    is_roomy: bool,
) -> tuple[Table, int]:
    """Returns the phases and learning curves side by side, and the height of the table.

    Wide: learner, collector, curves. Narrow: the learner, and beside it the collector above the first twelve curves, or
    ten and no heading where lines are scarce.
    """
    learner = _side(LEARNER, record, verdict, overflow, has_bars=is_wide)
    collector = _side(COLLECTOR, record, verdict, overflow, has_bars=is_wide)
    curves = _learning(record, header)
    if is_wide:
        learning = _pairs(curves, overflow, heading="Learning")
        blocks: list[tuple[RenderableType, int]] = [(learner, 9), (collector, 9), (learning, 7)]
        height = max(block.row_count for block in (learner, collector, learning))
    else:
        pairs = Table.grid(padding=(0, 0, 0, 2), expand=True)
        for ratio in (17, 20):  # columns of a terminal with 80
            pairs.add_column(ratio=ratio)
        fewer = 2 * max(0, collector.row_count - COLLECTOR_ROWS_SHOWN)  # the table keeps its height
        shown = curves[: 12 - fewer]
        if not is_roomy:
            shown = [pair for pair in curves if pair[0] not in LEFT_OUT][: 10 - fewer]
        pairs.add_row(_pairs(shown[::2], overflow), _pairs(shown[1::2], overflow))
        heading = [Text("Learning", "bold cyan")] if is_roomy else []
        blocks = [(learner, 36), (Group(collector, *heading, pairs), 37)]
        height = max(learner.row_count, collector.row_count + len(heading) + len(shown[::2]))
    table = Table(box=box.MINIMAL, show_header=False, show_edge=False, pad_edge=False, expand=True)
    table.border_style = "bright_black"
    for _, ratio in blocks:
        table.add_column(ratio=ratio)
    table.add_row(*(block for block, _ in blocks))
    return table, height


def _side(
    side: Side, record: Record, verdict: Verdict | None, overflow: OverflowMethod, *, has_bars: bool = False
) -> Table:
    """Returns a heading, a row for each phase and the wall; rows of 0 are kept, the bottleneck's is highlighted."""
    wall_ms, cpu_pct = number(record, side.wall_key), number(record, side.cpu_key)
    grid = _grid(overflow, 2, 20 if has_bars else None)
    if has_bars:
        grid.add_column(ratio=1)
    heading = side.name + ("" if cpu_pct is None else f" ({cpu_pct:.0f}% cpu)")
    grid.add_row(Text(heading, no_wrap=True, overflow=overflow), "ms", "%", style="bold cyan")
    keys = [(row, side.phase_key(phase), phase) for phase, row in side.rows.items()]
    phases = [(row, key, phase) for row, key, phase in keys if phase not in RARE or number(record, key)]
    for row, key, phase in (*phases, (METRICS[side.wall_key].row, side.wall_key, "")):
        value_ms = number(record, key)
        style = "bold" if key == side.wall_key else "" if value_ms else "bright_black"
        if verdict is not None and (verdict.bottleneck, verdict.phase) == (side.bottleneck, phase):
            style = "bold yellow"
        fraction = value_ms / wall_ms if value_ms is not None and wall_ms else 0.0
        bar = [ProgressBar(1.0, fraction, style="default", complete_style=style, finished_style=style)] * has_bars
        grid.add_row(
            Text(row, no_wrap=True, overflow=overflow),
            milliseconds(value_ms),
            percent(value_ms, wall_ms),
            *bar,
            style=style,
        )
    return grid


def _pairs(pairs: Pairs, overflow: OverflowMethod, heading: str = "") -> Table:
    """Returns a line for each name and value, below a heading if there is one."""
    grid = _grid(overflow, 1)
    if heading:
        grid.add_row(heading, style="bold cyan")
    for name, value in pairs:
        grid.add_row(
            Text(name, no_wrap=True, overflow=overflow), value, style="bright_black" if value == UNKNOWN else ""
        )
    return grid


def _learning(record: Record, header: RunHeader) -> list[tuple[str, str]]:
    """Returns names and values of rewards and losses; a small terminal shows the first twelve."""
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
    """Returns the rates, then update debt, lag and the state of replay or rollouts: two lines, one where both fit."""

    def value(key: str, decimals: int) -> str:
        return fixed(number(record, key), decimals)

    speeds = [(METRICS[key].row, rate(number(record, key))) for key in SPEEDS]
    error = number(record, "perf/prediction_error_pct")
    within = "" if error is None else f" +-{max(1.0, error):.0f}%"
    speeds[1] = (speeds[1][0], speeds[1][1] + within)
    speeds[3] = (speeds[3][0], f"{speeds[3][1]} steps/s")
    utd, lag = ("utd", value("perf/utd", 2)), ("lag", f"{value('perf/policy_lag', 1)} versions")
    if header.has_rollouts:
        lost = (number(record, "perf/rollouts_dropped") or 0) + (number(record, "perf/rollouts_too_old") or 0)
        rollout = f"{milliseconds(number(record, ROLLOUT_KEY))} ms"
        states = [utd, lag, ("lag p95", value("perf/policy_lag_p95", 0)), ("rollout", rollout), ("lost", count(lost))]
    else:
        debt, age = f"{value('perf/update_debt', 0)} updates", f"{count(number(record, 'perf/sample_age'))} steps"
        fill = number(record, "replay/fill")
        replay = UNKNOWN if fill is None else f"{fill:.0%}"
        states = [utd, ("debt", debt), lag, ("age", age), ("replay", replay)]
    joined = _names_and_values([*speeds, *states])
    return [joined] if joined.cell_len <= width else [_fitting(pairs, width) for pairs in (speeds, states)]


def _fitting(pairs: Pairs, width: int) -> Text:
    """Returns names and values in one line, without the last ones where the line would be longer than `width`."""
    line = _names_and_values(pairs)
    return line if line.cell_len <= width or len(pairs) == 1 else _fitting(pairs[:-1], width)


def _names_and_values(pairs: Pairs) -> Text:
    return Text("  ").join([Text.assemble((name + " ", "cyan"), (text, "bold")) for name, text in pairs])


def _extra_lines(record: Record, header: RunHeader, *, is_broad: bool) -> list[Text]:
    """Returns a line on several ranks, or one for each; a line on the packer, and one on the device, if they exist."""
    lines = rank_lines(record, header, is_broad=is_broad)
    train_ms = number(record, device_key(DeviceSpan.TRAIN))
    if train_ms is not None:
        spans = (DeviceSpan.H2D, DeviceSpan.H2D_HIDDEN)
        copies = "+".join(milliseconds(number(record, device_key(span))) for span in spans)
        busy = percent(number(record, "device/busy_share"), 1.0)
        launch_bound = percent(number(record, "device/launch_bound"), 1.0)
        line = f"train {milliseconds(train_ms)} ms   h2d {copies} hidden   busy {busy}   launch-bound {launch_bound}"
        lines.append(Text.assemble(("device ", "cyan"), line))
    return lines


def _core_lines(record: Record) -> list[Text]:
    """Returns a line on what the cores did, where the record holds it."""
    capacity = number(record, CORES_KEY)
    if capacity is None:
        return []
    used = {str(row): (number(record, core_key(row)) or 0.0) / MS_PER_S for row in CoreClass}
    return [Text.assemble(("cores ", "cyan"), cores_text(used, capacity))]


def _verdict_lines(verdict: Verdict | None, is_roomy: bool) -> list[Text]:
    """Returns the bottleneck and the first advice; on a roomy terminal also the reason and all advice."""
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
        """Draws the last record once more, and the summary below it."""
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
        """Writes; a closed terminal ends the output, never the run."""
        if self._is_open:
            try:
                write()
            except (OSError, ValueError):
                self._is_open = False
                silence(self._console.file)


def open_view(panel: str, stream: TextIO, header: RunHeader) -> View:
    """Returns the panel if `panel` is on, or auto on a terminal; else plain lines."""
    if panel == "on" or (panel == "auto" and stream.isatty()):
        return Panel(Console(file=stream, force_terminal=True if panel == "on" else None), header)
    return PlainLines(stream, header)
