"""The throughput of both sides of a run together, what a change would bring, and what was lost to the prediction.

A collector spends `a` active seconds on an env step, the learner `u`; then I = C / a with C collectors, T = 1 / u, and
the collection mode says what they do together (`seconds_per_step`). Where each side waits for the other at every step,
the mean of the later one is longer than the longer mean. So a cost is a distribution: its mean, and how the longest
phase of the side varies.

A change multiplies the cost of some phases and leaves the others as they are, but for what shares their cores
(`Cores`), a packing thread beside the learner, which stays, and ranks that wait for each other, which follow it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from offpolicy.model.windows import NS_PER_S, CollectorWindow, Elapsed
from offpolicy.timing.histogram import BIN_MIDDLES_NS
from offpolicy.timing.phases import (
    COLLECTOR_PAUSES,
    FOR_COLLECTORS,
    LEARNER_PERIODIC,
    LEARNER_WAITS,
    CollectorPhase,
    LearnerPhase,
)
from offpolicy.types import Float64

NUM_SLICES = 20
Cost = Float64  # [NUM_SLICES] seconds per env step, ascending, all as likely; of the whole run
STEADY: Cost = np.ones(NUM_SLICES)
LEARNER_PAUSES = (*LEARNER_WAITS, *LEARNER_PERIODIC)  # phases without work on updates


def spread_of(window: Elapsed, pauses: Sequence[str], num_summed: float) -> Cost:
    """Returns how the cost of an env step varied for a side: slices with a mean of 1.

    They vary as the longest phase of its iterations but `pauses`; a cost is the mean of `num_summed` iterations.
    """
    active_ns = {name: ns for name, ns in window.phases_ns.items() if name not in pauses}
    whole_ns = sum(active_ns.values()) / max(1, window.iterations)
    if window.histogram is None or whole_ns <= 0.0:
        return STEADY
    longest = max(active_ns, key=lambda name: active_ns[name])
    counts = window.histogram[list(window.phases_ns).index(longest)]
    up_to = np.concatenate(([0.0], np.cumsum(counts)))
    total_ns = np.concatenate(([0.0], np.cumsum(counts * BIN_MIDDLES_NS)))
    edges = np.interp(np.linspace(0.0, up_to[-1], NUM_SLICES + 1), up_to, total_ns)
    slices_ns = np.diff(edges) / max(up_to[-1], 1.0) * NUM_SLICES  # of the mean of each twentieth, shortest first
    deviations = (slices_ns - slices_ns.mean()) / whole_ns / math.sqrt(max(1.0, num_summed))
    varied = np.maximum(1.0 + deviations, 0.0)
    return np.asarray(varied / varied.mean())


def later(costs: Sequence[Cost]) -> Cost:
    """Returns the distribution of the greatest of independent costs."""
    latest = costs[0]
    for other in costs[1:]:
        both = np.sort(np.maximum.outer(latest, other), axis=None)
        latest = np.asarray(both.reshape(NUM_SLICES, NUM_SLICES).mean(axis=1))
    return latest


def seconds_per_step(mode: str, learner: Cost, collectors: Sequence[Cost], num_groups: int = 1) -> float:
    """Returns the seconds per env step of all of them together. Raises KeyError on an unknown mode.

    Turns add up. Overlapping sides wait for the later one at every step. In `free` no side waits at every step: the
    greater mean counts, and collectors share the steps. Where ranks learn from collectors of their own, those of one
    rank are a group, and the slowest group counts. Collector i is one of group `i % num_groups`.
    """
    slowest = later(collectors)
    groups = [collectors[number::num_groups] for number in range(num_groups)]
    shared_s = max(len(collectors) / num_groups / sum(1.0 / each.mean() for each in group) for group in groups)
    seconds = {
        "alternate": learner.mean() + slowest.mean(),
        "overlap": later((learner, slowest)).mean(),
        "free": max(learner.mean(), shared_s),
    }[mode]
    return float(seconds)


def collector_pauses(mode: str) -> tuple[CollectorPhase, ...]:
    """The collector's phases without work on env steps: its wait for the learner, and snapshots for checkpoints.

    In turns also its handshake: the learner that it wakes is at work, and may take its core, before it returns.
    """
    return (*COLLECTOR_PAUSES, CollectorPhase.HANDSHAKE) if mode == "alternate" else COLLECTOR_PAUSES


def collector_active_ns(phases_ns: Mapping[str, int], mode: str) -> int:
    """The collector's work on env steps."""
    pauses = collector_pauses(mode)
    return sum(ns for name, ns in phases_ns.items() if name not in pauses)


