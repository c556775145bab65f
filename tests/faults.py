"""Faults on purpose: `OFFPOLICY_FAULT="site[@role=,rank=,n=]:action[:argument]"`, several joined by `;`.

A site is a line `fault.hit("<site>")` of the library. `role` and `rank` choose the processes, `n` the n-th time that a
process comes by (without it: every time). An action is kill, hang, delay:<ms>, exit:<code> or the name of an errno.
With a directory in `OFFPOLICY_FAULT_ONCE` every fault happens once in all processes together, also in those that are
started again, and leaves a file there with its number. Every process of a test loads this file (`tests/conftest.py`).
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

VARIABLE, ONCE_VARIABLE = "OFFPOLICY_FAULT", "OFFPOLICY_FAULT_ONCE"
# The operating system may refuse what comes next there, so that an errno is a fault.
REFUSABLE = (
    *("disk.mkdir", "disk.write", "disk.link", "disk.fsync", "disk.rename", "disk.remove", "file.write"),
    *("file.fsync", "file.rename", "record.write", "record.mend", "tensorboard.write"),
    *("wandb.write", "console.write", "trace.write", "run_dir.create", "run_dir.lock", "run_dir.aside"),
    *("run_dir.latest", "train_log.trim", "snapshot.mkdir", "snapshot.adopt", "memory.allocate", "memory.release"),
    *("spawn", "video.spawn", "video.mkdir", "video.remove"),
)
SITES = (
    *REFUSABLE,
    *("snapshot.request", "snapshot.release", "ring.reserved", "ring.copied", "ring.committed", "rollout.reserved"),
    *("rollout.committed", "rollout.taken", "mailbox.cleared", "mailbox.copied", "mailbox.published"),
    *("message.read", "supervisor.reap"),
    *("child.start", "rank.join", "rank.gather", "rank.reduce"),
)
_CONDITIONS = r"(?:@(?:role=([a-z]+),?)?(?:rank=([0-9]+),?)?(?:n=([0-9]+))?)?"
_FAULT = re.compile(rf"([a-z_.]+){_CONDITIONS}:([A-Za-z]+)(?::([0-9]+))?")


class Fault(NamedTuple):
    """One fault of the variable. None as `role`, `rank` or `n` means any."""

    site: str
    role: str | None
    rank: int | None
    n: int | None
    action: str
    argument: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Reads one fault."""
        match = _FAULT.fullmatch(text.strip())
        assert match is not None, text
        assert match[1] in SITES, text
        rank, n = (int(match[group]) if match[group] else None for group in (3, 4))
        return cls(match[1], match[2], rank, n, match[5], int(match[6] or 0))

    def do(self) -> None:
        """Kills, hangs, delays or ends this process, or raises `OSError`."""
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                while True:
                    time.sleep(3600.0)
            case "delay":
                time.sleep(self.argument / 1000)
            case "exit":
                os._exit(self.argument)
            case name:
                number: int = getattr(errno, name)
                raise OSError(number, f"{os.strerror(number)} (injected at {self.site})")


def plan_of(role: str, rank: int, text: str | None = None) -> Callable[[str], None]:
    """Returns what the fault points of a process call; `text` in place of the variable."""
    text = os.environ.get(VARIABLE, "") if text is None else text
    faults = [(number, Fault.parse(part)) for number, part in enumerate(filter(None, text.split(";")))]
    faults = [(number, one) for number, one in faults if one.role in (None, role) and one.rank in (None, rank)]
    visits = Counter[str]()

    def hit(site: str) -> None:
        visits[site] += 1
        for number, one in faults:
            if one.site == site and one.n in (None, visits[site]) and _is_first(number):
                one.do()

    return hit


def _is_first(number: int) -> bool:
    """True unless the fault has happened before in any process, which counts only with a directory for it."""
    if (directory := os.environ.get(ONCE_VARIABLE)) is None:
        return True
    try:
        os.close(os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True
