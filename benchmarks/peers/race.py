"""One repeat of one contender: its rate once it has settled, and the proof that it did the work of the others."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import stop
from benchmarks.journal import Usage
from benchmarks.peers.contenders import OUTPUT, Contender, Job, Settings, Tick, check_equal
from offpolicy.errors import EXIT_TERMINATED

SETTLE_S = 8.0  # of learning, at least: compilation and caches; our trials of threads and modes may take longer
START_TIMEOUT_S = 80.0  # with the random steps, and with trials that take longer than `SETTLE_S`
STOP_TIMEOUT_S = 20.0
POLL_S = 1.0  # between two looks at the counter and at the cores' clocks
STOPPED = (0, EXIT_TERMINATED)  # exit codes: ended by itself, or by our signal


def run(contender: Contender, settings: Settings, seconds: float, seed: int, cores: tuple[int, ...]) -> dict[str, Any]:
    """Does one repeat in a fresh process: `SETTLE_S` of learning and our trials, and then `seconds` of learning.

    Raises `RuntimeError` with the last lines of its output where it fails, `UnequalSettings` where it did other work.
    """
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        job = Job(settings, SETTLE_S + seconds, seed, Path(scratch))
        settled_s, samples = _raced(contender, job, cores)
        report, ticks = contender.report(job), contender.ticks(job)
    check_equal(settings, report.settings, report.env_steps, report.updates)
    steady = steady_ticks(ticks, settings.learning_starts, settled_s)
    if len(steady) < 2:
        raise RuntimeError(f"no two counter readings {SETTLE_S:.0f} s after learning began; raise --seconds")
    first, last = steady[0], steady[-1]
    window_s, updates = last.clock_s - first.clock_s, last.updates - first.updates
    before = [sample for sample in samples if sample.wall_s <= first.clock_s] or samples
    after = [sample for sample in samples if sample.wall_s >= last.clock_s] or samples[-1:]
    return {
        "steps_per_sec": (last.env_steps - first.env_steps) / window_s,
        "update_ms": 1000 * (last.in_updates_s - first.in_updates_s) / updates if updates else None,
        "window_s": window_s,
        "others_share": after[0].since(before[-1]).others_share(len(cores)),
        "updates": report.updates,
        "threads": report.threads,
        "versions": report.versions,
    }


def steady_ticks(ticks: Sequence[Tick], learning_starts: int, settled_s: float = 0.0) -> list[Tick]:
    """Returns the ticks from `SETTLE_S` after the first one of learning, and not before `settled_s`."""
    learning = [tick for tick in ticks if tick.env_steps >= learning_starts]
    return [tick for tick in learning if tick.clock_s >= max(learning[0].clock_s + SETTLE_S, settled_s)]


def _raced(contender: Contender, job: Job, cores: Sequence[int]) -> tuple[float, list[Usage]]:
    """Runs to the end, or until it has learned for long enough with the threads and the mode that it has chosen.

    Returns when that choice was seen, and the cores' clocks all along.
    """
    started_s = settled_s = time.monotonic()
    samples, has_chosen = [Usage.now(cores)], False
    with open(job.scratch / OUTPUT, "wb") as output:
        process = subprocess.Popen(
            contender.command(job), env=contender.environment(), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                samples.append(Usage.now(cores))
                now_s = time.monotonic()
                if not has_chosen:
                    settled_s, has_chosen = now_s, contender.has_chosen(job)
                ticks = contender.ticks(job) if contender.is_endless else []
                steady = steady_ticks(ticks, job.settings.learning_starts, settled_s)
                if steady and steady[-1].clock_s - steady[0].clock_s >= job.seconds - SETTLE_S:
                    break
                if now_s > started_s + START_TIMEOUT_S + job.seconds:
                    raise RuntimeError(f"not done after {START_TIMEOUT_S + job.seconds:.0f} s")
        finally:
            stop(process, STOP_TIMEOUT_S)
    if process.returncode not in STOPPED:
        last = (job.scratch / OUTPUT).read_text(errors="replace").splitlines()[-8:]
        raise RuntimeError(os.linesep.join([f"exit code {process.returncode}", *last]))
    return settled_s, samples