def learner_side_ns(ranks: Sequence[Elapsed | None]) -> float:
    """The time that the learners need for their updates, with their waits for each other and for packed batches.

    That is the wall of rank 0 without evaluation and checkpoints, and without waiting for collectors: if one of the
    ranks waits for its collectors, the others wait for it.
    """
    timed = [window for window in ranks if window is not None and window.wall_ns > 0]
    if not timed:
        return 0.0
    first = timed[0]
    periodic_ns = sum(first.phases_ns.get(phase, 0) for phase in LEARNER_PERIODIC)
    waits = [sum(window.phases_ns.get(phase, 0) for phase in FOR_COLLECTORS) / window.wall_ns for window in timed]
    return first.wall_ns * (1.0 - max(waits)) - periodic_ns


def predicted_steps_per_sec(
    mode: str,
    learner: Elapsed | None,
    collectors: Sequence[CollectorWindow],
    absorbed: float | None,
    num_groups: int = 1,
) -> float | None:
    """Env steps per second of both sides together, each as it was in the window; groups as in `seconds_per_step`."""
    if learner is None or not absorbed:
        return None
    costs = []
    for window in collectors:
        done = window.elapsed
        active_ns = collector_active_ns(done.phases_ns, mode) if done is not None else 0
        if done is not None and active_ns > 0 and window.steady_steps > 0:
            mean_s = active_ns / NS_PER_S / window.steady_steps / len(collectors)
            num_summed = done.iterations / max(1, learner.iterations)
            costs.append(mean_s * spread_of(done, collector_pauses(mode), num_summed))
    timed = [window.elapsed for window in collectors if window.elapsed is not None]
    if not costs:
        return None
    side = spread_of(learner, LEARNER_PAUSES, learner.iterations / max(1, timed[0].iterations)) / absorbed
    # Only where all collectors are known: a late report would leave a group without one.
    is_grouped = len(costs) == len(collectors) and len(collectors) % num_groups == 0
    return 1.0 / seconds_per_step(mode, side, costs, num_groups if is_grouped else 1)


def bound_steps_per_sec(collector: float, learner: float, mode: str) -> float:
    """Env steps per second of two sides with I and T: turns add up, overlapped work is bound by the slower one."""
    return 1.0 / (1.0 / collector + 1.0 / learner) if mode == "alternate" else min(collector, learner)


