"""A process that was killed and does not end: the kernel holds it, as one that waits for a dead disk."""

from __future__ import annotations

import subprocess


class HeldProcess:
    """Takes the place of a `Popen` or of a process of multiprocessing. To wait for it without a limit fails."""

    pid, returncode, exitcode = 2**30, None, None

    def __init__(self) -> None:
        self.limits_s: list[float] = []  # of the waits for it
        self.was_killed, self.num_signals = False, 0

    def kill(self) -> None:
        self.was_killed = True

    def send_signal(self, number: int) -> None:
        self.was_killed = True
        self.num_signals += 1

    def poll(self) -> None:
        return None

    def is_alive(self) -> bool:
        return True

    def join(self, timeout_s: float | None = None) -> None:
        assert timeout_s is not None
        self.limits_s.append(timeout_s)

    def wait(self, timeout_s: float | None = None) -> int:
        self.join(timeout_s)
        raise subprocess.TimeoutExpired("held", timeout_s or 0.0)
