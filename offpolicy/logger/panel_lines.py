"""The lines of the panel besides the account: progress, return, speed, the bottleneck in words, rates, machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from offpolicy.config.sections import algorithm_info
from offpolicy.logger.console import (
    UNKNOWN,
    cores_text,
    count,
    duration,
    fixed,
    mean_return,
    milliseconds,
    number,
    percent,
    rate,
    significant,
)
from offpolicy.logger.metrics import (
    COLLECTOR_ROWS,
    CORES_KEY,
    LEARNER_ROWS,
    METRICS,
    ROLLOUT_KEY,
    core_key,
    device_key,
)
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sparkline import History, sparkline
from offpolicy.logger.timing_keys import MS_PER_S
from offpolicy.timing.bottleneck import Advice, Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CoreClass, DeviceSpan, LearnerPhase

NAME_WIDTH = 11  # of the first lines
MOST_CURVE = 40  # characters of a sparkline
LEAST_CURVE = 8
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
LEAST_MS = 0.005  # rounded to 0.01
# What a record says about anything but time.
COURSE = ("env_steps", "time/elapsed_s", "rollout/", "eval/", "train/n_updates")


@dataclass(slots=True)
class Shown:
    """What the panel shows besides the newest record: the run's course so far."""

    header: RunHeader
    record: Record = field(default_factory=dict)
    verdict: Verdict | None = None
    returns: History = field(default_factory=History)
    speeds: History = field(default_factory=History)
    best: tuple[float, float] | None = field(init=False)  # mean return of the best evaluation, and its env steps
    seen: set[str] = field(default_factory=set)  # keys that have held a number other than 0
    num_records: int = 0
    activity: str = ""  # such as `evaluating`
    message: str = ""  # the newest one
    has_help: bool = False  # `?` is read

    def __post_init__(self) -> None:
        self.best = self.header.best_eval

    def add(self, record: Record, verdict: Verdict | None) -> None:
        """Takes over a record."""
        self.record, self.verdict, self.num_records = record, verdict, self.num_records + 1
        self.returns.add(number(record, "rollout/ep_rew_mean"))
        self.speeds.add(number(record, "perf/steps_per_sec") if "perf/iter_ms" in record else None)
        self.seen |= {key for key in record if abs(number(record, key) or 0.0) >= _least(key)}
        self._note_best(record)

    def end_with(self, record: Record) -> None:
        """Takes over the course of learning from a record that holds the end of the run, and none of its times."""
        times = {key: value for key, value in self.record.items() if not key.startswith((*COURSE, "time/eta_s"))}
        self.record = times | {key: value for key, value in record.items() if key.startswith(COURSE)}
        self._note_best(record)

    def _note_best(self, record: Record) -> None:
        mean = number(record, "eval/mean_reward")
        if mean is not None and (self.best is None or mean > self.best[0]):
            self.best = (mean, number(record, "eval/env_steps") or 0.0)


def _least(key: str) -> float:
    """Returns the least value with which a key has a row: a phase's time is not rounded to 0.00."""
    return LEAST_MS if key.startswith("timing/") else sys.float_info.min


def fitting(parts: Sequence[Text], width: int, gap: str = "  ") -> Text:
    """Returns the parts in one line, without the last ones where the line would be longer than `width`."""
    line = Text(gap).join(parts)
    return line if line.cell_len <= width or len(parts) <= 1 else fitting(parts[:-1], width, gap)


