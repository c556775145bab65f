"""What a delay in one phase must do to all phases of all processes, and where a run's records differ from that.

A *tour* is one run in which one phase after the other is late (`delay_injection.py`).
In the stretch between two delays no phase is late.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from tests.processes.delay_plan import Stretch, run_plan

DELAY_MS = 25.0
FROM, TO, AND_MS = 0.95, 1.10, 1.0  # where the delay was put: so much of it is seen, and a millisecond at most
ELSEWHERE, WAITING = 0.1, 0.3  # of the delay: what any other phase may change, and a wait beyond what it must
LATE = 90  # iterations of a stretch in which a phase is late

# The process that waits, the one it waits for, and the phase. A delay that is not absorbed makes all others wait.
WAITS: Mapping[tuple[str, str], str] = {
    # waits        for
    ("learner", "collector"): "collector_wait",
    ("learner", "packer"): "replay_batch_wait",
    ("learner", "rank1"): "rank_barrier",
    ("collector", "learner"): "learner_wait",
    ("collector", "packer"): "learner_wait",
    ("collector", "rank1"): "learner_wait",
    ("packer", "learner"): "request_wait",
    ("packer", "collector"): "request_wait",
    ("rank1", "learner"): "rank_barrier",
    ("rank1", "collector"): "collector_wait",
}
# Ranks are in `param_sync` together: they wait there for the one that is late there.
TOGETHER = "param_sync"
# The learner asks for a snapshot in its own phase, and waits for it there.
SNAPSHOT, ASKED_IN = "collector.snapshot", "learner.checkpoint"
# Where sides overlap, a delay first eats up the time for which the one who is late would have waited itself.
SLACK = {"learner": "collector_wait", "collector": "learner_wait", "packer": "request_wait"}

Phases = Mapping[str, float]  # ms by "track.phase": per iteration, per vector step, per packed batch
Bands = Mapping[str, tuple[float, float]]  # ms, from and to


@dataclass(frozen=True, slots=True)
class Scene:
    """A configuration, and the facts of it that decide which process waits for which."""

    overrides: tuple[str, ...]
    in_turns: bool  # the collector stands still while the learner works
    late: tuple[str, ...]  # the phases that are late in its tour
    tracks: tuple[str, ...] = ("learner", "collector")
    steps: float = 1.0  # vector steps of a collector per iteration of the learner
    transitions: int = 1  # of them those that the learner is given: the step after an episode's end is none
    usual: int = 1000  # iterations of a stretch without a delay: whole records fit in, at 0.5 ms for one too


def phases_of(record: Mapping[str, Any]) -> dict[str, float]:
    """All phases of a record; those of rank 1 from the mean over two ranks."""
    learner = {f"learner.{phase}": record[f"timing/learner_{phase}_ms"] for phase in LearnerPhase}
    collector = {f"collector.{phase}": record.get(f"timing/collector_{phase}_ms", 0.0) for phase in CollectorPhase}
    packer = {f"packer.{phase}": record.get(f"prefetch/{phase}_ms", 0.0) for phase in PackerPhase}
    means = {phase: record[f"rank/{phase}_mean_ms"] for phase in LearnerPhase}
    rank1 = {f"rank1.{phase}": 2 * mean - learner[f"learner.{phase}"] for phase, mean in means.items()}
    return learner | collector | packer | rank1


@dataclass(frozen=True, slots=True)
class Tour:
    """What a run has shown of a scene."""

    scene: Scene
    stretches: Mapping[str, Stretch]  # of each late phase
    neighbours: Mapping[str, Stretch]  # what was usual right before and after

    def phases(self, stretch: Stretch) -> Phases:
        """The median over the records of every phase of the scene's tracks."""
        by_record = [phases_of(record) for record in stretch.records]
        columns = [column for column in by_record[0] if column.split(".")[0] in self.scene.tracks]
        return {column: statistics.median(phases[column] for phases in by_record) for column in columns}

    def violations(self, late: str) -> list[str]:
        """Where a delay in that phase did something else than it must."""
        usual, now = self.phases(self.neighbours[late]), self.phases(self.stretches[late])
        bands = expected(self.scene, late, usual, self.stretches[late].reports_per_iteration)
        return [
            f"{column} changed by {now[column] - usual[column]:+.2f} ms, expected {low:.2f} to {high:.2f}"
            for column, (low, high) in bands.items()
            if not low <= now[column] - usual[column] <= high
        ]


