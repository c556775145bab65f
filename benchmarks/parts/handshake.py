"""The gate between learner and collector: one grant, one step, and back, between two processes.

Run as a program with three descriptors (control page, wake events of collector and learner) it is the other process:
a collector whose environment takes no time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.parts.measurement import Measurement, call_us
from benchmarks.results import REPOSITORY
from offpolicy.processes.control_page import ControlPage, HostWord, Stop
from offpolicy.processes.handshake import CollectorGate, LearnerGate, Turn
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent

CALLS = 500
START_TIMEOUT_S = 60.0


def measure(rounds: int) -> Iterator[Measurement]:
    """Microseconds per round trip."""
    with _collector() as gate:

        def round_trip() -> None:
            env_steps = gate.env_steps + 1
            gate.grant(env_steps)
            gate.wait_for(env_steps)

        call_us(round_trip, CALLS)  # warms up
        samples = [call_us(round_trip, CALLS) for _ in range(10 * rounds)]
    yield Measurement("gate", "round trip between two processes", "us", samples)


@contextmanager
def _collector() -> Iterator[LearnerGate]:
    """The learner's side of a gate whose other side waits for its first grant."""
    block, collector_wake, learner_wake = (
        SharedBlock.create("bench-gate", ControlPage.nbytes(1, 1)), WakeEvent.create(), WakeEvent.create()
    )  # fmt: skip
    fds = (block.fd, collector_wake.fd, learner_wake.fd)
    command = [sys.executable, "-m", __name__, *map(str, fds)]
    control = ControlPage(block.buffer, num_ranks=1, num_collectors=1)
    gate = LearnerGate(control, 0, learner_wake, [collector_wake])
    process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=fds)
    try:
        if not learner_wake.wait(START_TIMEOUT_S):  # set when it comes to its first wait
            raise RuntimeError("the other process does not answer")
        yield gate
    finally:
        control.host.set(HostWord.STOP, Stop.EXIT)
        collector_wake.set()
        process.wait(START_TIMEOUT_S)


def main(control_fd: int, collector_fd: int, learner_fd: int) -> None:
    """The other process."""
    control = ControlPage(SharedBlock.attach(control_fd).buffer, num_ranks=1, num_collectors=1)
    gate = CollectorGate(control, 0, WakeEvent(collector_fd), [WakeEvent(learner_fd)])
    env_steps = 0
    gate.announce(env_steps, env_steps)
    while gate.wait_turn(env_steps.__lt__) is Turn.STEP:
        env_steps += 1
        gate.announce(env_steps, env_steps)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
