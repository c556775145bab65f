"""One repeat of one contender: its rate once it has settled, and the proof that it did the work of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import Contender, Job
from benchmarks.peers.settings import Settings, check_equal
from benchmarks.quiet import Watch

SETTLE_S = 8.0  # of learning: compilation, caches, and our trials of threads and modes are over
START_TIMEOUT_S = 70.0  # with the random steps
STOP_TIMEOUT_S = 20.0
POLL_S = 0.2
STOPPED = (0, 130)  # exit codes: ended by itself, or by our interrupt


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeat as it goes into the results; `steps_per_sec` is None when it failed."""

    contender: str
    round: int
    command: list[str]
    steps_per_sec: float | None
    failure: str | None
    cpu_s: float  # of the contender's processes
    threads: str = ""
    updates: int = 0
    ticks: list[tuple[int, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def run(  # noqa: PLR0913  # what a repeat is
    key: str, contender: Contender, settings: Settings, seconds: float, number: int, cores: tuple[int, ...]
) -> Repeat:
    """Does one repeat in a fresh process: `SETTLE_S` and then `seconds` of learning."""
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        job, watch = Job(settings, SETTLE_S + seconds, number, Path(scratch)), Watch(cores)
        command = contender.command(job)
        failure = _failure(contender, job, command)
        cpu_s = watch.passed().own_s
        if failure is not None:
            return Repeat(key, number, command, None, failure, cpu_s)
        report = contender.report(job)
    facts: dict[str, Any] = {"threads": report.threads, "updates": report.updates}
    facts |= {"ticks": report.ticks, "versions": report.versions}
    try:
        check_equal(settings, report.settings, report.env_steps, report.updates)
        return Repeat(key, number, command, steady_rate(report.ticks, settings.learning_starts), None, cpu_s, **facts)
    except ValueError as error:
        return Repeat(key, number, command, None, str(error), cpu_s, **facts)


def steady_rate(ticks: list[tuple[int, float]], learning_starts: int) -> float:
    """Env steps per second from `SETTLE_S` after the first tick of learning to the last one.

    Raises `ValueError` when there are no two.
    """
    learning = [tick for tick in ticks if tick[0] >= learning_starts]
    steady = [tick for tick in learning if tick[1] >= learning[0][1] + SETTLE_S]
    if len(steady) < 2:
        raise ValueError(f"no two counter readings {SETTLE_S:.0f} s after learning began; raise --seconds")
    (first_steps, first_s), (last_steps, last_s) = steady[0], steady[-1]
    return (last_steps - first_steps) / (last_s - first_s)


def _failure(contender: Contender, job: Job, command: list[str]) -> str | None:
    """Runs to the end, or until it is over; the last lines of its output if it failed."""
    timeout_s = START_TIMEOUT_S + job.seconds
    end_s = time.monotonic() + timeout_s
    with open(job.scratch / "output", "wb") as output:
        process = subprocess.Popen(command, env=contender.environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and not contender.is_over(job):
                if time.monotonic() > end_s:
                    return f"not done after {timeout_s:.0f} s"
                time.sleep(POLL_S)
        finally:
            _stop(process)
    last = (job.scratch / "output").read_text(errors="replace").splitlines()[-8:]
    code = process.returncode
    return None if code in STOPPED else os.linesep.join([f"exit code {code}", *last])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks it to stop, and kills it if it does not in time."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