def expected(scene: Scene, late: str, usual: Phases, reports_per_iteration: float) -> Bands:
    """What a delay in `late` must do to every phase."""
    track, phase = late.split(".")
    times = _times_per_iteration(scene, late, reports_per_iteration)
    changes = dict.fromkeys(usual, 0.0)
    absorbed = 0.0
    # The report comes after the release: even in turns the collector is at work meanwhile.
    if track in SLACK and (phase == "log" or not scene.in_turns):
        slack = f"{track}.{SLACK[track]}"
        absorbed = min(times * DELAY_MS, _per_iteration(scene, track) * usual[slack])
        changes[slack] -= absorbed / _per_iteration(scene, track)
    for other in scene.tracks:
        if (other, track) in WAITS:
            changes[_where_it_waits(other, late, usual)] += (times * DELAY_MS - absorbed) / _per_iteration(scene, other)
    bands = {column: _around(column, change) for column, change in changes.items()}
    own = times * DELAY_MS / _per_iteration(scene, track)
    bands[late] = FROM * own, TO * own + AND_MS
    return bands


def _where_it_waits(other: str, late: str, columns: Collection[str]) -> str:
    """The phase in which another process waits for what is late."""
    track, phase = late.split(".")
    if late == SNAPSHOT:
        return ASKED_IN
    together = f"{other}.{TOGETHER}"
    return together if phase == TOGETHER and together in columns else f"{other}.{WAITS[other, track]}"


def links(scene: Scene, late: Collection[str]) -> set[str]:
    """The phases in which the other processes wait for those that are late."""
    return {
        _where_it_waits(other, each, ("learner.param_sync", "rank1.param_sync"))
        for each in late
        for other in scene.tracks
        if (other, each.split(".")[0]) in WAITS
    }


def sums_of(scene: Scene, stretch: Stretch) -> dict[str, float]:
    """The milliseconds of every phase of the scene's tracks in all records of a stretch together."""
    sums: dict[str, float] = {}
    reported = 0  # iterations since the last report of the collector: it may come after the record was made
    for record, iterations in zip(stretch.records, stretch.iterations, strict=True):
        has_collector, reported = "perf/collector_cycle_ms" in record, reported + iterations
        for column, ms in phases_of(record).items():
            track = column.split(".")[0]
            if track in scene.tracks:
                times = iterations if track != "collector" else reported * scene.steps
                sums[column] = sums.get(column, 0.0) + ms * times
        reported = 0 if has_collector else reported
    return sums


def _times_per_iteration(scene: Scene, late: str, reports_per_iteration: float) -> float:
    """How often the phase is late per iteration of the learner."""
    if late.endswith(".log"):
        return reports_per_iteration
    is_once = late.startswith(("learner.", "rank1.", "packer.")) or late in ("collector.weight_apply", SNAPSHOT)
    return 1.0 if is_once else scene.steps


def _per_iteration(scene: Scene, track: str) -> float:
    return scene.steps if track == "collector" else 1.0


def _around(column: str, change: float) -> tuple[float, float]:
    """What a phase may change that is expected to change by so much."""
    is_wait = column.split(".")[1] in {*WAITS.values(), TOGETHER} or column == ASKED_IN
    slack = (WAITING if is_wait else ELSEWHERE) * DELAY_MS
    return min(FROM * change, TO * change) - slack, max(FROM * change, TO * change) + slack


def make_tour(directory: Path, scene: Scene) -> Tour:
    """Runs the scene with each of its phases being late in turn."""
    plan: list[tuple[Mapping[str, float], int]] = [({}, scene.usual)]
    for phase in scene.late:
        plan += [({phase: DELAY_MS}, LATE), ({}, scene.usual)]
    stretches = run_plan(directory, scene.overrides, plan, scene.transitions)
    return Tour(
        scene,
        {phase: stretches[2 * index + 1] for index, phase in enumerate(scene.late)},
        {phase: stretches[2 * index].joined(stretches[2 * index + 2]) for index, phase in enumerate(scene.late)},
    )
