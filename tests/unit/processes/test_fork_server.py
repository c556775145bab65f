"""Forks of a fork server are children of this process with nothing of their own but what they were given."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpolicy.commands.train import run_server
from offpolicy.errors import StartError
from offpolicy.processes.children import Process, adopting
from offpolicy.processes.fork_server import ForkServer
from offpolicy.processes.signals import RUN_SIGNALS

MODULE = """
import json, os, signal, sys, threading

def tell(fds):
    files = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            files[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # that of the directory
            pass
    state = {
        "parent": os.getppid(), "threads": len(os.listdir("/proc/self/task")),
        "files": [path for fd, path in files.items() if fd != fds[0]],
        "spin_rounds": os.environ.get("GOMP_SPINCOUNT"),
        "modules": [name for name in ("torch", "gymnasium", "colorsys") if name in sys.modules],
    }
    if "numpy" in sys.modules:
        state["random"] = sys.modules["numpy"].random.random()
    os.write(fds[0], json.dumps(state).encode())
    return 3

def hold(fds):
    os.write(fds[0], b"0")
    signal.pause()
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "entries.py").write_text(MODULE)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    with adopting():
        yield


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with ForkServer(["numpy"], os.environ) as started:
        yield started


def fork(server: ForkServer, entry: str, num_copies: int = 1) -> tuple[Process, int]:
    """Returns a fork that runs `entry` of MODULE, and the read end of its pipe."""
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    process = Process(server.fork(f"entries:{entry}", (null, null, null), [write] * num_copies))
    os.close(write)
    os.close(null)
    return process, read


def told(server: ForkServer) -> dict[str, Any]:
    process, read = fork(server, "tell")
    state: dict[str, Any] = json.loads(os.read(read, 65_536))
    os.close(read)
    assert process.wait(20.0) == 3
    return state


def test_a_fork_is_a_child_of_this_process_with_one_thread_and_the_given_descriptors(server: ForkServer) -> None:
    state = told(server)
    assert (state["parent"], state["threads"]) == (os.getpid(), 1)
    assert state["files"] == [os.devnull] * 3


def test_two_forks_draw_different_numbers_from_the_global_generator_of_numpy(server: ForkServer) -> None:
    assert told(server)["random"] != told(server)["random"]


def test_the_exit_of_a_fork_is_that_of_any_child(server: ForkServer) -> None:
    process, read = fork(server, "hold")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(20.0) == -signal.SIGKILL
    os.close(read)


def test_a_fork_gets_as_many_descriptors_as_this_process_may_have_now(server: ForkServer) -> None:
    """The limit is raised once the configuration says how many a run needs; the server is older."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, hard))
    process, read = fork(server, "tell", num_copies=250)
    assert json.loads(os.read(read, 65_536))["parent"] == os.getpid()
    assert process.wait(20.0) == 3
    os.close(read)


def test_a_stop_of_the_whole_group_kills_no_fork_before_its_entry(server: ForkServer) -> None:
    """The entry of a run's process reads what it is to do, and leaves the signals to the supervisor then."""
    process, read = fork(server, "hold")
    for number in RUN_SIGNALS:
        process.send_signal(number)
    assert os.read(read, 1) == b"0"
    assert process.poll() is None
    process.kill()
    process.wait(20.0)
    os.close(read)


def test_a_server_that_was_killed_is_started_again(server: ForkServer) -> None:
    told(server)
    pidfd = os.pidfd_open(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 20.0)[0]
    os.close(pidfd)
    assert told(server)["parent"] == os.getpid()
    server.close()
    assert told(server)["parent"] == os.getpid()


def test_a_fork_does_not_wait_for_all_imports(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "last.fifo")
    (tmp_path / "last.py").write_text(f"open({str(tmp_path / 'last.fifo')!r}).close()")
    with ForkServer(["colorsys", "last"], os.environ, spin_rounds=7) as server:
        state = told(server)
        assert (state["modules"], state["spin_rounds"]) == (["colorsys"], "7")
        assert not server.is_ready(0.0)
        (tmp_path / "last.fifo").write_text("")
        assert server.is_ready(60.0)


def test_an_import_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('libcudart.so is missing')")
    with (
        ForkServer(["broken"], os.environ) as server,
        pytest.raises(StartError, match=r"exited with code 1\n(.*\n)*ImportError: libcudart\.so is missing"),
    ):
        server.is_ready(60.0)


def test_the_server_dies_with_its_client() -> None:
    code = (
        "import os, signal; from offpolicy.processes.fork_server import ForkServer;"
        " server = ForkServer([], os.environ).__enter__(); "
        " print(server.is_ready(60.0) and server.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pidfd = os.pidfd_open(int(client.stdout.readline()))
        client.kill()
        assert select.select([pidfd], [], [], 20.0)[0]
    os.close(pidfd)


def test_what_a_run_imports_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would inherit the locks that such a thread holds."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with run_server() as server:
        assert server.is_ready(120.0)
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1
        assert told(server)["modules"] == ["torch", "gymnasium"]
