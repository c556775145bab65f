"""A collector that stands still: the learner's time meanwhile is kept, whatever becomes of the run."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.processes.conftest import ENDLESS, StartRun

pytestmark = pytest.mark.mp
STALL_S = 3.0


@pytest.mark.promise("account-true", "account-closes")
def test_a_collector_that_stalls_is_waited_for_and_its_time_is_kept(start_run: StartRun) -> None:
    """Frozen for 3 s, then killed: the summary has the 3 s."""
    run = start_run(*ENDLESS, "runner.max_restarts=0")
    run.wait_for_updates()
    begin_s = time.monotonic()
    usual_s = waited_s(run.records())
    os.kill(run.pid_of("collector"), signal.SIGSTOP)
    time.sleep(STALL_S)
    os.kill(run.pid_of("collector"), signal.SIGKILL)
    assert run.finish()[0] != 0
    longest_s = time.monotonic() - begin_s  # until the supervisor has reaped the collector
    phases_s = run.summary()["timing"]["learner"]["phases_s"]
    assert STALL_S - 0.3 <= phases_s["collector_wait"] - usual_s <= longest_s + 1.0
    assert sum(phases_s.values()) - phases_s["warmup"] - phases_s["collector_wait"] < STALL_S


def waited_s(records: list[dict[str, Any]]) -> float:
    """What the learner has waited for the collector by the last record."""
    ends = [0.0, *(record.get("train/n_updates", 0.0) for record in records)]
    waits = [record.get("timing/learner_collector_wait_ms", 0.0) for record in records]
    return sum(ms * (after - before) for ms, before, after in zip(waits, ends, ends[1:], strict=False)) / 1000.0
