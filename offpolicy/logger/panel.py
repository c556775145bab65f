"""The panel as a pure function of one record: blocks of lines of exact width, set side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.text import Text

from offpolicy.config.schema import algorithm_info
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
from offpolicy.logger.text import (
    UNKNOWN,
    count,
    duration,
    fixed,
    milliseconds,
    number,
    percent,
    rate,
    significant,
)
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.phases import DeviceSpan, LearnerPhase

WIDE = 120  # columns from which on the panel has a third column, and bars
ROOMY = 30  # lines from which on it has space between its parts and the whole verdict

Block = list[Text]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The signs that differ between a unicode and an ASCII terminal."""

    full: str
    empty: str
    column: str
    rule: str
    ellipsis: str
    frame: box.Box


UNICODE = Glyphs("█", "░", " │ ", "─", "…", box.ROUNDED)
ASCII = Glyphs("#", ".", " | ", "-", "...", box.ASCII)


def render(  # noqa: PLR0913  # what is shown, and the room for it
    record: Record, verdict: Verdict | None, header: RunHeader, width: int, height: int, *, ascii_only: bool = False
) -> RenderableType:
    """The panel of `record`, never wider than `width` columns nor higher than `height` lines."""
    glyphs = ASCII if ascii_only else UNICODE
    inner = max(1, width - 4)
    is_roomy = height >= ROOMY
    body = [_progress(record, header, inner, glyphs)]
    body += _gap(is_roomy)
    columns = _wide_columns if width >= WIDE else _narrow_columns
    body += columns(record, verdict, header, inner, glyphs)
    lanes = _rank_lines(record, header) + _device_lines(record)
    # Where lines are scarce, the first of these is the rule, and there is no second.
    body += lanes[:1] if lanes and not is_roomy else [Text(glyphs.rule * inner, "bright_black")]
    body += _rate_lines(record, header, inner)
    body += lanes if is_roomy else []
    body += _gap(is_roomy) + _verdict_lines(verdict, is_roomy)
    lines = [_fit(line, inner, glyphs) for line in body[: max(1, height - 2)]]
    title = Text(_title(header, glyphs), "bold")
    title.truncate(max(1, width - 6))
    return Box(Group(*lines), box=glyphs.frame, title=title, title_align="left", border_style="blue", width=width)


def _title(header: RunHeader, glyphs: Glyphs) -> str:
    envs = f"{header.num_envs} env" + "s" * (header.num_envs != 1)
    if header.num_collectors > 1:
        envs = f"{header.num_collectors} collectors x {envs}"
    runner = header.runner if header.runner not in (PLAIN_RUNNER, header.algo) else ""
    algo = f"{header.algo} {header.stage}".rstrip()
    parts = (algo, header.env_id, f"seed {header.seed}", header.mode, header.device, envs, runner)
    line = " | ".join(part for part in parts if part)
    return line.encode("ascii", "replace").decode() if glyphs is ASCII else line


def _gap(is_roomy: bool) -> Block:
    return [Text("")] if is_roomy else []


def _fit(line: Text, width: int, glyphs: Glyphs) -> Text:
    """`line` in exactly `width` cells; what does not fit ends in an ellipsis."""
    line.no_wrap = True
    if line.cell_len > width:
        line.truncate(max(0, width - len(glyphs.ellipsis)))
        line.append(glyphs.ellipsis[:width])
    line.truncate(width, pad=True)
    return line


def _progress(record: Record, header: RunHeader, width: int, glyphs: Glyphs) -> Text:
    steps = number(record, "env_steps") or 0.0
    done = min(1.0, steps / header.total_timesteps)
    numbers = (
        f" {done:4.0%}  {count(steps)} / {count(header.total_timesteps)} steps"
        f"   elapsed {duration(number(record, 'time/elapsed_s'))}   ETA {duration(number(record, 'time/eta_s'))}"
    )
    bar = _bar(done, max(0, width - len(numbers)), glyphs.full, glyphs.empty)
    return Text.assemble((bar, "green"), numbers)


def _bar(share: float, width: int, full: str, empty: str) -> str:
    filled = round(min(1.0, max(0.0, share)) * width)
    return full * filled + empty * (width - filled)


def _narrow_columns(record: Record, verdict: Verdict | None, header: RunHeader, width: int, glyphs: Glyphs) -> Block:
    """Two columns: the learner, and the collector above the learning curves."""
    half = (width - len(glyphs.column)) // 2
    rest = width - len(glyphs.column) - half
    learning = [_heading("Learning", "", rest), *_pairs(_learning(record, header)[:12], rest)]
    right = _side(COLLECTOR, record, verdict, Frame(rest, 0, glyphs)) + learning
    return _beside([(_side(LEARNER, record, verdict, Frame(half, 0, glyphs)), half), (right, rest)], glyphs)


