"""The supervisor's own loop, with a child that fails at once."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from typing import Any

import pytest

from offpolicy.fork_server import ForkServer
from offpolicy.processes.child_processes import Start
from offpolicy.processes.control_page import ControlPage
from offpolicy.processes.supervisor import Supervisor, SupervisorConfig
from offpolicy.timing.clock import Stopwatch

pytestmark = [pytest.mark.mp, pytest.mark.slow]


class DeathFirst(selectors.DefaultSelector):
    """Reports a child's death before its last message, which the kernel may do."""

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(timeout)
        return sorted(events, key=lambda event: event[0].data is not None and event[0].fd == event[0].data.messages)


@pytest.fixture
def log_fd() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_WRONLY)
    yield fd
    os.close(fd)


def test_a_death_reported_before_the_last_message_loses_neither(monkeypatch: pytest.MonkeyPatch, log_fd: int) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", DeathFirst)
    control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 1))), 1, 1)
    with (
        ForkServer([], os.environ) as server,
        Supervisor(control, (), SupervisorConfig(server, log_fd, 20.0, Stopwatch().elapsed_s)) as supervisor,
    ):
        pid = supervisor.spawn(Start("learner", 0, "offpolicy.no_such_module:main", {}, {}))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # both events are ready
        supervisor.run(lambda: None, 60.0)
    assert supervisor.failure is not None
    assert supervisor.failure.cause.startswith("ModuleNotFoundError")
