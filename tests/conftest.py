"""Fixtures of all tests: the command line as a process, one torch thread, proof that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from offpolicy.fault import PLAN_VARIABLE

REPOSITORY = Path(__file__).resolve().parent.parent
RUN_ID_VARIABLE = "OFFPOLICY_RUN_ID"
SHARED_MEMORY = "/dev/shm"
GRACE_S = 5.0  # by then nothing of a finished run may be left
NEIGHBOUR_S = 90.0  # by then the runs that the other test worker has going are over

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here or in a child: two cores, many processes
os.environ[PLAN_VARIABLE] = str(REPOSITORY / "tests" / "faults.py")
for _number in (signal.SIGINT, signal.SIGHUP):  # a test session in the background must not hand "ignored" on to runs
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
settings.register_profile("offpolicy", deadline=None, database=None, derandomize=True, max_examples=25)
settings.load_profile("offpolicy")

RunCli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """One thread per test, whatever the test before it set; torch is not imported for tests that do not need it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class Traces:
    """What a run leaves on the machine: processes that carry its id, and named shared memory.

    The id is put into the environment of the run and inherited by all its descendants, which survives reparenting.
    """

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    shm_before: frozenset[str] = field(default_factory=lambda: frozenset(os.listdir(SHARED_MEMORY)))

    @property
    def environ(self) -> dict[str, str]:
        return {RUN_ID_VARIABLE: self.run_id}

    def processes(self) -> list[int]:
        """Live processes of the run, this one left out."""
        mark = f"{RUN_ID_VARIABLE}={self.run_id}".encode()
        return [pid for pid in _pids() if pid != os.getpid() and mark in _proc(pid, "environ").split(b"\0")]

    def shared_memory(self) -> list[str]:
        """Entries of `SHARED_MEMORY` that are new and not mapped by a process of somebody else."""
        new = set(os.listdir(SHARED_MEMORY)) - self.shm_before
        if not new:
            return []
        ours = set(self.processes())
        foreign = b"".join(_proc(pid, "maps") for pid in _pids() if pid not in ours)
        return sorted(name for name in new if f"{SHARED_MEMORY}/{name}".encode() not in foreign)

    def assert_none(self, grace_s: float = GRACE_S) -> None:
        """Fail unless processes and shared memory of the run are gone within `grace_s`.

        A child that another worker's test kills leaves semaphores that no process maps until its run ends: the
        resource tracker removes them then. So what is left counts once the runs of the other workers are over.
        """
        _wait_while(lambda: bool(self.processes() or self.shared_memory()), grace_s)
        assert self.processes() == [], "processes of the run are still alive"
        neighbours = _runs_of_other_workers() if self.shared_memory() else set()
        _wait_while(lambda: bool(self.shared_memory() and neighbours & _runs_of_other_workers()), NEIGHBOUR_S)
        _wait_while(lambda: bool(neighbours and self.shared_memory()), grace_s)
        assert self.shared_memory() == [], "shared memory of the run is still there"


def _wait_while(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _runs_of_other_workers() -> set[int]:
    """Processes that tests in other xdist workers started: they inherit the name of their worker."""
    own = f"PYTEST_XDIST_WORKER={os.environ.get('PYTEST_XDIST_WORKER', '')}".encode()
    environs = {pid: _proc(pid, "environ").split(b"\0") for pid in _pids()}
    return {
        pid
        for pid, environ in environs.items()
        if own not in environ and any(entry.startswith(b"PYTEST_XDIST_WORKER=") for entry in environ)
    }


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _proc(pid: int, name: str) -> bytes:
    """A file of /proc/<pid>; empty for a process that is gone, a zombie or somebody else's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Watches a run started with `traces.environ` in its environment; nothing of it may outlive the test."""
    watched = Traces()
    yield watched
    watched.assert_none()


@pytest.fixture
def run_cli(traces: Traces, tmp_path: Path) -> RunCli:
    """`run_cli(args, cwd=tmp_path, timeout=60)`: `offpolicy <args>` of this checkout as its own process."""

    def run(args: Sequence[str], cwd: Path = tmp_path, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "offpolicy.cli", *args]
        return subprocess.run(
            command, cwd=cwd, timeout=timeout, env=environ, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(autouse=True)
def _own_plugins() -> Iterator[None]:
    """Leaves no plug-in of a test to the next; `make_package` makes them known. To look for them is slow."""
    yield
    plugins, algorithms = sys.modules.get("offpolicy.plugins"), sys.modules.get("offpolicy.config.algorithms")
    if plugins is not None:
        groups = (plugins.ALGOS, plugins.NETWORKS, plugins.ENVS, plugins.SINKS)
        if any(map(plugins.installed, groups)):
            plugins.installed.cache_clear()
    if algorithms is not None:
        algorithms.algorithm_info.cache_clear()
    for name in ("plugs", "encs", "encs_modules"):
        sys.modules.pop(name, None)
