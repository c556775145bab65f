"""The core ledger of whole runs: it closes beside busy programs, and every row is what the kernel counts elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from offpolicy.timing.phases import CoreClass
from tests.conftest import Traces
from tests.processes.conftest import LiveRun, StartRun

pytestmark = [pytest.mark.mp, pytest.mark.alone, pytest.mark.slow]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WATCHED_S = 10.0
CLOSE = 0.02  # of K x wall
LARGE = ("algo.hidden_dims=[256,256]", "algo.batch_size=256", "threads.learner=2", "log.every_s=1")
ASYNC = ("env.num_envs=2", "env.vectorization=async")


class Reading(NamedTuple):
    """CPU seconds so far, from the kernel's counters that the ledger does not read."""

    when_s: float
    ours_s: float  # of all processes that carry the id of the run
    burners_s: float
    busy_s: float  # the busy columns of /proc/stat


@pytest.fixture
def burners() -> Iterator[list[int]]:
    """Two programs that keep two cores busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def stat_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def read_kernel(traces: Traces, burners: list[int]) -> Reading:
    first, *_ = Path("/proc/stat").read_text().splitlines()
    user, nice, system, _, _, irq, softirq, steal = map(int, first.split()[1:9])
    busy_s = (user + nice + system + irq + softirq + steal) / TICKS_PER_S
    ours_s = sum(map(stat_s, traces.processes()))
    return Reading(time.monotonic(), ours_s, sum(map(stat_s, burners)), busy_s)


def at_next_record(run: LiveRun, traces: Traces, burners: list[int]) -> tuple[dict[str, Any], Reading]:
    """The next record of the run, and what the kernel says just after it was written."""
    seen = len(run.records())
    deadline = time.monotonic() + 30.0
    while len(run.records()) <= seen:
        assert time.monotonic() < deadline, "no record"
        time.sleep(0.01)
    return run.records()[-1], read_kernel(traces, burners)


def rows_s(records: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each class over the windows of these records, but for the first: its window is before."""
    walls_s = [after["wall_s"] - before["wall_s"] for before, after in zip(records, records[1:], strict=False)]
    return {
        row: sum(record[f"cores/{row}_ms_per_s"] / 1000.0 * s for record, s in zip(records[1:], walls_s, strict=True))
        for row in map(str, CoreClass)
    }


def test_beside_busy_programs_the_rows_close_to_two_percent_of_the_cores(
    start_run: StartRun, traces: Traces, burners: list[int]
) -> None:
    run = start_run(*LARGE, *ASYNC, "total_timesteps=100000000", "replay.capacity=100000")
    run.wait_for_updates(90.0)
    first, before = at_next_record(run, traces, burners)
    run.wait_until(lambda: run.records()[-1]["wall_s"] > first["wall_s"] + WATCHED_S, WATCHED_S + 60.0)
    last, after = at_next_record(run, traces, burners)
    records = [record for record in run.records() if first["wall_s"] <= record["wall_s"] <= last["wall_s"]]
    rows, wall_s = rows_s(records), after.when_s - before.when_s
    capacity_s = first["cores/capacity"] * wall_s
    close_s = CLOSE * capacity_s
    ours_s = sum(rows.values()) - rows["others"] - rows["idle"]
    assert sum(rows.values()) == pytest.approx(capacity_s, abs=close_s)
    assert ours_s == pytest.approx(after.ours_s - before.ours_s, abs=close_s)
    others_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    assert rows["others"] == pytest.approx(others_s, abs=close_s)
    assert rows["others"] >= after.burners_s - before.burners_s - close_s
    assert ours_s + others_s + rows["idle"] == pytest.approx(capacity_s, abs=close_s)
    assert min(rows.values()) > -0.1 * close_s
    assert rows["env_workers"] > 0.001  # both processes of the environments
    assert min(rows["learner"], rows["collector"], rows["supervisor"]) > 0.01
