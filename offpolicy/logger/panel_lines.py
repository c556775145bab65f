"""What the panel shows, and its lines besides the account: progress, return, speed, bottleneck, rates, machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from rich.text import Text

from offpolicy.config.algorithms import algorithm_info
from offpolicy.logger.console import cores_text, count, number, text_of
from offpolicy.logger.metrics import (
    COLLECTOR_ROWS,
    CORES_KEY,
    LEARNER_ROWS,
    METRICS,
    RANK_STATISTICS,
    ROLLOUT_KEY,
)
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.timing_keys import MS_PER_S
from offpolicy.model.bottleneck import Bottleneck, Detail, Verdict
from offpolicy.output import UNKNOWN, return_text, three_digits
from offpolicy.timing.phases import CoreClass, LearnerPhase, PackerPhase

BLOCKS = "▁▂▃▄▅▆▇█"
BROAD = 96  # columns within the frame from which on there is a line for the packer, the cores and every rank
# What the short names mean, one after another in the last line, all at once with `?`.
LEGEND: Mapping[str, str] = {
    "thru": "env steps per second of wall time, as measured",
    "pred": "env steps per second that both sides could reach as configured",
    "I": "env steps per second of the collector alone, without waiting",
    "T": "env steps per second that the learner alone could take",
    "utd": "gradient updates per env step, as achieved",
    "debt": "gradient updates still owed for the steps collected",
    "lag": "how many weight versions the acting policy is behind",
    "age": "how many env steps ago the sampled rows were collected, on average",
    "waits": "a side that waits is not the cause: look at the other one",
}
LEAST_MS = 0.005  # rounded to 0.01: the least time with which a phase has a row
# What a record says about anything but time.
COURSE = ("env_steps", "time/elapsed_s", "rollout/", "eval/", "train/n_updates")
COUNTS: Mapping[str, str] = {
    "rollout/ep_len_mean": "Ep Length",
    "rollout/success_rate": "Success",
    "rollout/episodes": "Episodes",
    "train/n_updates": "Updates",
}
LINK_TIMES = ("remote_busy", "serialise", "transfer", "copy", "overhead")  # ms per call
BYTES_PER_MB = 1_000_000
RANK_TIMES: Mapping[str, str] = {
    LearnerPhase.TRAIN: "train",
    LearnerPhase.COLLECTOR_WAIT: "collector wait",
    LearnerPhase.RANK_BARRIER: "barrier",
    LearnerPhase.PARAM_SYNC: "sync",
    "iter": "wall",
    "late": "late",
}


@dataclass(slots=True)
class Shown:
    """What the panel shows: the newest record, the run's course so far, and what is going on."""

    header: RunHeader
    is_full: bool = False  # all rows and metrics, also those that this run cannot have
    record: Record = field(default_factory=dict)
    verdict: Verdict | None = None
    returns: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    best: tuple[float, float] | None = field(init=False)  # mean return of the best evaluation, and its env steps
    seen: set[str] = field(default_factory=set)  # keys that have held a number other than 0
    num_records: int = 0
    status: str = ""  # before the first record
    activity: str = ""  # such as `evaluating`
    messages: list[str] = field(default_factory=list)
    message_until: int = 0  # number of records at which the newest message gives way
    has_help: bool = False  # `?` is read
    is_helping: bool = False

    def __post_init__(self) -> None:
        self.best = self.header.best_eval

    def add(self, record: Record, verdict: Verdict | None = None, *, is_last: bool = False) -> None:
        """Takes over a record; of the last one the course of learning only, where there are times to keep."""
        if is_last and "perf/iter_ms" in self.record:
            course = {key: value for key, value in record.items() if key.startswith(COURSE)}
            self.record = self.record | course | {"time/eta_s": None}
        else:
            self.record, self.verdict, self.num_records = record, verdict, self.num_records + 1
            value, speed = number(record, "rollout/ep_rew_mean"), number(record, "perf/steps_per_sec")
            if value is not None and math.isfinite(value):  # another program's loop may report any
                self.returns.append(value)
            if speed is not None and "perf/iter_ms" in record:
                self.speeds.append(speed)
            for key in record:
                least = LEAST_MS if key.startswith("timing/") else sys.float_info.min
                if abs(number(record, key) or 0.0) >= least:
                    self.seen.add(key)
        mean = number(record, "eval/mean_reward")
        if mean is not None and (self.best is None or mean > self.best[0]):
            self.best = (mean, number(record, "eval/env_steps") or 0.0)