def _wide_columns(record: Record, verdict: Verdict | None, header: RunHeader, width: int, glyphs: Glyphs) -> Block:
    """Three columns, phases with bars: the learner, the collector, the learning curves."""
    space = width - 2 * len(glyphs.column)
    third = space * 36 // 100
    rest = space - 2 * third
    frame = Frame(third, third - 38, glyphs)
    learning = [_heading("Learning", "", rest), *_rows(_learning(record, header), rest)]
    blocks = [(_side(side, record, verdict, frame), third) for side in (LEARNER, COLLECTOR)]
    return _beside([*blocks, (learning, rest)], glyphs)


def _beside(blocks: Sequence[tuple[Block, int]], glyphs: Glyphs) -> Block:
    """Blocks, each with its width, set side by side; shorter ones are padded with empty lines."""
    lines = []
    for row in zip_longest(*(block for block, _ in blocks)):
        cells = [_fit(cell or Text(""), width, glyphs) for cell, (_, width) in zip(row, blocks, strict=True)]
        lines.append(Text(glyphs.column, "bright_black").join(cells))
    return lines


def _heading(name: str, columns: str, width: int) -> Text:
    return Text(name + columns.rjust(width - len(name)), "bold cyan")


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


@dataclass(frozen=True, slots=True)
class Frame:
    """The room of a side's block: its width, of which `bar` cells show shares (0: no bars)."""

    width: int
    bar: int
    glyphs: Glyphs


def _side(side: Side, record: Record, verdict: Verdict | None, frame: Frame) -> Block:
    """A heading, one line per phase and the wall; zero rows are kept, the bottleneck's is lit."""
    wall_ms, cpu_pct = number(record, side.wall_key), number(record, side.cpu_key)
    cpu = "" if cpu_pct is None else f" ({cpu_pct:.0f}% cpu)"
    columns = f"{'ms':>9}{'%':>8}" + " " * (frame.bar + 1 if frame.bar > 0 else 0)
    lines = [_heading(side.name + cpu, columns, frame.width)]
    for row, key, phase in side.phases:
        value_ms = number(record, key)
        line = _phase_line(row, value_ms, wall_ms, frame)
        if verdict is not None and (verdict.bottleneck, verdict.phase) == (side.bottleneck, phase):
            line.stylize("bold yellow")
        elif not value_ms:
            line.stylize("bright_black")
        lines.append(line)
    total = _phase_line(METRICS[side.wall_key].row or "", wall_ms, wall_ms, frame)
    total.stylize("bold")
    return [*lines, total]


def _phase_line(row: str, value_ms: float | None, wall_ms: float | None, frame: Frame) -> Text:
    bar = ""
    if frame.bar > 0:
        share = value_ms / wall_ms if value_ms is not None and wall_ms else 0.0
        bar = " " + _bar(share, frame.bar, frame.glyphs.full, " ")
    columns = f"{milliseconds(value_ms):>9}{percent(value_ms, wall_ms):>8}"
    return Text(row + columns.rjust(frame.width - len(row) - len(bar)) + bar)


def _learning(record: Record, header: RunHeader) -> list[tuple[str, str]]:
    """Names and values of rewards and losses, the most wanted first: a small terminal shows the first twelve."""
    shown: list[tuple[str, str]] = [
        ("Return", fixed(number(record, "rollout/ep_rew_mean"), 1)),
        ("Ep Length", fixed(number(record, "rollout/ep_len_mean"), 1)),
        ("Eval", fixed(number(record, "eval/mean_reward"), 1)),
        ("Eval Std", fixed(number(record, "eval/std_reward"), 1)),
        ("Success", percent(number(record, "rollout/success_rate"), 1.0)),
        ("Episodes", count(number(record, "rollout/episodes"))),
    ]
    for name in algorithm_info(header.algo, header.stage).curves:
        key = f"train/{name}"
        shown.append((METRICS[key].row or name, significant(number(record, key))))
    shown.append(("Updates", count(number(record, "train/n_updates"))))
    return shown


def _rows(pairs: Sequence[tuple[str, str]], width: int) -> Block:
    """One name and value per line."""
    return [_pair(name, value, width) for name, value in pairs]


