"""One repeat of one contender, and what the machine did meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.contenders import Contender, Job

STEADY_FROM = 1500  # env steps: start-up, random collection, warm-up and compilation are over
START_TIMEOUT_S = 180.0
SLOWEST = 5.0  # env steps per second: who is slower has hung


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeat as it goes into the results; `steps_per_sec` is None when it failed."""

    contender: str
    round: int
    command: list[str]
    steps_per_sec: float | None
    failure: str | None
    load_before: float  # 1-minute load average
    wall_s: float  # the whole process, start-up included
    cpu_s: float  # of the contender's processes
    others_share: float  # of the cores' time, taken by anybody else: the noise
    ticks: list[tuple[int, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def run(key: str, contender: Contender, steps: int, number: int, cores: tuple[int, ...]) -> Repeat:
    """Do one repeat in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        job = Job(steps, number, Path(scratch))
        command = contender.command(job)
        load, before = os.getloadavg()[0], Usage.now(cores)
        failure = _failure(command, contender.environment(), START_TIMEOUT_S + steps / SLOWEST)
        wall_s, cpu_s, busy_s = Usage.now(cores).since(before)
        others = max(busy_s - cpu_s, 0.0) / (wall_s * len(cores))
        facts = (load, wall_s, cpu_s, others)
        if failure is not None:
            return Repeat(key, number, command, None, failure, *facts)
        ticks, versions = contender.report(job)
    try:
        return Repeat(key, number, command, steady_rate(ticks), None, *facts, ticks, versions)
    except ValueError as error:
        return Repeat(key, number, command, None, str(error), *facts, ticks, versions)


def steady_rate(ticks: list[tuple[int, float]]) -> float:
    """Env steps per second between the first tick from `STEADY_FROM` on and the last one.

    Raises `ValueError` when there are no two.
    """
    steady = [tick for tick in ticks if tick[0] >= STEADY_FROM]
    if len(steady) < 2:
        raise ValueError(f"no two counter readings after {STEADY_FROM} env steps; raise --steps")
    (first_steps, first_s), (last_steps, last_s) = steady[0], steady[-1]
    return (last_steps - first_steps) / (last_s - first_s)


def _failure(command: list[str], variables: dict[str, str], timeout_s: float) -> str | None:
    """Run to the end; the last lines of its output if it failed."""
    try:
        result = subprocess.run(
            command, env=variables, timeout=timeout_s, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {timeout_s:.0f} s"
    last = result.stdout.decode(errors="replace").splitlines()[-8:]
    return None if result.returncode == 0 else "\n".join([f"exit code {result.returncode}", *last])


@dataclass(frozen=True, slots=True)
class Usage:
    """Clocks at one instant, in seconds."""

    wall_s: float
    children_s: float  # CPU of processes started here that have ended
    busy_s: float  # CPU of everybody on these cores

    @classmethod
    def now(cls, cores: tuple[int, ...]) -> Usage:
        """The clocks now."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        names = {f"cpu{core}" for core in cores}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # user, nice, system, idle, iowait, irq, softirq, steal
        ticks = sum(int(line[column]) for line in lines if line[0] in names for column in (1, 2, 3, 6, 7, 8))
        return cls(time.monotonic(), children.ru_utime + children.ru_stime, ticks / os.sysconf("SC_CLK_TCK"))

    def since(self, before: Usage) -> tuple[float, float, float]:
        """Wall, own CPU and everybody's CPU between two instants."""
        return self.wall_s - before.wall_s, self.children_s - before.children_s, self.busy_s - before.busy_s
