"""The gate between learner and collector: one grant, one step, and back, between two processes.

Run as a program with three descriptors (control page, collector's bell, learner's bell) it is the other process: a
collector whose environment takes no time.
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
    block, collector_bell, learner_bell = (
        SharedBlock.create("bench-gate", ControlPage.nbytes(1, 1)), WakeEvent.create(), WakeEvent.create()
    )  # fmt: skip
    fds = (block.fd, collector_bell.fd, learner_bell.fd)
    command = [sys.executable, "-m", __name__, *map(str, fds)]
    control = ControlPage(block.buffer, num_ranks=1, num_collectors=1)
    gate = LearnerGate(control, 0, learner_bell, [collector_bell])
    process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=fds)
    try:
        if not learner_bell.wait(START_TIMEOUT_S):  # it rings when it comes to its first wait
            raise RuntimeError("the other process does not answer")
        yield gate
    finally:
        control.host.set(HostWord.STOP, Stop.LEAVE)
        collector_bell.ring()
        process.wait(START_TIMEOUT_S)


def main(control_fd: int, collector_fd: int, learner_fd: int) -> None:
    """The other process."""
    control = ControlPage(SharedBlock.attach(control_fd).buffer, num_ranks=1, num_collectors=1)
    gate = CollectorGate(control, 0, WakeEvent(collector_fd), [WakeEvent(learner_fd)])
    env_steps = 0
    while gate.wait_turn(env_steps, env_steps, env_steps.__lt__) is Turn.STEP:
        env_steps += 1


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
