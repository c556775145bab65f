"""One repeat of one contender: its rate once it has settled, and the proof that it did the work of the others."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.children import stop
from benchmarks.peers.contenders import OUTPUT, Contender, Job, Progress, Work
from benchmarks.peers.observed import Observed
from benchmarks.peers.settings import Settings, check_equal
from benchmarks.quiet import Watch
from offpolicy.errors import EXIT_TERMINATED

SETTLE_S = 8.0  # of learning, at least: compilation and caches; our trials of threads and modes may take longer
START_TIMEOUT_S = 80.0  # with the random steps, and with trials that take longer than `SETTLE_S`
STOP_TIMEOUT_S = 20.0
POLL_S = 0.2
STOPPED = (0, EXIT_TERMINATED)  # exit codes: ended by itself, or by our signal


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
    update_ms: float | None = None  # of one, with the sampling of its batch, while the rate was taken
    ticks: list[tuple[int, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    window_s: float = 0.0  # in which the rate was taken
    others_share: float | None = None  # of the cores, by others, in that window
    has_changed: bool = False  # threads or mode, in that window


def run(  # noqa: PLR0913  # what a repeat is
    key: str, contender: Contender, settings: Settings, seconds: float, number: int, cores: tuple[int, ...]
) -> Repeat:
    """Does one repeat in a fresh process: `SETTLE_S` of learning and our trials, and then `seconds` of learning."""
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        job, watch = Job(settings, SETTLE_S + seconds, number, Path(scratch)), Watch(cores)
        command = contender.command(job)
        observed = Observed(cores)
        failure = _failure(contender, job, command, observed)
        cpu_s = watch.passed().own_s
        if failure is not None:
            return Repeat(key, number, command, None, failure, cpu_s)
        report = contender.report(job)
    facts: dict[str, Any] = {"threads": report.threads, "updates": report.updates}
    ticks = observed.on_our_clock(report.ticks)
    facts |= {"ticks": ticks, "versions": report.versions}
    try:
        check_equal(settings, report.settings, report.env_steps, report.updates)
        steady = steady_ticks(ticks, settings.learning_starts, observed.settled_s)
        rate = rate_of(steady)
    except ValueError as error:
        return Repeat(key, number, command, None, str(error), cpu_s, **facts)
    start_s, end_s = steady[0][1], steady[-1][1]
    facts["update_ms"] = update_ms(_on_our_clock(observed, report.work), start_s, end_s)
    facts |= {"window_s": end_s - start_s, "others_share": observed.others_share(start_s, end_s)}
    return Repeat(key, number, command, rate, None, cpu_s, **facts, has_changed=observed.has_changed(start_s, end_s))


def steady_ticks(
    ticks: list[tuple[int, float]], learning_starts: int, settled_s: float = -math.inf
) -> list[tuple[int, float]]:
    """The ticks from `SETTLE_S` after the first one of learning, and not before `settled_s`."""
    learning = [tick for tick in ticks if tick[0] >= learning_starts]
    return [tick for tick in learning if tick[1] >= max(learning[0][1] + SETTLE_S, settled_s)]


def rate_of(steady: list[tuple[int, float]]) -> float:
    """Env steps per second from the first tick to the last one. Raises `ValueError` when there are no two."""
    if len(steady) < 2:
        raise ValueError(f"no two counter readings {SETTLE_S:.0f} s after learning began; raise --seconds")
    (first_steps, first_s), (last_steps, last_s) = steady[0], steady[-1]
    return (last_steps - first_steps) / (last_s - first_s)


def _on_our_clock(observed: Observed, work: Sequence[Work]) -> list[Work]:
    ticks = observed.on_our_clock([(one.updates, one.clock_s) for one in work])
    return [one._replace(clock_s=clock_s) for one, (_, clock_s) in zip(work, ticks, strict=True)]


def update_ms(work: Sequence[Work], start_s: float, end_s: float) -> float | None:
    """Milliseconds of an update in a window; None if none ended between its readings."""
    within = [one for one in work if start_s <= one.clock_s <= end_s]
    if not within or within[-1].updates == within[0].updates:
        return None
    first, last = within[0], within[-1]
    return 1000 * (last.in_updates_s - first.in_updates_s) / (last.updates - first.updates)


def _is_over(job: Job, observed: Observed, progress: Progress | None) -> bool:
    """True once it has learned for as long as the job asks, after its trials: it is then interrupted."""
    if progress is None or progress.is_trying:
        return False
    ticks = observed.on_our_clock(progress.ticks)
    steady = steady_ticks(ticks, job.settings.learning_starts, observed.settled_s)
    return bool(steady) and steady[-1][1] - steady[0][1] >= job.seconds - SETTLE_S


def _failure(contender: Contender, job: Job, command: list[str], observed: Observed) -> str | None:
    """Runs to the end, or until it is over; the last lines of its output if it failed."""
    timeout_s = START_TIMEOUT_S + job.seconds
    end_s = time.monotonic() + timeout_s
    with open(job.scratch / OUTPUT, "wb") as output:
        process = subprocess.Popen(command, env=contender.environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                progress = contender.progress(job)
                observed.look(progress)
                if _is_over(job, observed, progress):
                    break
                if time.monotonic() > end_s:
                    return f"not done after {timeout_s:.0f} s"
                time.sleep(POLL_S)
            observed.sample()
        finally:
            stop(process, STOP_TIMEOUT_S)
    last = (job.scratch / OUTPUT).read_text(errors="replace").splitlines()[-8:]
    code = process.returncode
    return None if code in STOPPED else os.linesep.join([f"exit code {code}", *last])
