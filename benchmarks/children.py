"""Programs that the benchmarks run: the trainer itself, on few cores and in a clean environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from rich.console import Console

PAGE_WIDTH = 130  # characters of a table that is not written to a terminal
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def use_cores(count: int) -> tuple[int, ...]:
    """Confines this process, and all that it starts, to the first `count` of its cores; returns them."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)
    return tuple(cores)


def stop_at_sigterm() -> None:
    """Makes SIGTERM end this program as Ctrl-C does, which a job in the background ignores."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def stop(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Asks a program to end by SIGTERM, and kills it if it does not in time."""
    process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    finally:  # also when this program is interrupted again while it waits
        process.kill()
        process.wait()


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment of this process without the caller's choice of thread counts, and with `variables`."""
    return {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES} | variables


def offpolicy(*words: str) -> list[str]:
    """Returns a command of the trainer."""
    return [sys.executable, "-m", "offpolicy", *words]


def offpolicy_train(run_dir: Path, *overrides: str) -> list[str]:
    """Returns the command of a training run."""
    return offpolicy("train", f"run_dir={run_dir}", *overrides)


def wide_console() -> Console:
    """Returns a console whose tables are not cut where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else PAGE_WIDTH)
