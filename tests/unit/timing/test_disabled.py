"""`timing.enabled=false`: the loops read no clock, record no event, and leave nothing behind."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offpolicy.timing
from offpolicy.collect.collector import CollectorParts, Progress, collect
from offpolicy.loop import Parts, train
from offpolicy.processes.handshake import Turn
from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.device_timer import StreamSync, make_device_timer
from offpolicy.timing.ledger import make_ledger
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.time_account import NullLedger

ITERATIONS = 100
ON_CPU = make_device_timer(StreamSync(torch.device("cpu")), NullLedger(), is_enabled=True)
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time_ns")


class Idle:
    """Every part of both loops: does nothing, `iterations` times."""

    is_stopping = False
    num_finished = env_steps = version = action = 0

    def __init__(self, iterations: int = ITERATIONS) -> None:
        self._left = iterations

    def is_exhausted(self) -> bool:
        self._left -= 1
        return self._left < 0

    def turn(self, *_: Any) -> Turn:
        return Turn.STOP if self.is_exhausted() else Turn.STEP

    def agree(self, *, is_stopping: bool) -> bool:
        return is_stopping

    def nothing(self, *_: Any, **__: Any) -> int:
        return 0

    wait_ready = wait_batch = sample = to_device = update = publish = release = run_if_due = run_last = is_due = nothing
    is_random = refresh = write = handed_over = wants_fresh_policy = is_wanted = record = newest_version = announce = (
        nothing
    )

    def itself(self, *_: Any) -> Any:
        return self

    act = step = itself

    next_obs = np.zeros((1, 3), np.float32)


def learn(idle: Idle) -> None:
    ledger = make_ledger(LearnerPhase, is_enabled=False)
    train(Parts(idle, idle, ON_CPU, *[idle] * 7, ledger))


def collect_steps(idle: Idle) -> None:
    ledger: Any = make_ledger(CollectorPhase, is_enabled=False)
    parts: Any = (idle, idle, idle, idle, idle, Progress(obs=idle.next_obs), ledger, lambda: None, lambda *_: False)
    collect(CollectorParts(*parts))


LOOPS = pytest.mark.parametrize("loop", [learn, collect_steps])


@LOOPS
def test_no_clock_is_read_and_no_event_recorded(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("timing is off")

    for clock in CLOCKS:
        monkeypatch.setattr(time, clock, refuse)
    monkeypatch.setattr(MonotonicClock, "now_ns", staticmethod(refuse))
    monkeypatch.setattr(torch.cuda, "Event", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    loop(Idle())
    with pytest.raises(AssertionError, match="timing is off"):
        make_ledger(LearnerPhase, is_enabled=True)


def allocated(loop: Any) -> int:
    """Blocks that a loop has made in the package of the ledger and that are still there."""
    idle = Idle()
    gc.collect()
    tracemalloc.start()
    loop(idle)
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    ours = snapshot.filter_traces([tracemalloc.Filter(True, f"{Path(offpolicy.timing.__file__).parent}/*")])
    return sum(statistic.count for statistic in ours.statistics("filename"))


@LOOPS
def test_nothing_is_allocated(loop: Any) -> None:
    loop(Idle())
    assert allocated(loop) == 0


def test_a_ledger_that_is_on_does_allocate() -> None:
    """Negative control."""

    def enabled(_: Idle) -> None:
        kept.append(make_ledger(LearnerPhase, is_enabled=True))

    kept: list[Any] = []
    assert allocated(enabled) > 0