def plain_line(record: Record, total_timesteps: int) -> str:
    """Returns one interval in one line of ASCII; what is not known, as at the end of a run, is left out."""
    steps, text = int(number(record, "env_steps") or 0), partial(text_of, record)
    parts = [
        ("ret", text("rollout/ep_rew_mean"), ""),
        ("thru", text("perf/steps_per_sec"), "/s"),
        ("I", text("perf/collector_capacity"), "/s"),
        ("T", text("perf/learner_capacity"), "/s"),
        ("wait", text("timing/learner_collector_wait_ms", "z.1f"), "ms"),
        ("utd", text("perf/utd"), ""),
        ("eta", text("time/eta_s") if record.get("time/eta_s") else UNKNOWN, ""),
        ("bottleneck", record.get("perf/bottleneck") or UNKNOWN, ""),
    ]
    known = "".join(f" {name}={value}{unit}" for name, value, unit in parts if value != UNKNOWN)
    return f"{min(100, 100 * steps // total_timesteps)}% step={steps}/{total_timesteps}{known}"


def sparkline(points: Sequence[float], width: int) -> str:
    """Returns the points in at most `width` characters, from the lowest to the highest; '' for fewer than two."""
    if len(points) < 2:
        return ""
    means = np.array([part.mean() for part in np.array_split(points, min(width, len(points)))])
    levels = 8 * (means - means.min()) / (np.ptp(means) or 1.0)
    return "".join(BLOCKS[level] for level in levels.astype(int).clip(max=7))


def named(name: str, *parts: str | tuple[str, str]) -> Text:
    """Returns a coloured name and the parts, each with or without a style."""
    return Text.assemble((f"{name} ", "cyan"), *parts)


def fitting(parts: Sequence[Text], width: int) -> Text:
    """Returns the parts in one line, without the last ones where the line would be longer than `width`."""
    line = Text("  ").join(filter(None, parts))
    return line if line.cell_len <= width or len(parts) <= 1 else fitting(parts[:-1], width)


def progress_line(shown: Shown, width: int) -> Text:
    """Returns a bar, the share, steps, the elapsed time, and the time left, if it is known."""
    record, total = shown.record, shown.header.total_timesteps
    steps, elapsed = number(record, "env_steps") or 0.0, text_of(record, "time/elapsed_s")
    text = f" {min(100, int(100 * steps // total)):3}%  {steps:,.0f} / {total:,} steps   elapsed {elapsed}"
    text += f"   ETA {text_of(record, 'time/eta_s')}" if record.get("time/eta_s") else ""
    done = int(min(1.0, steps / total) * max(0, width - len(text)))
    return Text.assemble(("━" * done, "green"), ("─" * (width - len(text) - done), "bright_black"), text)