# Phases that take time per update; the others take the same time however many updates an iteration holds.
PER_UPDATE = (LearnerPhase.TRAIN, LearnerPhase.REPLAY_SAMPLE, LearnerPhase.H2D, LearnerPhase.PARAM_SYNC)
FASTER = 0.8  # factor of a phase that is 20 % faster
NEARLY_NONE = 0.1  # greatest fraction of the collectors without a core of their own at which one more is considered
NOTICEABLE = 0.02  # least wait for packed batches, as a fraction of the learner's work, at which packing bounds it
ONE_MORE_COLLECTOR, HALVED_UTD = "one more collector", "algo.utd halved"
ONE_MORE_HOST, TWICE_THE_HOSTS = "one more remote host", "collect.remote_hosts twice"
TWICE_THE_BATCH, HALVED_EPOCHS = "algo.batch_size twice, at worst", "algo.epochs halved, at best"


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores that learner and collectors of a host share, and what the learner makes of its threads.

    A collector beside a learner with as many threads as cores delays one thread and with it each product.
    """

    count: float  # those that other programs leave
    threads: int  # of each learner rank, now
    num_ranks: int = 1  # of this host
    # Seconds per env step more than now, by the number of threads.
    extra_s: Mapping[int, float] = field(default_factory=dict)
    num_hosts: int = 1  # with as many cores, ranks and collectors each

    def crowding(self, threads: int, num_collectors: int) -> float:
        """Returns the fraction of the collectors that take a core from the learner, while both are at work."""
        here = num_collectors / self.num_hosts
        return min(max((self.num_ranks * threads + here - self.count) / here, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Two sides of a run: active seconds per env step by phase, the collectors that share the steps, the mode."""

    collector_s: Mapping[str, float]  # of one collector, per env step that it makes
    learner_s: Mapping[str, float]  # without its waits
    num_collectors: int
    mode: str
    barrier_factor: float = 1.0  # of the learner's work, with the waits of ranks for each other to it without them
    packer_s: float = 0.0  # per env step, where packing takes longer than the learner; else 0
    measured_mode: str = ""  # that in which the costs were measured; '': `mode`
    cores: Cores | None = None  # None: enough for all
    threads: tuple[int, ...] = ()  # numbers to choose from; (): the present one
    # Factors of the cost of an env step in modes other than the measured one, where they have other threads for it.
    env_step_factors: Mapping[str, float] = field(default_factory=dict)
    # How the costs of a side vary: slices with a mean of 1.
    collector_spread: Cost = field(default_factory=lambda: STEADY)
    learner_spread: Cost = field(default_factory=lambda: STEADY)

    @property
    def collector_capacity(self) -> float:
        """I, env steps per second."""
        is_other = self.mode != (self.measured_mode or self.mode)
        factor = self.env_step_factors.get(self.mode, 1.0) if is_other else 1.0
        more_s = (factor - 1.0) * self.collector_s.get(CollectorPhase.ENV_STEP, 0.0)
        return self.num_collectors / (sum(self.collector_s.values()) + more_s)

    @property
    def learner_capacity(self) -> float:
        """T, env steps per second, with the present number of threads."""
        return 1.0 / self._learner_s(self.cores.threads if self.cores is not None else 0)

    @property
    def own_learner_capacity(self) -> float:
        """T of one rank without its waits for packed batches and for the other ranks."""
        return 1.0 / sum(self.learner_s.values())

    @property
    def steps_per_sec(self) -> float:
        """Env steps per second of both sides together, with the best of the numbers of threads."""
        numbers = self.threads or (self.cores.threads if self.cores is not None else 0,)
        return max(1.0 / self._seconds_per_step(number) for number in numbers)

    def _learner_s(self, threads: int) -> float:
        """Returns the learner's seconds per env step with so many threads."""
        extra_s = self.cores.extra_s.get(threads, 0.0) if self.cores is not None else 0.0
        return max(self.barrier_factor * sum(self.learner_s.values()) + extra_s, self.packer_s)

    def _seconds_per_step(self, threads: int) -> float:
        learner, collector = self._learner_s(threads), 1.0 / self.collector_capacity
        collision = 0.0
        if self.cores is not None and self.mode != "alternate" and self.measured_mode == "alternate":
            collision = self.cores.crowding(threads, self.num_collectors) * min(learner, collector)
        collectors = [collector * self.collector_spread] * self.num_collectors
        return collision + seconds_per_step(self.mode, learner * self.learner_spread, collectors)

    def scaled(self, factors: Mapping[str, float]) -> Pipeline:
        """Returns the pipeline with the cost of some phases multiplied; a phase of both sides (`other`), on both."""
        collector = {phase: cost * factors.get(phase, 1.0) for phase, cost in self.collector_s.items()}
        learner = {phase: cost * factors.get(phase, 1.0) for phase, cost in self.learner_s.items()}
        return replace(self, collector_s=collector, learner_s=learner)

    def to_mapping(self) -> dict[str, Any]:  # Any: plain JSON values
        """Returns it as plain data, for `from_mapping`."""
        spreads = {"collector_spread": self.collector_spread.tolist(), "learner_spread": self.learner_spread.tolist()}
        return {**asdict(self), **spreads, "threads": list(self.threads)}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Pipeline:  # Any: as above
        """Returns what `to_mapping` described, also after it was JSON. Raises KeyError and TypeError for other data."""
        cores = mapping["cores"]
        if cores is not None:
            cores = Cores(**{**cores, "extra_s": {int(number): each_s for number, each_s in cores["extra_s"].items()}})
        spreads = {name: np.array(mapping[name]) for name in ("collector_spread", "learner_spread")}
        return cls(**{**mapping, **spreads, "threads": tuple(mapping["threads"]), "cores": cores})


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
    waits = (*FOR_COLLECTORS, LearnerPhase.RANK_BARRIER, LearnerPhase.REPLAY_BATCH_WAIT)
    acting = {name: time for name, time in collector.items() if name not in collector_pauses(mode)}
    learning = {name: time for name, time in learner.items() if name not in (*waits, *LEARNER_PERIODIC)}
    active, own, barrier = sum(acting.values()), sum(learning.values()), learner.get(LearnerPhase.RANK_BARRIER, 0.0)
    packed = learner.get(LearnerPhase.REPLAY_BATCH_WAIT, 0.0)
    if own <= 0 or active <= 0:
        raise ValueError("a side without active time costs nothing per env step")
    side_s = 1.0 / measured.learner
    active_s, own_s = num_collectors / measured.collector, side_s * own / (own + barrier + packed)
    return Pipeline(
        {name: active_s * time / active for name, time in acting.items()},
        {name: own_s * time / own for name, time in learning.items()},
        num_collectors,
        mode,
        barrier_factor=(own + barrier) / own,
        packer_s=side_s if packed > NOTICEABLE * own else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The parts of a run's configuration that decide which changes are possible."""

    has_replay: bool
    updates: float  # per vector step of all collectors
    most_updates: int  # of an iteration
    epochs: int
    may_add_collector: bool
    per_host: int = 0  # collectors of each remote host; 0: there are none


def what_ifs(now: Pipeline, options: Options) -> Iterator[tuple[str, Pipeline]]:
    """Yields changes, and the pipeline predicted after each."""
    for phase in (CollectorPhase.ENV_STEP, CollectorPhase.ACTION_SELECT, LearnerPhase.TRAIN):
        yield f"{phase} 20 % faster", now.scaled({phase: FASTER})
    has_core = now.cores is None or now.cores.crowding(now.cores.threads, now.num_collectors + 1) <= NEARLY_NONE
    if options.per_host:
        yield ONE_MORE_HOST, replace(now, num_collectors=now.num_collectors + options.per_host)
        yield TWICE_THE_HOSTS, replace(now, num_collectors=2 * now.num_collectors)
    elif options.may_add_collector and has_core:
        yield ONE_MORE_COLLECTOR, replace(now, num_collectors=now.num_collectors + 1)
    if options.has_replay:
        yield HALVED_UTD, _with_half_the_updates(now, options)
        twice = now.scaled(dict.fromkeys(PER_UPDATE, 2.0))
        yield TWICE_THE_BATCH, replace(twice, packer_s=2.0 * now.packer_s)
    elif options.epochs % 2 == 0:
        yield HALVED_EPOCHS, now.scaled({LearnerPhase.TRAIN: 0.5})
    for mode in ("alternate", "overlap"):
        if mode != now.mode and not (now.mode == "free" and mode == "overlap"):
            yield f"collect.mode={mode}", replace(now, mode=mode, measured_mode=now.mode)


def _with_half_the_updates(now: Pipeline, options: Options) -> Pipeline:
    """Returns the pipeline with half the updates per env step: fewer in each iteration, or fewer iterations."""
    before, after = (
        updates if updates < 1.0 else math.ceil(updates / options.most_updates)  # several vector steps share one
        for updates in (options.updates, options.updates / 2)
    )
    fewer = now.scaled({CollectorPhase.WEIGHT_APPLY: min(after, 1.0) / min(before, 1.0)})
    learner = {phase: cost * (0.5 if phase in PER_UPDATE else after / before) for phase, cost in now.learner_s.items()}
    return replace(fewer, learner_s=learner, packer_s=0.5 * now.packer_s)


def flip_delay_s(now: Pipeline) -> float:
    """Returns by how many more seconds per env step of a collector the verdict turns: N (1/T - 1/I), negative after it.

    Up to there a slower environment costs nothing where both sides overlap.
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

    All terms are seconds per env step on the learner's clock; the last one is the difference, so the account closes.
    `collector` and `learner` are I, and T of one rank without its waits, `learner_ns` the phases of the learner over
    the time in which `steps_per_sec` was reached. Causes that cost nothing are left out. Raises ValueError without a
    wall.
    """
    wall_ns = sum(learner_ns.values())
    if wall_ns <= 0:
        raise ValueError("a waterfall needs the learner's wall")
    together = bound_steps_per_sec(collector, learner, mode)
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
