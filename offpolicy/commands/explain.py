"""`offpolicy explain RUN`: where the time of a run went, what bounds it, and what a change would bring."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table

from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.run_files import read_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.logger.final_table import COLLECTOR_NAMES, LEARNER_NAMES
from offpolicy.logger.summary import WARMUP, WHOLE
from offpolicy.timing.phases import LEARNER_PERIODIC, CollectorPhase
from offpolicy.timing.what_if import (
    HALVED_EPOCHS,
    HALVED_UTD,
    ONE_MORE_COLLECTOR,
    TWICE_THE_BATCH,
    Capacities,
    Pipeline,
    Setting,
    flip_delay_s,
    pipeline_of,
    waterfall,
    what_ifs,
)

MICRO, NS = 1e6, 1e9
# Where two runs may differ without another amount of work per env step.
NO_MATTER = ("log", "eval", "checkpoint", "run_dir", "resume", "seed", "total_timesteps", "teacher", "env.measure")
TELLING = 0.05  # of the median iteration: what a phase's p99 must reach to be shown
# A change of one key that is a what-if, and by what factor: how a prediction is checked against a second run.
CHANGED_KEYS = {
    "algo.utd": (HALVED_UTD, 0.5),
    "algo.batch_size": (TWICE_THE_BATCH, 2.0),
    "algo.epochs": (HALVED_EPOCHS, 0.5),
}


@dataclass(frozen=True, slots=True)
class Explained:
    """A run that has ended: its configuration, `summary.json`, and what both sides spend on an env step."""

    path: Path
    cfg: RunConfig
    summary: Mapping[str, Any]  # Any: the nested mapping of summary.json
    pipeline: Pipeline
    learner_s: Mapping[str, float]  # steady seconds of rank 0 by phase

    @classmethod
    def of(cls, path: Path) -> Explained:
        """Raises `ConfigError` where the run has no account to explain."""
        cfg, summary = read_config(path), _read_summary(path)
        try:
            timing, rates = summary["timing"], summary["rates"]
            collectors = [_phases_s(section) for section in timing.get("collectors", [timing["collector"]])]
            learner = _phases_s(timing["learner"])
            num_hosts = len(timing.get("learners", [None])) // cfg.runner.world_size or 1
            together = {phase: sum(own[phase] for own in collectors) for phase in collectors[0]}
            measured = Capacities(1.0 * rates["collector_capacity"], 1.0 * rates["learner_capacity"])
            count = cfg.collect.num_collectors * num_hosts
            pipeline = pipeline_of(together, learner, measured, count, cfg.collect_mode)
        except (KeyError, TypeError, ValueError):
            told = "it ended before learning, a process never reported, or timing was off"
            raise ConfigError(f"run: {path} has no account to explain: {told}") from None
        return cls(path, cfg, summary, pipeline, learner)

    @property
    def steps_per_sec(self) -> float:
        """Done, pauses included."""
        return float(self.summary["rates"]["steps_per_sec"])

    @property
    def pause_share(self) -> float:
        """Of the learner's wall: evaluations and checkpoints."""
        return sum(self.learner_s[phase] for phase in LEARNER_PERIODIC) / sum(self.learner_s.values())

    @property
    def between_pauses(self) -> float:
        """Env steps per second between evaluations and checkpoints."""
        return self.steps_per_sec / (1.0 - self.pause_share)

    @property
    def what_ifs(self) -> dict[str, Pipeline]:
        """The changes by their names."""
        algo = self.cfg.algo
        setting = Setting(
            has_replay=not algo.learns_from_rollouts,
            updates_per_iteration=algo.utd * self.cfg.env.num_envs * self.pipeline.num_collectors,
            epochs=algo.epochs,
            may_add_collector=self.cfg.runner.world_size == 1,
        )
        return dict(what_ifs(self.pipeline, setting))

    def predicted(self, then: Pipeline) -> float:
        """Env steps per second between pauses: the model's change, applied to what was done."""
        return self.between_pauses * then.steps_per_sec / self.pipeline.steps_per_sec

    def with_pauses(self, steps_per_sec: float) -> float:
        """The same with the pauses of this run, which cost what they cost per env step."""
        return 1.0 / (1.0 / steps_per_sec + self.pause_share / self.steps_per_sec)


def explain(run: Path, before: Path | None = None) -> int:
    """Print the account, the verdict and the what-ifs; with `before`, also how well that run predicted this one."""
    now = Explained.of(run)
    console = Console(markup=False, highlight=False)
    if now.summary["status"] != "completed":
        console.print(f"{run}: {now.summary['status']}, {now.summary['reason']}")
    console.print(Group(_costs(now.pipeline), _waterfall(now), _spread(now.summary["timing"])))
    console.print(Group(*_verdict(now.summary), "", _predictions(now)))
    if before is not None:
        console.print(_check(Explained.of(before), now))
    return 0


def _read_summary(path: Path) -> Mapping[str, Any]:
    try:
        summary: Mapping[str, Any] = json.loads((path / "summary.json").read_text())
    except (OSError, ValueError) as error:
        told = f"{path / 'summary.json'} cannot be read: {error}"
        raise ConfigError(f"run: {told}; it is written when a run ends") from None
    return summary


def _phases_s(section: Mapping[str, Any]) -> dict[str, float]:
    """Steady seconds by phase, `other` among them."""
    phases = {name: float(value) for name, value in section["phases_s"].items() if name != WARMUP}
    return {**phases, "other": float(section["other_s"])}


