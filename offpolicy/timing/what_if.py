"""Predictions of throughput: what a change would bring before it is made, and what a run lost to its prediction.

A collector spends `a` active seconds on an env step, the learner `u`; then I = C / a with C collectors, T = 1 / u, and
the collection mode says what they do together (`predict_steps_per_sec`). A change multiplies the cost of some phases.
It is assumed to leave the others as they are: true for an environment or an update that gets faster or slower, an
upper bound where the cores are shared and full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from offpolicy.timing.phases import LEARNER_PERIODIC, LEARNER_WAITS, CollectorPhase, LearnerPhase
from offpolicy.timing.throughput import collector_pauses, predict_steps_per_sec

# Phases that take time per update; the others take the same time however many updates an iteration holds.
PER_UPDATE = (LearnerPhase.TRAIN, LearnerPhase.REPLAY_SAMPLE, LearnerPhase.H2D, LearnerPhase.PARAM_SYNC)
FASTER = 0.8  # factor of a phase that is 20 % faster
ONE_MORE_COLLECTOR = "one more collector and core"
HALVED_UTD, TWICE_THE_BATCH, HALVED_EPOCHS = (
    "algo.utd halved",
    "algo.batch_size twice, at worst",
    "algo.epochs halved, at best",
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Two sides of a run: active seconds per env step by phase, the collectors that share the steps, the mode."""

    collector_s: Mapping[str, float]  # of one collector, per env step that it makes
    learner_s: Mapping[str, float]
    num_collectors: int
    mode: str

    @property
    def collector_capacity(self) -> float:
        """I, env steps per second."""
        return self.num_collectors / sum(self.collector_s.values())

    @property
    def learner_capacity(self) -> float:
        """T, env steps per second."""
        return 1.0 / sum(self.learner_s.values())

    @property
    def steps_per_sec(self) -> float:
        """Env steps per second of both sides together."""
        together = predict_steps_per_sec(self.collector_capacity, self.learner_capacity, self.mode)
        assert together is not None  # both capacities are positive
        return together

    def scaled(self, factors: Mapping[str, float]) -> Pipeline:
        """Returns the pipeline with the cost of some phases multiplied; a phase of both sides (`other`), on both."""
        collector = {phase: cost * factors.get(phase, 1.0) for phase, cost in self.collector_s.items()}
        learner = {phase: cost * factors.get(phase, 1.0) for phase, cost in self.learner_s.items()}
        return replace(self, collector_s=collector, learner_s=learner)


class Capacities(NamedTuple):
    """I and T, env steps per second."""

    collector: float
    learner: float


def pipeline_of(
    collector: Mapping[str, float], learner: Mapping[str, float], measured: Capacities, num_collectors: int, mode: str
) -> Pipeline:
    """Returns the pipeline of the time of all phases on either side, in any unit, and the measured capacities.

    Raises ValueError where a side has no active time.
    """
    idle = (*LEARNER_WAITS, *LEARNER_PERIODIC)
    acting = {name: time for name, time in collector.items() if name not in collector_pauses(mode)}
    learning = {name: time for name, time in learner.items() if name not in idle}
    return Pipeline(
        _split(acting, num_collectors / measured.collector),
        _split(learning, 1.0 / measured.learner),
        num_collectors,
        mode,
    )


def _split(times: Mapping[str, float], seconds: float) -> dict[str, float]:
    total = sum(times.values())
    if total <= 0:
        raise ValueError("a side without active time costs nothing per env step")
    return {name: seconds * time / total for name, time in times.items()}


class WhatIf(NamedTuple):
    """A change and the pipeline predicted after it."""

    change: str
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts of a run's configuration that decide which changes are possible."""

    has_replay: bool
    updates_per_iteration: float  # below 1 an iteration holds one update, and there are fewer iterations
    epochs: int
    may_add_collector: bool


def what_ifs(now: Pipeline, setting: Setting) -> Iterator[WhatIf]:
    """Yields the changes to consider. Without a replay there are no batches, and no ratio of updates."""
    for phase in (CollectorPhase.ENV_STEP, CollectorPhase.ACTION_SELECT, LearnerPhase.TRAIN):
        yield WhatIf(f"{phase} 20 % faster", now.scaled({phase: FASTER}))
    if setting.may_add_collector:
        yield WhatIf(ONE_MORE_COLLECTOR, replace(now, num_collectors=now.num_collectors + 1))
    if setting.has_replay:
        if setting.updates_per_iteration > 1.0:
            halved = now.scaled(dict.fromkeys(PER_UPDATE, 0.5))
        else:  # half the iterations, each with its publication and the work that follows
            fewer = now.scaled({CollectorPhase.WEIGHT_APPLY: 0.5})
            halved = replace(fewer, learner_s={phase: 0.5 * cost for phase, cost in now.learner_s.items()})
        yield WhatIf(HALVED_UTD, halved)
        yield WhatIf(TWICE_THE_BATCH, now.scaled(dict.fromkeys(PER_UPDATE, 2.0)))
    elif setting.epochs % 2 == 0:
        yield WhatIf(HALVED_EPOCHS, now.scaled({LearnerPhase.TRAIN: 0.5}))
    for mode in ("alternate", "overlap"):
        if mode != now.mode and not (now.mode == "free" and mode == "overlap"):
            yield WhatIf(f"collect.mode={mode}", replace(now, mode=mode))


def flip_delay_s(now: Pipeline) -> float:
    """Returns by how many more seconds per env step of a collector the verdict turns: N (1/T - 1/I).

    Negative if it has turned. Up to there a slower environment costs nothing where both sides overlap; a faster one
    brings nothing from there on.
    """
    return now.num_collectors * (1.0 / now.learner_capacity - 1.0 / now.collector_capacity)


# The learner's waits, but for that for collectors: they add up in turns, and where the learner is the slower side.
OTHER_WAITS = (LearnerPhase.REPLAY_BATCH_WAIT, LearnerPhase.RANK_BARRIER, LearnerPhase.SYNC_COORDINATION)


class Loss(NamedTuple):
    """A cause, and the env steps per second that are left after it."""

    cause: str
    steps_per_sec: float


def waterfall(
    collector: float, learner: float, mode: str, steps_per_sec: float, learner_ns: Mapping[str, int]
) -> list[Loss]:
    """From min(I, T) down to `steps_per_sec`: the env steps per second lost by each cause.

        1 / thru = 1 / predicted + pauses + waits that overlapping does not hide + the rest

    All terms are seconds per env step on the learner's clock. The last one is the difference, so the account closes; it
    is small where the model of the collection mode is right. `collector` and `learner` are I and T in env steps per
    second, `learner_ns` the phases of the learner over the time in which `steps_per_sec` was reached. Causes that cost
    nothing are left out. Raises ValueError without a wall.
    """
    wall_ns = sum(learner_ns.values())
    if wall_ns <= 0:
        raise ValueError("a waterfall needs the learner's wall")
    together = predict_steps_per_sec(collector, learner, mode)
    if not together:
        raise ValueError("a waterfall needs I and T")
    losses = [Loss("min(I, T)", min(collector, learner))]
    if mode == "alternate":
        losses.append(Loss("taking turns", together))
    waits = OTHER_WAITS if mode == "alternate" or learner <= collector else ()
    left = together
    for phase in (*waits, *LEARNER_PERIODIC):
        cost_s = learner_ns.get(phase, 0) / wall_ns / steps_per_sec
        if cost_s > 0:
            left = 1.0 / (1.0 / left + cost_s)
            losses.append(Loss(phase, left))
    return [*losses, Loss("the rest", steps_per_sec)]
