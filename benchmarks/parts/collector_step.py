"""One step of the collector on HalfCheetah-v5, phase by phase, acting with weights published before every step.

With one environment, and with 64 of them in one batch of MuJoCo, whose env steps/s are given too. With one, a step is
also timed after an update of SAC on all cores, which a run in `alternate` mode makes between two steps.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import median

import numpy as np
import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement
from offpolicy.algos.registry import make_policy
from offpolicy.collect.collector import CollectorParts, CollectorReporter, Progress, step
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.policy import CollectorPolicy, Exploration
from offpolicy.collect.replay_writer import BadRowError, ReplayWriter
from offpolicy.envs.vector import make_vector
from offpolicy.machine import num_usable_cores
from offpolicy.nets.policy import flat_size, flatten_into
from offpolicy.processes.control_page import ControlPage
from offpolicy.processes.handshake import CollectorGate
from offpolicy.processes.mailbox import Mailbox
from offpolicy.processes.reports import CollectorReports
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import Ring
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.run_memory import COLLECTOR_PHASES
from offpolicy.types import Float32, StepOutcome

STEPS = 400
UPDATED_STEPS = 40  # after an update each
CAPACITY = 10_000
MANY = 64  # environments
MANY_STEPS = 100
PHASES = (
    CollectorPhase.WEIGHT_APPLY,
    CollectorPhase.ACTION_SELECT,
    CollectorPhase.ENV_STEP,
    CollectorPhase.REPLAY_WRITE,
)


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds of the median step with and without the ledger, and of each phase's median."""
    torch.set_num_threads(1)
    yield from _measure_one(rounds)
    yield from _measure_many(rounds)


def _measure_one(rounds: int) -> Iterator[Measurement]:
    steps_us: dict[str, list[float]] = {"step": [], "step, timing.enabled=false": []}
    phases_us: dict[str, list[float]] = {f"  {phase}": [] for phase in PHASES}
    after_us: dict[str, list[float]] = {f"{name} after an update": [] for name in ("step", *phases_us)}
    update = _learner_update()
    with _collector() as collector:
        collector.step_us(NullLedger(CollectorPhase), STEPS)  # warms up
        for _ in range(5 * rounds):
            ledgers: tuple[Ledger, ...] = (Ledger(CollectorPhase), NullLedger(CollectorPhase))
            for name, ledger in zip(steps_us, ledgers, strict=True):
                steps_us[name].append(collector.step_us(ledger, STEPS))
            for name, phase_us in zip(phases_us, collector.phases_us(STEPS), strict=True):
                phases_us[name].append(phase_us)
            whole_us = collector.step_us(Ledger(CollectorPhase), UPDATED_STEPS, update)
            parts_us = collector.phases_us(UPDATED_STEPS, update)
            for samples, one_us in zip(after_us.values(), (whole_us, *parts_us), strict=True):
                samples.append(one_us)
    for name, samples in (steps_us | phases_us | after_us).items():
        yield Measurement("collector", name, "us", samples)


def _learner_update() -> Callable[[], None]:
    """Returns an update of SAC, which is made for what it leaves in the caches."""
    learner, batches = halfcheetah.learner("sac"), halfcheetah.batches()

    def update() -> None:
        torch.set_num_threads(num_usable_cores())
        learner.update(batches)
        torch.set_num_threads(1)

    return update