def _costs(pipeline: Pipeline) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="active time per env step, us")
    for side in ("Learner", "Collector"):
        table.add_column(side)
        table.add_column("us", justify="right")
    left = [*_cost_rows(pipeline.learner_s, LEARNER_NAMES, "1 / T")]
    right = [*_cost_rows(pipeline.collector_s, COLLECTOR_NAMES, f"{pipeline.num_collectors} / I")]
    for index in range(max(len(left), len(right))):
        pair = (left[index] if index < len(left) else ("", ""), right[index] if index < len(right) else ("", ""))
        table.add_row(*pair[0], *pair[1])
    return table


def _cost_rows(costs: Mapping[str, float], names: Mapping[str, str], total: str) -> Iterator[tuple[str, str]]:
    for phase, cost in sorted(costs.items(), key=lambda item: -item[1]):
        yield names[phase], f"{MICRO * cost:,.2f}"
    yield total, f"{MICRO * sum(costs.values()):,.2f}"


def _waterfall(run: Explained) -> Table:
    """From what both sides could do together to what they did."""
    pipeline = run.pipeline
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"env steps per second, mode {pipeline.mode}")
    for name in ("", "I", "T", "left", "lost"):
        table.add_column(name, justify="right" if name else "left")
    phases_ns = {phase: round(NS * seconds) for phase, seconds in run.learner_s.items()}
    capacities = pipeline.collector_capacity, pipeline.learner_capacity
    before = None
    for cause, left in waterfall(*capacities, pipeline.mode, run.steps_per_sec, phases_ns):
        first = [f"{capacity:,.0f}" for capacity in capacities] if before is None else ["", ""]
        lost = "" if before is None else f"{before - left:,.1f}"
        table.add_row(LEARNER_NAMES.get(cause, cause), *first, f"{left:,.1f}", lost)
        before = left
    return table


def _spread(timing: Mapping[str, Any]) -> RenderableType:
    """How uneven the iterations were: the whole of each side, and the phases that are sometimes long."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="ms per iteration, ms per vector step")
    for name in ("", "p50", "p95", "p99", "max"):
        table.add_column(name, justify="right" if name else "left")
    for side, names in (("learner", LEARNER_NAMES), ("collector", COLLECTOR_NAMES)):
        spreads = timing[side].get("spread_ms", {})
        if WHOLE not in spreads:
            return ""
        for phase, spread in spreads.items():
            if phase == WHOLE or spread["p99"] >= TELLING * spreads[WHOLE]["p50"]:
                name = f"{side.capitalize()} {'in all' if phase == WHOLE else names[phase]}"
                table.add_row(name, *(f"{spread[key]:,.2f}" for key in ("p50", "p95", "p99", "max")))
    return table


def _verdict(summary: Mapping[str, Any]) -> list[str]:
    bottleneck = summary["bottleneck"]
    lines = [f"bottleneck  {bottleneck['verdict']} ({bottleneck['phase']}): {bottleneck['reason']}"]
    return lines + [f"advice      {advice}" for advice in bottleneck["advice"]]


def _predictions(run: Explained) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("if", "I", "T", "predicted", "change"):
        table.add_column(name, justify="left" if name == "if" else "right")
    for change, then in run.what_ifs.items():
        predicted = run.with_pauses(run.predicted(then))
        numbers = (then.collector_capacity, then.learner_capacity, predicted)
        gain = round(predicted / run.steps_per_sec - 1.0, 2) + 0.0  # no -0 %
        table.add_row(change, *(f"{number:,.0f}" for number in numbers), f"{gain:+.0%}")
    return Group(table, _flip(run.pipeline))


def _flip(now: Pipeline) -> str:
    delay_us, env_step_us = MICRO * flip_delay_s(now), MICRO * now.collector_s[CollectorPhase.ENV_STEP]
    if delay_us > 0:
        return f"the collector side bounds the run once an env step takes {delay_us:,.1f} us more"
    if -delay_us < env_step_us:
        return f"the learner side bounds the run once an env step takes {-delay_us:,.1f} us less"
    return "no faster environment makes the learner side bound the run"


def _check(before: Explained, now: Explained) -> str:
    """How far a prediction of `before` was from what `now` did. Raises `ConfigError` if the change is no what-if."""
    change = _change(before, now)
    predicted, done = before.predicted(before.what_ifs[change]), now.between_pauses
    return (
        f"{before.path} did {before.between_pauses:,.0f} env steps/s between evaluations and checkpoints and predicted"
        f" {predicted:,.0f} for '{change}'; this run did {done:,.0f}: off by {predicted / done - 1.0:+.1%}"
    )


def _change(before: Explained, now: Explained) -> str:
    """The what-if that turns one configuration into the other."""
    old, new = flatten(before.cfg.to_mapping()), flatten(now.cfg.to_mapping())
    changed = [key for key in old | new if old.get(key) != new.get(key) and not is_within(key, NO_MATTER)]
    name = _named(changed[0], old, new) if len(changed) == 1 else ""
    if name in before.what_ifs:
        return name
    told = ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in changed) or "nothing"
    raise ConfigError(f"--before: {told} changed, which is not one of the what-ifs: {', '.join(before.what_ifs)}")


def _named(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if key == "collect.mode":
        return f"collect.mode={new[key]}"
    if key == "collect.num_collectors" and new[key] == old[key] + 1:
        return ONE_MORE_COLLECTOR
    change, factor = CHANGED_KEYS.get(key, ("", 0.0))
    return change if factor and new[key] == factor * old[key] else ""
