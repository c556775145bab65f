"""A supervisor over children that only remember what was done to them, on a clock that the test moves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.processes.children import Child
from offpolicy.processes.control_page import ControlPage, HostWord, Stop
from offpolicy.processes.deaths import Restarts
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.signals import signals_kept
from offpolicy.processes.supervisor import Failure, Supervisor, SupervisorConfig

STOP_TIMEOUT_S, STEP_TIMEOUT_S = 60.0, 10.0
CRASH = {"kind": "error", "text": "step 3", "error": "EnvFailure", "code": 1, "traceback": "Traceback ..."}
KILLED = "was killed by SIGKILL"
LOST = {"kind": "error", "text": "lost rank 1", "error": "PeerLostError", "code": 70, "is_consequence": True}

NO_SERVER: Any = SimpleNamespace(pid=0)  # a fork server that starts nothing


class FakeChild(Child):
    """Exits when the test asks for it, or when it is killed; its pidfd is the read end of a pipe."""

    def __init__(self, role: str, index: int, pid: int) -> None:
        pidfd, self._life = os.pipe()
        messages, self.pipe = os.pipe()
        super().__init__(role, index, pid, pidfd, messages)
        self.code, self.signals = 0, list[int]()
        self.is_held = False  # by the kernel: it runs on although it is killed

    def exit(self, code: int) -> None:
        if self._life >= 0:
            self.code, life, self._life = code, self._life, -1
            os.close(life)

    def kill(self) -> None:
        if not self.is_held:
            self.exit(-signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def poll(self) -> int | None:
        self.returncode = None if self._life >= 0 else self.code
        return self.returncode

    def wait(self, timeout_s: float) -> int | None:
        return self.poll()


class Stage:
    """A supervisor of fake children; each tick of its loop takes a second of the fake clock."""

    def __init__(self, *roles: str, max_restarts: int = 0, **limits: Any) -> None:
        self.now_s = 100.0
        self.restarts = Restarts(max_restarts, lambda: self.now_s)
        self.event = WakeEvent.create()
        self.control = ControlPage(memoryview(bytearray(ControlPage.nbytes(2, 2))), 2, 2)
        self._entered = ExitStack()
        signals = self._entered.enter_context(signals_kept())
        config = SupervisorConfig(
            NO_SERVER, signals, 2, STOP_TIMEOUT_S, STEP_TIMEOUT_S, lambda: self.now_s, self.restarts, num_hosts=2,
            **limits,
        )  # fmt: skip
        self.messages: list[tuple[str, Any]] = []
        self.supervisor = Supervisor(
            self.control, (self.event,), config, lambda child, message: self.messages.append((child.name, message))
        )
        self.processes: dict[str, FakeChild] = {}
        self._roles = roles

    def __enter__(self) -> Stage:
        self._entered.enter_context(self.supervisor)
        for name in self._roles:
            self.add(name)
        return self

    def add(self, name: str) -> None:
        """Starts a fake child."""
        role, index = name.split("-")
        self.processes[name] = FakeChild(role, int(index), 1000 + len(self.processes))
        self.supervisor.add(self.processes[name])

    def __exit__(self, *error: object) -> None:
        self._entered.close()
        for process in self.processes.values():
            os.close(process.pipe)

    def send(self, name: str, **message: Any) -> None:
        os.write(self.processes[name].pipe, json.dumps(message).encode() + b"\n")

    def finish(self, name: str) -> None:
        """The main function of a child returns."""
        self.send(name, kind="finished", result=None)
        self.processes[name].exit(0)

    def crash(self, name: str, message: dict[str, Any], code: int = 1) -> None:
        self.send(name, **message)
        self.processes[name].exit(code)

    def run(
        self, script: dict[int, Any] | None = None, tick_s: float = 1.0, on_signal: Callable[[], None] = lambda: None
    ) -> Failure | None:
        """Runs until all children have exited; `script` has a call by tick."""
        ticks = iter(range(100_000))

        def on_tick() -> None:
            self.now_s += tick_s
            (script or {}).get(next(ticks), lambda: None)()

        self.supervisor.run(on_tick, on_signal)
        return self.supervisor.failure

    def run_to_failure(self, script: dict[int, Any] | None = None) -> Failure:
        """Runs to the end, which is a failure."""
        failure = self.run(script)
        assert failure is not None
        return failure

    def stop_level(self) -> int:
        return self.control.host[HostWord.STOP]

    def follow(self, *names: str) -> None:
        """Collectors exit when they are asked to, as `on_tick` of a test."""
        if self.stop_level() == Stop.EXIT:
            for name in names:
                self.finish(name)


def freeze(monkeypatch: pytest.MonkeyPatch, name: str, among: tuple[str, ...] = ("learner-0", "collector-0")) -> None:
    """Lets the fake process `name` be stopped by a signal."""
    pid = 1000 + among.index(name)
    monkeypatch.setattr("offpolicy.processes.supervisor.is_stopped", lambda asked: asked == pid)


def exit_of(stage: Stage, name: str, code: int = 0) -> Any:
    """A child ends by itself, with code 0 once its main function has returned."""
    return lambda: stage.processes[name].exit(code) if code else stage.finish(name)


def wait_until(is_true: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 90.0
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TICK_S", 0.0), ("STACKS_S", 0.0), ("load_per_core", lambda: 0.5)):
        monkeypatch.setattr(f"offpolicy.processes.supervisor.{name}", value)
    # The pids of fake processes may be those of real ones.
    monkeypatch.setattr("offpolicy.processes.supervisor.is_stopped", lambda pid: False)