def return_line(shown: Shown, width: int) -> Text:
    """Returns the mean return with its course, the newest and the best evaluation."""
    record, newest = shown.record, text_of(shown.record, "rollout/ep_rew_mean")
    parts = [named("return    ", (f"{newest:>8}", "bold")), Text(sparkline(shown.returns, width // 8), "green")]
    if "eval/mean_reward" in record:
        spread = text_of(record, "eval/std_reward")
        parts.append(Text(f"eval {text_of(record, 'eval/mean_reward')} ±{spread}", "bold"))
    if shown.best is not None:
        parts.append(Text(f"best {return_text(shown.best[0])} at {count(shown.best[1])}"))
    if shown.returns and not shown.header.is_resumed:
        parts.append(Text(f"first {return_text(shown.returns[0])}"))
    return fitting(parts, width)


def speed_line(shown: Shown, width: int) -> Text:
    """Returns the throughput with its course, and what it could be."""
    record, speed = shown.record, text_of(shown.record, "perf/steps_per_sec")
    parts = [named("thru      ", (f"{speed:>8}", "bold"), " env steps/s")]
    parts.append(Text(sparkline(shown.speeds, width // 8), "green"))
    if "perf/predicted_steps_per_sec" in record:
        error = number(record, "perf/prediction_error_pct")
        within = "" if error is None else f" +-{max(1.0, error):.0f}%"
        parts.append(Text(f"pred {text_of(record, 'perf/predicted_steps_per_sec')}{within}"))
    if "perf/updates_per_sec" in record:
        parts.append(Text(f"{text_of(record, 'perf/updates_per_sec')} updates/s"))
    return fitting(parts, width)


def bottleneck_sentence(verdict: Verdict | None) -> str:
    """Returns what bounds the run in plain words."""
    if verdict is None or verdict.bottleneck is Bottleneck.WARMING_UP:
        return "not known yet: no update has been timed"
    if verdict.phase is None:
        return f"not known: {verdict.reason}"
    side, rows = "collector", COLLECTOR_ROWS
    if isinstance(verdict.phase, LearnerPhase):
        side, rows = "learner", LEARNER_ROWS
    row, share = rows[verdict.phase], f"{verdict.share:.0%}"
    if verdict.bottleneck is Bottleneck.LINK:
        return f"the link: {verdict.detail} of remote calls takes {share} of the collector's time"
    if verdict.bottleneck is Bottleneck.CONTENTION:
        return f"no free core: the {side} got none for {share} of the time"
    if verdict.bottleneck is Bottleneck.BALANCED:
        return f"no side alone: both are equally busy; {row} takes {share} of the {side}'s time"
    if verdict.detail is Detail.RESETS:
        return f"the {side}: resetting environments takes {share} of its time"
    launches = ", most of it to launch kernels" if verdict.detail is Detail.LAUNCH_BOUND else ""
    return f"the {side}: {row} takes {share} of its time{launches}"


def verdict_lines(verdict: Verdict | None) -> list[Text]:
    """Returns the bottleneck and the one thing to try; then the reason of the verdict and the rest of the advice."""
    color = "bold red" if verdict is not None and verdict.bottleneck is Bottleneck.CONTENTION else "bold yellow"
    advice = () if verdict is None else verdict.advice
    typed = [one.text.partition(": ") for one in advice] or [(UNKNOWN, "", "")]
    first, *others = [((words, "bold green"), colon + effect) for words, colon, effect in typed]
    lines = [named("bottleneck", (bottleneck_sentence(verdict), color)), named("try       ", *first)]
    if verdict is not None and verdict.phase is not None:
        lines += [named("because   ", verdict.reason), *(named("or        ", *other) for other in others)]
    return lines


def rate_lines(shown: Shown, width: int) -> list[Text]:
    """Returns a line on the capacities, and one on the state of updates and rows."""
    record, text = shown.record, partial(text_of, shown.record)
    rates = {
        "alone: I collector": text("perf/collector_capacity"),
        "T learner": text("perf/learner_capacity") + " env steps/s",
    }
    restarts = {"restarts": "train/restarts", "env restarts": "collect/restarts"}
    states = {name: text(key) for name, key in restarts.items() if record.get(key)} | {"utd": text("perf/utd")}
    lag = {"lag": text("perf/policy_lag") + " versions"}
    if shown.header.has_rollouts:
        lost = (number(record, "perf/rollouts_dropped") or 0) + (number(record, "perf/rollouts_too_old") or 0)
        states |= lag | {
            "lag p95": text("perf/policy_lag_p95", "z.0f"),
            "rollout": text(ROLLOUT_KEY) + " ms",
            "lost": f"{count(lost)} rollouts",
        }
    else:
        states |= {"debt": text("perf/update_debt") + " updates"} | lag
        states |= {"age": text("perf/sample_age") + " steps", "replay": text("replay/fill", ".0%") + " full"}
    return [fitting([named(*pair) for pair in pairs.items()], width) for pairs in (rates, states)]


def machine_lines(shown: Shown, width: int) -> Iterator[Text]:
    """Yields a line each on the ranks, on the device, and on cores, memory and GPU, as far as they are known."""
    record, world_size, text = shown.record, shown.header.world_size, partial(text_of, shown.record)
    if world_size > 1:
        waits = "/".join(text(f"rank/rank_barrier_{name}_ms", "z.1f") for name in RANK_STATISTICS)
        of_all = "" if number(record, "rank/num") in (None, world_size) else text("rank/num") + " of "
        who = "none is late" if "rank/late_ms" in record else UNKNOWN
        if "rank/straggler" in record:
            late, share = text("rank/late_ms", "z.1f"), text("rank/late_share", ".0%")
            who = f"rank {text('rank/straggler')} late {late} ms ({share})"
        yield named("ranks", f"{of_all}{world_size}: barrier {waits} ms ({'/'.join(RANK_STATISTICS)}), {who}")
    if "device/train_ms" in record:
        train, h2d, hidden = (text(f"device/{span}_ms") for span in ("train", "h2d", "h2d_hidden"))
        busy, bound = text("device/busy_share"), text("device/launch_bound")
        yield named("device", f"train {train} ms   h2d {h2d}+{hidden} hidden   busy {busy}   launch-bound {bound}")
    parts = []
    if (capacity := number(record, CORES_KEY)) is not None:
        idle, others = ((number(record, f"cores/{row}_ms_per_s") or 0.0) / MS_PER_S for row in ("idle", "others"))
        beside = f", others {others:.1f}" if others >= 0.1 else ""  # noqa: PLR2004  # a core's tenth is shown
        parts.append(named("cpu", f"{max(0.0, capacity - idle - max(0.0, others)):.1f} of {capacity:g} cores{beside}"))
    for name in ("memory", "vram"):
        if f"system/{name}_gib" in record:
            parts.append(named(name, f"{text(f'system/{name}_gib')} of {text(f'system/{name}_total_gib')} GiB"))
    for name, key, unit in (("gpu", "system/gpu_pct", "%"), ("power", "system/gpu_watts", " W")):
        if key in record:
            parts.append(named(name, text(key, ".0f") + unit))
    if parts:
        yield fitting(parts, width)


def lines_above(shown: Shown, width: int) -> list[Text]:
    """Returns the lines above the account: what people look at."""
    lines = (progress_line(shown, width), return_line(shown, width), speed_line(shown, width))
    return [*lines, *verdict_lines(shown.verdict)[:2]]


def lines_below(shown: Shown, width: int) -> Iterator[Text]:
    """Yields the lines below the account, as many as a high terminal holds: the first ones are wanted most."""
    record, text = shown.record, partial(text_of, shown.record)
    yield from (*rate_lines(shown, width), *machine_lines(shown, width), *verdict_lines(shown.verdict)[2:])
    if number(record, "prefetch/pack_ms") and width >= BROAD:
        times = (f"{phase.replace('_', ' ')} {text(f'prefetch/{phase}_ms')}" for phase in PackerPhase)
        yield named("packer", "   ".join(times) + " ms per batch")
    if (capacity := number(record, CORES_KEY)) is not None and width >= BROAD:
        used = {str(row): (number(record, f"cores/{row}_ms_per_s") or 0.0) / MS_PER_S for row in CoreClass}
        yield named("cores", cores_text(used, capacity))
    for index in range(shown.header.num_collectors if width >= BROAD else 0):
        if f"link/{index}/copy_ms" in record:
            spans = (f"{each.replace('_', ' ')} {text(f'link/{index}/{each}_ms', 'z.1f')}" for each in LINK_TIMES)
            size, lag = (number(record, f"link/{index}/{name}") or 0.0 for name in ("bytes_per_sec", "lag_rows"))
            rates = f"ms  {size / BYTES_PER_MB:.1f} MB/s  lag {lag:.0f} steps"
            yield named(f"remote {index}", "  ".join(spans) + f" {rates}")
    for rank in range(shown.header.world_size if width >= BROAD else 0):
        if f"rank/{rank}/iter_ms" in record:
            times = (f"{name} {text(f'rank/{rank}/{key}_ms')}" for key, name in RANK_TIMES.items())
            yield named(f"rank {rank}", "  ".join([*times, f"cpu {text(f'rank/{rank}/cpu_pct')}%"]))


def learning_pairs(shown: Shown) -> list[tuple[str, str]]:
    """Returns names and values of losses and episodes: those that this run has, or all of the algorithm."""
    record, header = shown.record, shown.header
    curves = [f"train/{name}" for name in algorithm_info(header.algo, header.stage).curves]
    pairs = {key: (METRICS[key].row, three_digits(number(record, key))) for key in curves}
    pairs |= {key: (name, text_of(record, key)) for key, name in COUNTS.items()}
    return [pair for key, pair in pairs.items() if shown.is_full or key in shown.seen]


def status_line(shown: Shown, width: int) -> Text:
    """Returns what the run is doing besides learning, else the newest message, else a line of the legend."""
    if shown.activity:
        return Text(shown.activity, "bold magenta")
    if shown.num_records < shown.message_until:
        message = shown.messages[-1]
        return Text(message.splitlines()[0], "yellow" if message.startswith("warning") else "")
    name, meaning = list(LEGEND.items())[shown.num_records // 3 % len(LEGEND)]
    keys = "? help   Ctrl-C saves and ends" if shown.has_help else "Ctrl-C saves and ends"
    line = Text.assemble((name, "cyan"), f": {meaning}", style="bright_black")
    room = width - line.cell_len - len(keys)
    return Text.assemble(line, (" " * room + keys, "bright_black")) if room >= 2 else line  # noqa: PLR2004  # a gap
