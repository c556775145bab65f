"""Two hosts on one machine: network namespaces with a cable between them, and a `torchrun` in each.

A namespace has a loopback device and its end of the cable, nothing else: what runs in it reaches no other network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.processes.conftest import REPOSITORY, TINY, LiveRun

ENDPOINT = "10.77.0.1:29400"  # address of the torchruns' store, on host 0
TOGETHER = (*TINY, "runner=multi_gpu", "runner.timeout_s=60", "device=cpu")
KILL_TIMEOUT_S = 20.0


class Host:
    """A network namespace, with its own directory in place of a disk, and the run in it."""

    def __init__(self, index: int, root: Path, environ: Mapping[str, str]) -> None:
        self.index = index
        self.namespace = f"op-{os.getpid()}-{index}"
        self.interface, self.address = f"veth{index}", f"10.77.0.{index + 1}"
        self.directory = root / f"disk-{index}"
        self.directory.mkdir()
        self.run_dir = self.directory / "run" / (f"host-{index}" if index else "")
        self._environ = {**os.environ, **environ, "PYTHONPATH": str(REPOSITORY)}
        self._launched: LiveRun | None = None

    @property
    def run(self) -> LiveRun:
        """The run that `launch` has started last."""
        assert self._launched is not None
        return self._launched

    def create(self) -> None:
        ip("netns", "add", self.namespace)
        self.ip("link", "set", "lo", "up")

    def cable_end(self) -> tuple[str, ...]:
        return "name", self.interface, "netns", self.namespace

    def join_cable(self) -> None:
        self.ip("addr", "add", f"{self.address}/24", "dev", self.interface)
        self.set_cable("up")

    def set_cable(self, state: str) -> None:
        """`up` or `down`: when it is down, packets are lost without an error."""
        self.ip("link", "set", self.interface, state)

    def remove(self) -> None:
        self.kill()
        if self._launched is not None:
            print(f"-- host {self.index} --\n{self.out()}{self.err()}")  # pytest shows it when the test has failed
        ip("netns", "delete", self.namespace)

    def ip(self, *words: str) -> None:
        ip("-n", self.namespace, *words)

    def launch(self, *overrides: str, max_restarts: int = 0) -> None:
        """Start `torchrun` on this host; the process of `run` is torchrun."""
        given = {override.split("=")[0] for override in overrides}
        words = [word for word in TOGETHER if word.split("=")[0] not in given]
        command = [
            *("ip", "netns", "exec", self.namespace, sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(max_restarts)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", ENDPOINT, "--rdzv-id", "job"),
            *("--rdzv-conf", f"is_host={1 - self.index},read_timeout=20", "--local-addr", self.address),
            *("-m", "offpolicy.cli", "train", *words, f"runner.interface={self.interface}", *overrides),
        ]
        with open(self.directory / "out", "w") as out, open(self.directory / "err", "w") as err:
            process = subprocess.Popen(
                command, cwd=self.directory, env=self._environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                text=True,
            )  # fmt: skip
        self._launched = LiveRun(process, self.run_dir, self._environ["OFFPOLICY_RUN_ID"])

    def out(self) -> str:
        return (self.directory / "out").read_text()

    def err(self) -> str:
        return (self.directory / "err").read_text()

    def finish(self, timeout_s: float = 120.0) -> int:
        """The exit code of torchrun."""
        return self.run.process.wait(timeout_s)

    def pids(self) -> list[int]:
        """Everything that runs in the namespace; what has been killed but not reaped does not run."""
        inode = os.stat(f"/run/netns/{self.namespace}").st_ino
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _net_inode(name) == inode]

    def own_pids(self) -> list[int]:
        """The processes of offpolicy: the supervisor, its children, and what they started."""
        return [pid for pid in self.pids() if pid != self.run.process.pid]

    def supervisor(self) -> int:
        """The process that torchrun has started."""
        [pid] = [pid for pid in self.own_pids() if _parent(pid) == self.run.process.pid]
        return pid

    def kill(self) -> None:
        """`kill -9` whatever runs in the namespace, until nothing does."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while pids := self.pids():
            assert time.monotonic() < deadline, f"not killed: {pids}"
            for pid in pids:
                kill(pid)
            time.sleep(0.02)
        if self._launched is not None:
            self.finish()


def are_possible() -> bool:
    """Whether this process may make network namespaces, also as root in a container, and has the tools to."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "ss", "unshare"))):
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode == 0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=20)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until_gone(pids: list[int], timeout_s: float) -> list[int]:
    """Those of `pids` that still run after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if _net_inode(str(pid)) is not None]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _net_inode(pid: str) -> int | None:
    """The network namespace of a process, None for one that has exited or is a zombie."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