def _pairs(pairs: Sequence[tuple[str, str]], width: int) -> Block:
    """Two names and values per line."""
    half = (width - 2) // 2
    rest = width - 2 - half
    return [
        Text("  ").join([_pair(*left, half), _pair(*right, rest)])
        for left, right in zip(pairs[::2], pairs[1::2], strict=True)
    ]


def _pair(name: str, value: str, width: int) -> Text:
    """Where both do not fit, the name is cut, never the value."""
    name = name[: max(0, width - len(value) - 1)]
    return Text(name + value.rjust(width - len(name)), "bright_black" if value == UNKNOWN else "")


def _states(record: Record, header: RunHeader) -> list[tuple[str, str]]:
    """How far apart the two sides are, and what lies between them."""
    states = [
        ("utd", fixed(number(record, "perf/utd"), 2)),
        ("debt", fixed(number(record, "perf/update_debt"), 1)),
        ("lag", fixed(number(record, "perf/policy_lag"), 1)),
    ]
    if header.has_rollouts:
        lost = (number(record, "perf/rollouts_dropped") or 0) + (number(record, "perf/rollouts_too_old") or 0)
        rollout = milliseconds(number(record, ROLLOUT_KEY))
        last = fixed(number(record, "perf/policy_lag_p95"), 0)
        return [states[0], states[2], ("lag p95", last), ("rollout", f"{rollout} ms"), ("lost", count(lost))]
    replay = f"{count(number(record, 'replay/rows'))} ({percent(number(record, 'replay/fill'), 1.0)})"
    return [*states, ("age", count(number(record, "perf/sample_age"))), ("replay", replay)]


def _rate_lines(record: Record, header: RunHeader, width: int) -> Block:
    """Rates in two lines; in one where they fit."""
    speeds = [(METRICS[key].row or key, rate(number(record, key))) for key in SPEEDS]
    speeds[3] = (speeds[3][0], speeds[3][1] + " env steps/s")
    first, second = _named(speeds), _named(_states(record, header))
    joined = Text("   ").join([first, second])
    return [joined] if joined.cell_len <= width else [first, second]


def _rank_lines(record: Record, header: RunHeader) -> Block:
    """How long several ranks wait for each other, and for whom; nothing to say of one."""
    if header.world_size == 1:
        return []
    waits = "/".join(fixed(number(record, rank_key(LearnerPhase.RANK_BARRIER, name)), 1) for name in RANK_STATISTICS)
    working = number(record, "rank/num")
    of_all = "" if working in (None, header.world_size) else f"{count(working)} of "
    late = count(number(record, "rank/straggler"))
    line = f"{of_all}{header.world_size}: barrier {waits} ms ({'/'.join(RANK_STATISTICS)}), straggler rank {late}"
    return [Text.assemble(("ranks ", "cyan"), line)]


def _device_lines(record: Record) -> Block:
    """What the device did beside the phases; nothing where there is none."""
    train_ms = number(record, device_key(DeviceSpan.TRAIN))
    if train_ms is None:
        return []
    copies = "+".join(
        milliseconds(number(record, device_key(span))) for span in (DeviceSpan.H2D, DeviceSpan.H2D_HIDDEN)
    )
    busy = percent(number(record, "device/busy_share"), 1.0)
    launch_bound = percent(number(record, "device/launch_bound"), 1.0)
    line = f"train {milliseconds(train_ms)} ms   h2d {copies} hidden   busy {busy}   launch-bound {launch_bound}"
    return [Text.assemble(("device ", "cyan"), line)]


SPEEDS = (
    "perf/steps_per_sec",
    "perf/collector_capacity",
    "perf/learner_capacity",
    "perf/predicted_steps_per_sec",
    "perf/updates_per_sec",
)


def _named(pairs: Sequence[tuple[str, str]]) -> Text:
    return Text("   ").join([Text.assemble((name + " ", "cyan"), (value, "bold")) for name, value in pairs])


def _verdict_lines(verdict: Verdict | None, is_roomy: bool) -> Block:
    """The bottleneck and the first advice; with room, the whole reason and every advice."""
    label, reason = (UNKNOWN, UNKNOWN) if verdict is None else (verdict.label, verdict.reason)
    advice = [advice.text for advice in verdict.advice] if verdict is not None else []
    lines = [Text.assemble(("bottleneck ", "cyan"), (label, "bold yellow"))]
    if not is_roomy:
        return [*lines, Text.assemble(("advice     ", "cyan"), advice[0] if advice else UNKNOWN)]
    lines.append(Text.assemble(("because    ", "cyan"), reason))
    lines += [
        Text.assemble(("advice     " if index == 0 else " " * 11, "cyan"), line)
        for index, line in enumerate(advice or [""])
    ]
    return lines