def _named(name: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((f"{name:<{NAME_WIDTH}}", "cyan"), *parts)


def _curve(history: History, room: int, *, ascii_only: bool) -> list[Text]:
    """Returns the sparkline where there is room for one."""
    curve = sparkline(history.points, min(MOST_CURVE, room), ascii_only=ascii_only) if room >= LEAST_CURVE else ""
    return [Text(curve, "green")] if curve else []


def progress_text(record: Record, header: RunHeader, *, is_narrow: bool = False) -> str:
    """Returns share, steps, the elapsed time unless it is narrow, and the time left, if that is known."""
    steps = number(record, "env_steps") or 0.0
    eta = number(record, "time/eta_s")
    share = min(100, int(100 * steps // header.total_timesteps))
    done = f"{share:3}%  {count(steps)} / {count(header.total_timesteps)} steps"
    elapsed = "" if is_narrow and eta else f"   elapsed {duration(number(record, 'time/elapsed_s'))}"
    return done + elapsed + (f"   ETA {duration(eta)}" if eta else "")


def return_line(shown: Shown, width: int, *, ascii_only: bool) -> Text:
    """Returns the mean return with its course, the newest and the best evaluation."""
    record = shown.record
    parts = [_named("return", (f"{mean_return(number(record, 'rollout/ep_rew_mean')):>8}", "bold"))]
    tail: list[Text] = []
    mean = number(record, "eval/mean_reward")
    if mean is not None:
        deviation = mean_return(number(record, "eval/std_reward"))
        tail.append(Text(f"eval {mean_return(mean)} {'+-' if ascii_only else '±'}{deviation}", "bold"))
    if shown.best is not None:
        tail.append(Text(f"best {mean_return(shown.best[0])} at {count(shown.best[1])}"))
    if shown.returns.first is not None and not shown.header.is_resumed:
        tail.append(Text(f"first {mean_return(shown.returns.first)}"))
    return _with_curve(parts, shown.returns, tail, width, ascii_only=ascii_only)


def speed_line(shown: Shown, width: int, *, ascii_only: bool) -> Text:
    """Returns the throughput with its course, and what it could be."""
    record = shown.record
    speed = f"{rate(number(record, 'perf/steps_per_sec')):>8}"
    parts = [_named(METRICS["perf/steps_per_sec"].row, (speed, "bold"), " env steps/s")]
    tail: list[Text] = []
    could = number(record, "perf/predicted_steps_per_sec")
    if could is not None:
        error = number(record, "perf/prediction_error_pct")
        within = "" if error is None else f" +-{max(1.0, error):.0f}%"
        tail.append(Text(f"{METRICS['perf/predicted_steps_per_sec'].row} {rate(could)}{within}"))
    updates = number(record, "perf/updates_per_sec")
    tail += [] if updates is None else [Text(f"{rate(updates)} updates/s")]
    return _with_curve(parts, shown.speeds, tail, width, ascii_only=ascii_only)


def _with_curve(head: list[Text], history: History, tail: list[Text], width: int, *, ascii_only: bool) -> Text:
    """Returns head, curve and as much of the tail as leaves the curve its least width."""
    kept = list(tail)
    gap = Text("  ")
    while kept and gap.join([*head, *kept]).cell_len + len(gap) + LEAST_CURVE > width:
        kept.pop()
    room = width - gap.join([*head, *kept]).cell_len - len(gap)
    return gap.join([*head, *_curve(history, room, ascii_only=ascii_only), *kept])


def bottleneck_sentence(verdict: Verdict | None) -> str:
    """Returns what bounds the run in plain words."""
    if verdict is None or verdict.bottleneck is Bottleneck.WARMING_UP:
        return "not known yet: no update has been timed"
    if verdict.bottleneck is Bottleneck.UNKNOWN or verdict.phase is None:
        return f"not known: {verdict.reason}"
    is_learner = isinstance(verdict.phase, LearnerPhase)
    side = "learner" if is_learner else "collector"
    row = (LEARNER_ROWS if is_learner else COLLECTOR_ROWS)[verdict.phase]
    if verdict.bottleneck is Bottleneck.CONTENTION:
        return f"no free core: the {side} got none for {verdict.share:.0%} of the time"
    if verdict.bottleneck is Bottleneck.BALANCED:
        return f"no side alone: both are equally busy; {row} takes {verdict.share:.0%} of the {side}'s time"
    detail = {
        Detail.RESETS: f"resetting environments takes {verdict.share:.0%} of its time",
        Detail.LAUNCH_BOUND: f"{row} takes {verdict.share:.0%} of its time, most of it to launch kernels",
    }.get(verdict.detail or Detail.DESCHEDULED, f"{row} takes {verdict.share:.0%} of its time")
    return f"the {side}: {detail}"


def advice_line(advice: Advice | None, name: str = "try") -> Text:
    """Returns the words to type, and what they are good for."""
    if advice is None:
        return _named(name, UNKNOWN)
    words, colon, effect = advice.text.partition(": ")
    return _named(name, (words, "bold green"), f"{colon}{effect}")


def verdict_lines(verdict: Verdict | None) -> list[Text]:
    """Returns the bottleneck, and the one thing to try."""
    color = "bold red" if verdict is not None and verdict.bottleneck is Bottleneck.CONTENTION else "bold yellow"
    first = verdict.advice[0] if verdict is not None and verdict.advice else None
    return [_named("bottleneck", (bottleneck_sentence(verdict), color)), advice_line(first)]


def reason_lines(verdict: Verdict | None) -> list[Text]:
    """Returns the reason of the verdict and the rest of the advice."""
    if verdict is None or verdict.phase is None:
        return []
    return [_named("because", verdict.reason), *(advice_line(advice, "or") for advice in verdict.advice[1:])]


def rate_lines(record: Record, header: RunHeader, width: int) -> list[Text]:
    """Returns the capacities and the state of updates and rows: two lines, one where both fit."""
    rates = [
        ("alone: I collector", rate(number(record, "perf/collector_capacity"))),
        ("T learner", rate(number(record, "perf/learner_capacity")) + " env steps/s"),
    ]
    names = {"restarts": "train/restarts", "env restarts": "collect/restarts"}
    states = [(name, count(times)) for name, key in names.items() if (times := number(record, key))]
    states.append(("utd", fixed(number(record, "perf/utd"), 2)))
    if header.has_rollouts:
        lost = (number(record, "perf/rollouts_dropped") or 0) + (number(record, "perf/rollouts_too_old") or 0)
        states += [
            ("lag", f"{fixed(number(record, 'perf/policy_lag'), 1)} versions"),
            ("lag p95", fixed(number(record, "perf/policy_lag_p95"), 0)),
            ("rollout", f"{milliseconds(number(record, ROLLOUT_KEY))} ms"),
            ("lost", f"{count(lost)} rollouts"),
        ]
    else:
        fill = number(record, "replay/fill")
        states += [
            ("debt", f"{fixed(number(record, 'perf/update_debt'), 0)} updates"),
            ("lag", f"{fixed(number(record, 'perf/policy_lag'), 1)} versions"),
            ("age", f"{count(number(record, 'perf/sample_age'))} steps"),
            ("replay", UNKNOWN if fill is None else f"{fill:.0%} full"),
        ]
    joined = _pairs([*rates, *states])
    return [joined] if joined.cell_len <= width else [_fitting_pairs(pairs, width) for pairs in (rates, states)]


def _pairs(pairs: Sequence[tuple[str, str]]) -> Text:
    return Text("  ").join([Text.assemble((name + " ", "cyan"), text) for name, text in pairs])


def _fitting_pairs(pairs: Sequence[tuple[str, str]], width: int) -> Text:
    return fitting([Text.assemble((name + " ", "cyan"), text) for name, text in pairs], width, "  ")


def machine_line(record: Record, width: int) -> list[Text]:
    """Returns the use of cores and memory and, where the run uses one, of the GPU; nothing where none is known."""
    parts: list[tuple[str, str]] = []
    capacity = number(record, CORES_KEY)
    if capacity is not None:
        idle = (number(record, core_key(CoreClass.IDLE)) or 0.0) / MS_PER_S
        others = max(0.0, (number(record, core_key(CoreClass.OTHERS)) or 0.0) / MS_PER_S)
        beside = f", others {others:.1f}" if others >= 0.1 else ""  # noqa: PLR2004  # a core's tenth is shown
        parts.append(("cpu", f"{max(0.0, capacity - idle - others):.1f} of {capacity:g} cores{beside}"))
    for name, used, total in (("memory", "memory_gib", "memory_total_gib"), ("vram", "vram_gib", "vram_total_gib")):
        held, most = number(record, f"system/{used}"), number(record, f"system/{total}")
        if held is not None and most is not None:
            parts.append((name, f"{held:.1f} of {most:.1f} GiB"))
    for name, key, unit in (("gpu", "system/gpu_pct", "%"), ("power", "system/gpu_watts", " W")):
        value = number(record, key)
        if value is not None:
            parts.append((name, f"{value:.0f}{unit}"))
    return [_fitting_pairs(parts, width)] if parts else []


def device_line(record: Record) -> list[Text]:
    """Returns a line on the device's spans, where it has any."""
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


def core_line(record: Record) -> list[Text]:
    """Returns a line on what the cores did, where the record holds it."""
    capacity = number(record, CORES_KEY)
    if capacity is None:
        return []
    used = {str(row): (number(record, core_key(row)) or 0.0) / MS_PER_S for row in CoreClass}
    return [Text.assemble(("cores ", "cyan"), cores_text(used, capacity))]


def learning_pairs(shown: Shown, *, is_full: bool) -> list[tuple[str, str]]:
    """Returns names and values of episodes and losses: those that this run has, or all of the algorithm."""
    record, header = shown.record, shown.header
    curves = [f"train/{name}" for name in algorithm_info(header.algo, header.stage).curves]
    pairs = [(METRICS[key].row, significant(number(record, key)), key) for key in curves]
    pairs += [
        ("Ep Length", fixed(number(record, "rollout/ep_len_mean"), 1), "rollout/ep_len_mean"),
        ("Success", percent(number(record, "rollout/success_rate"), 1.0), "rollout/success_rate"),
        ("Episodes", count(number(record, "rollout/episodes")), "rollout/episodes"),
        ("Updates", count(number(record, "train/n_updates")), "train/n_updates"),
    ]
    return [(name, value) for name, value, key in pairs if is_full or key in shown.seen]


def status_line(shown: Shown, width: int) -> Text:
    """Returns what the run is doing besides learning, else the newest message, else a line of the legend."""
    if shown.activity:
        return Text(shown.activity, "bold magenta")
    if shown.message:
        return Text(shown.message.splitlines()[0], "yellow" if shown.message.startswith("warning") else "")
    name, meaning = list(LEGEND.items())[shown.num_records // 3 % len(LEGEND)]
    keys = "? help   Ctrl-C saves and ends" if shown.has_help else "Ctrl-C saves and ends"
    line = Text.assemble((name, "cyan"), f": {meaning}", style="bright_black")
    room = width - line.cell_len - len(keys)
    return Text.assemble(line, (" " * room + keys, "bright_black")) if room >= 2 else line  # noqa: PLR2004  # a gap
