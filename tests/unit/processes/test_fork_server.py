"""Forks of a fork server are children of this process with nothing of their own but what they were given."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offpolicy.commands.train import run_server
from offpolicy.errors import StartError
from offpolicy.processes.children import Child, adopting
from offpolicy.processes.fork_server import ForkServer
from offpolicy.processes.signals import RUN_SIGNALS
from tests.fakes import refused
from tests.unit.processes.conftest import wait_until

MODULE = """
import os, signal, sys

def describe(context):
    files = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            files.append(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
        except OSError:  # that of the directory
            pass
    context.send(
        "state", parent=os.getppid(), threads=len(os.listdir("/proc/self/task")), files=sorted(files),
        spin_rounds=os.environ.get("GOMP_SPINCOUNT"),
        modules=[name for name in ("torch", "gymnasium", "colorsys") if name in sys.modules],
        random=sys.modules["numpy"].random.random() if "numpy" in sys.modules else None,
    )

def hold(context):
    context.send("holding")
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


@contextmanager
def forked(server: ForkServer, function: str, num_fds: int = 0) -> Iterator[Child]:
    """A fork that runs a function of MODULE."""
    read, write = os.pipe()
    with open(read, "rb"), open(write, "wb"), open(os.devnull, "wb") as log:
        fds = {f"fd-{number}": write for number in range(num_fds)}
        child = server.start("collector", 0, f"entries:{function}", None, fds, log.fileno(), read)
        yield child
        child.kill()
        child.wait(20.0)
        child.close()


def described(server: ForkServer, num_fds: int = 0) -> dict[str, Any]:
    with forked(server, "describe", num_fds) as child:
        assert child.wait(60.0) == 0
        (state,) = child.read() or ()
    return dict(state)


def test_a_fork_is_a_child_of_this_process_with_nothing_but_what_it_was_given(server: ForkServer) -> None:
    state = described(server)
    assert (state["parent"], state["threads"]) == (os.getpid(), 2)  # its own and that of the lifeline
    assert state["files"] == [os.devnull] * 3 + ["pipe"] * 2


def test_two_forks_draw_different_numbers_from_the_global_generator_of_numpy(server: ForkServer) -> None:
    assert described(server)["random"] != described(server)["random"]


def test_a_fork_gets_as_many_descriptors_as_this_process_may_have_now(server: ForkServer) -> None:
    """The limit is raised once the configuration says how many a run needs; the server is older."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, hard))
    assert described(server, num_fds=250)["files"].count("pipe") == 252


def test_a_stop_of_the_whole_group_kills_no_fork(server: ForkServer) -> None:
    """Its entry leaves the signals to the supervisor; before that they are blocked."""
    with forked(server, "hold") as child:
        for number in RUN_SIGNALS:
            child.send_signal(number)
        assert child.wait(0.01) is None
        wait_until(lambda: child.read() is not None)
        assert child.poll() is None
        child.kill()
        assert child.wait(20.0) == -signal.SIGKILL


def test_a_refusal_of_the_machine_leaves_no_descriptor(server: ForkServer) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    said = "collector 3 cannot be started: Resource temporarily unavailable"
    with refused("spawn:EAGAIN"), pytest.raises(StartError, match=said):
        server.start("collector", 3, "entries:hold", None, {}, 2, 0)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_server_that_was_killed_is_started_again(server: ForkServer) -> None:
    described(server)
    pidfd = os.pidfd_open(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 20.0)[0]
    os.close(pidfd)
    assert described(server)["parent"] == os.getpid()
    server.close()
    assert described(server)["parent"] == os.getpid()


def test_a_fork_does_not_wait_for_all_imports(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "last.fifo")
    (tmp_path / "last.py").write_text(f"open({str(tmp_path / 'last.fifo')!r}).close()")
    with ForkServer(["colorsys", "last"], os.environ, spin_rounds=7) as server:
        state = described(server)
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
        assert described(server)["modules"] == ["torch", "gymnasium"]