def _measure_many(rounds: int) -> Iterator[Measurement]:
    """The same of 64 environments with one and two threads, and env steps/s, policy included."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    phases_us: dict[tuple[int, CollectorPhase], list[float]] = {(n, phase): [] for n in rates for phase in PHASES}
    with ExitStack() as stack:
        collectors = {n: stack.enter_context(_collector(MANY, num_threads=n)) for n in rates}
        for collector in collectors.values():
            collector.step_us(NullLedger(CollectorPhase), MANY_STEPS)  # warms up
        for _ in range(5 * rounds):
            for n, collector in collectors.items():
                rates[n].append(MANY / collector.step_us(NullLedger(CollectorPhase), MANY_STEPS) * 1e6)
                for phase, phase_us in zip(PHASES, collector.phases_us(MANY_STEPS), strict=True):
                    phases_us[n, phase].append(phase_us)
    for n, samples in rates.items():
        case = f"{MANY} environments, threads {n}"
        yield Measurement("collector", case, "env steps/s", samples)
        for phase in PHASES:
            yield Measurement("collector", f"{case}: {phase}", "us", phases_us[n, phase])


class _Collector:
    """A collector's parts in one process, with somebody who publishes weights."""

    def __init__(self, parts: CollectorParts, mailbox: Mailbox, flat: Float32) -> None:
        self._parts, self._mailbox, self._flat = parts, mailbox, flat

    def step_us(self, ledger: Ledger, steps: int, before: Callable[[], object] = lambda: None) -> float:
        """The median step. `before` is called before each, and then weights are published."""
        parts, times_ns = dataclasses.replace(self._parts, ledger=ledger), list[int]()
        for _ in range(steps):
            before()
            times_ns.append(self._step_ns(parts))
        return median(times_ns) / 1000

    def phases_us(self, steps: int, before: Callable[[], object] = lambda: None) -> list[float]:
        """The median of each of `PHASES`. Asking for an account slows the step after it, so steps are timed apart.

        `before` is as in `step_us`.
        """
        ledger = Ledger(CollectorPhase)
        parts = dataclasses.replace(self._parts, ledger=ledger)
        accounts = [ledger.account()]
        for _ in range(steps):
            before()
            self._step_ns(parts)
            accounts.append(ledger.account())
        return [
            median(after.phases_ns[phase] - before.phases_ns[phase] for before, after in pairwise(accounts)) / 1000
            for phase in PHASES
        ]

    def _step_ns(self, parts: CollectorParts) -> int:
        self._mailbox.publish(self._flat)
        start_ns = time.perf_counter_ns()
        step(parts)
        return time.perf_counter_ns() - start_ns


@contextmanager
def _collector(num_envs: int = 1, *, num_threads: int = 1) -> Iterator[_Collector]:
    cfg, layout = halfcheetah.config("sac"), halfcheetah.LAYOUT
    policy = make_policy(cfg.algo, halfcheetah.SPEC)
    flat = np.zeros(flat_size(policy), dtype=np.float32)
    flatten_into(policy, flat)
    mailbox = Mailbox(_buffer(Mailbox.nbytes(flat.nbytes)), flat.nbytes)
    control, tracker = ControlPage(_buffer(ControlPage.nbytes(1, 1)), 1, 1), EpisodeTracker(num_envs)
    episodes = Ring(_buffer(Ring.nbytes(CAPACITY, EPISODE_COLUMNS, 8)), EPISODE_COLUMNS, np.float64)
    reports = CollectorReports(_buffer(CollectorReports.nbytes(COLLECTOR_PHASES)), COLLECTOR_PHASES)
    room = ReplayRing.nbytes_for(CAPACITY, layout, num_envs, 1)
    replay = ReplayRing(_buffer(room), layout, CAPACITY, num_envs=num_envs)
    env = make_vector(cfg.env, num_envs, num_threads=num_threads)
    try:
        parts = CollectorParts(
            env=env,
            policy=CollectorPolicy(
                policy, mailbox, Exploration(warmup_steps=0), spec=halfcheetah.SPEC, seed=1, path=()
            ),
            writer=ReplayWriter(replay, gamma=0.99, n_step=1),
            gate=CollectorGate(control, 0, WakeEvent.create(), [WakeEvent.create()]),
            reporter=CollectorReporter(control, 0, reports, episodes, tracker, start_steps=[0]),
            progress=Progress(obs=env.reset(1)),
            ledger=NullLedger(CollectorPhase),
            take_snapshot=lambda: None,
            skip_bad_rows=_refuse,
        )
        yield _Collector(parts, mailbox, flat)
    finally:
        env.close()


def _refuse(error: BadRowError, outcome: StepOutcome) -> StepOutcome:
    raise error


def _buffer(nbytes: int) -> memoryview:
    return SharedBlock.create("bench", nbytes).buffer
