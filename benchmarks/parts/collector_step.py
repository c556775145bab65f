"""One step of the collector on HalfCheetah-v5, phase by phase, acting with weights published before every step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement
from offpolicy.collect.collector import CollectorParts, Progress, ReportDesk, step
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.writers import ReplayWriter
from offpolicy.data.ring import Ring
from offpolicy.envs.vector import make_vector
from offpolicy.ipc.control import PAGE_BYTES, ControlPage
from offpolicy.ipc.gate import CollectorGate
from offpolicy.ipc.mailbox import Mailbox
from offpolicy.ipc.shared import Doorbell, SharedBlock
from offpolicy.nets.policy import flat_size, flatten_into, make_policy
from offpolicy.timing.ledger import TimeAccount, make_ledger
from offpolicy.timing.phases import CollectorPhase
from runners import wiring

STEPS = 400
CAPACITY = 10_000


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds of the median step with and without the ledger, and of each phase."""
    torch.set_num_threads(1)
    steps_us: dict[bool, list[float]] = {True: [], False: []}
    phases_us: dict[str, list[float]] = {}
    with _collector() as collector:
        for _ in range(5 * rounds):
            for is_timed in (True, False):
                ledger = make_ledger(CollectorPhase, is_enabled=is_timed)
                steps_us[is_timed].append(collector.median_us(ledger))
                account = ledger.account()
                for name, ns in account.phases_ns.items() if account else ():
                    phases_us.setdefault(name, []).append(ns / STEPS / 1000)
    yield Measurement("collector", "step", "us", steps_us[True])
    yield Measurement("collector", "step, timing.enabled=false", "us", steps_us[False])
    for name in ("weight_apply", "action_select", "env_step", "replay_write"):
        yield Measurement("collector", f"  {name}", "us", phases_us[name])


class _Collector:
    """A collector's parts in one process, with somebody who publishes weights."""

    def __init__(self, parts: CollectorParts, mailbox: Mailbox, flat: np.ndarray) -> None:
        self._parts, self._mailbox, self._flat = parts, mailbox, flat

    def median_us(self, ledger: TimeAccount) -> float:
        """The median of `STEPS` steps."""
        parts = dataclasses.replace(self._parts, ledger=ledger)
        steps_ns = []
        for _ in range(STEPS):
            self._mailbox.publish(self._flat)
            start_ns = time.perf_counter_ns()
            step(parts)
            steps_ns.append(time.perf_counter_ns() - start_ns)
        return median(steps_ns) / 1000


@contextmanager
def _collector() -> Iterator[_Collector]:
    cfg, layout = halfcheetah.config("sac"), halfcheetah.LAYOUT
    policy = make_policy(cfg.algo, halfcheetah.SPEC)
    flat = np.zeros(flat_size(policy), dtype=np.float32)
    flatten_into(policy, flat)
    mailbox = Mailbox(_buffer(Mailbox.nbytes(flat.nbytes)), flat.nbytes)
    control, tracker = ControlPage(_buffer(PAGE_BYTES)), EpisodeTracker(1)
    episodes = Ring(_buffer(Ring.nbytes(CAPACITY, EPISODE_COLUMNS, 8)), EPISODE_COLUMNS, np.float64)
    reports = wiring.collector_reports(_buffer(PAGE_BYTES))
    replay = Ring(_buffer(Ring.nbytes(CAPACITY, layout.width, 4)), layout.width, np.float32)
    env = make_vector(cfg.env)
    try:
        parts = CollectorParts(
            env=env,
            policy=CollectorPolicy(policy, mailbox, action_dim=halfcheetah.SPEC.action_dim, warmup_steps=0, seed=1),
            writer=ReplayWriter(replay, layout, gamma=0.99, n_step=1, num_envs=1),
            gate=CollectorGate(control, Doorbell.create(), Doorbell.create()),
            desk=ReportDesk(control, reports, episodes, tracker),
            progress=Progress(obs=env.reset(1)),
            ledger=make_ledger(CollectorPhase, is_enabled=False),
            take_snapshot=lambda: None,
        )
        yield _Collector(parts, mailbox, flat)
    finally:
        env.close()


def _buffer(nbytes: int) -> memoryview:
    return SharedBlock.create("bench", nbytes).buffer
