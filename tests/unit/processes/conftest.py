"""A supervisor over children that only remember what was done to them, on a clock that the test moves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.processes.child_processes import Child, Start
from offpolicy.processes.control_page import ControlPage, HostWord, Stop
from offpolicy.processes.failures import Failure
from offpolicy.processes.restarts import Restarts
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.supervisor import Supervisor, SupervisorConfig

STOP_TIMEOUT_S, STEP_TIMEOUT_S = 60.0, 10.0
CRASH = {"kind": "error", "text": "step 3", "error": "EnvFailure", "code": 1, "traceback": "Traceback ..."}
KILLED = "was killed by SIGKILL"
LOST = {"kind": "error", "text": "lost rank 1", "error": "PeerLostError", "code": 70, "is_consequence": True}

NO_SERVER: Any = SimpleNamespace(pid=0)  # a fork server that starts nothing


class Process:
    """Exits when the test asks for it, or when it is killed; its pidfd is the read end of a pipe."""

    def __init__(self, pid: int) -> None:
        self.pid, self.code, self.signals = pid, 0, list[int]()
        self.pidfd, self._life = os.pipe()

    def exit(self, code: int) -> None:
        if self._life >= 0:
            self.code, life, self._life = code, self._life, -1
            os.close(life)

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def poll(self) -> int | None:
        return None if self._life >= 0 else self.code

    def wait(self, timeout_s: float | None = None) -> int:
        assert timeout_s is not None or self._life < 0  # the wait for a process that runs on would never end
        return self.code


class Stage:
    """A supervisor of fake children; each tick of its loop takes a second of the fake clock."""

    def __init__(self, *roles: str, max_restarts: int = 0, death_code: int = 1) -> None:
        self.now_s = 100.0
        self.restarts = Restarts(max_restarts, lambda: self.now_s)
        self.event = WakeEvent.create()
        self.control = ControlPage(memoryview(bytearray(ControlPage.nbytes(2, 2))), 2, 2)
        config = SupervisorConfig(
            NO_SERVER, 2, STOP_TIMEOUT_S, lambda: self.now_s, self.restarts, death_code=death_code, num_hosts=2
        )
        self.messages: list[tuple[str, Any]] = []
        self.supervisor = Supervisor(
            self.control, (self.event,), config, lambda child, message: self.messages.append((child.name, message))
        )
        self.processes: dict[str, Process] = {}
        self._roles, self._pipes, self._started = roles, dict[str, int](), list[int]()

    def __enter__(self) -> Stage:
        self.supervisor.__enter__()
        for name in self._roles:
            self.add(name)
        return self

    def add(self, name: str) -> None:
        """Starts a fake child."""
        role, index = name.split("-")
        process, (read, pipe) = Process(1000 + len(self._started)), os.pipe()
        self._started.append(pipe)
        self._pipes[name] = pipe
        start = Start(role, int(index), "module:main", {}, {})
        self.processes[name] = process
        self.supervisor.children.add(Child(start, process, process.pidfd, read))  # type: ignore[arg-type]

    def __exit__(self, *error: object) -> None:
        self.supervisor.__exit__(*error)
        for pipe in self._started:
            os.close(pipe)

    def send(self, name: str, **message: Any) -> None:
        os.write(self._pipes[name], json.dumps(message).encode() + b"\n")

    def finish(self, name: str) -> None:
        """The main function of a child returns."""
        self.send(name, kind="finished")
        self.processes[name].exit(0)

    def crash(self, name: str, message: dict[str, Any], code: int = 1) -> None:
        self.send(name, **message)
        self.processes[name].exit(code)

    def run(
        self,
        script: dict[int, Any] | None = None,
        tick_s: float = 1.0,
        on_signal: Callable[[], None] = lambda: None,
    ) -> Failure | None:
        """Runs until all children have exited; `script` has a call by tick."""
        ticks = iter(range(100_000))

        def on_tick() -> None:
            self.now_s += tick_s
            (script or {}).get(next(ticks), lambda: None)()

        self.supervisor.run(on_tick, STEP_TIMEOUT_S, on_signal)
        return self.supervisor.failure

    def stop_level(self) -> int:
        return self.control.host.get(HostWord.STOP)

    def follow(self, *names: str) -> None:
        """Collectors exit when they are asked to, as `on_tick` of a test."""
        if self.stop_level() == Stop.EXIT:
            for name in names:
                self.finish(name)


def hold(stage: Stage, name: str) -> None:
    """Lets the kernel hold a fake process: it runs on although it is killed."""
    held = stage.processes[name]
    held.kill = lambda: None  # type: ignore[method-assign]

    def wait(timeout_s: float | None = None) -> int:
        raise subprocess.TimeoutExpired("held", timeout_s or 0.0)

    held.wait = wait  # type: ignore[method-assign]


def freeze(monkeypatch: pytest.MonkeyPatch, name: str, among: tuple[str, ...] = ("learner-0", "collector-0")) -> None:
    """Lets the fake process `name` be stopped by a signal."""
    pid = 1000 + among.index(name)
    patch_stopped(monkeypatch, lambda asked: asked == pid)


def patch_stopped(monkeypatch: pytest.MonkeyPatch, is_stopped: Callable[[int], bool]) -> None:
    """The pids of fake processes may be those of real ones."""
    for module in ("shutdown", "hang_check", "watchdog"):
        monkeypatch.setattr(f"offpolicy.processes.{module}.is_stopped", is_stopped)


def exit_of(stage: Stage, name: str, code: int = 0) -> Any:
    """A child ends by itself, with code 0 once its main function has returned."""
    return lambda: stage.processes[name].exit(code) if code else stage.finish(name)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_stopped(monkeypatch, lambda pid: False)
    monkeypatch.setattr("offpolicy.processes.supervisor.TICK_S", 0.0)
    monkeypatch.setattr("offpolicy.processes.hang_check.STACKS_S", 0.0)
