"""Faults on purpose: `OFFPOLICY_FAULT="site[@role=,rank=,n=]:action[:argument]"`, several joined by `;`.

A site is a line `fault.hit("<site>")` just before a write, rename, send, wait or spawn; `SITES` lists them all. `role`
and `rank` choose the processes, `n` the n-th time that a process comes by (without it: every time). `ACTIONS` lists
what can happen there. With a directory in `OFFPOLICY_FAULT_ONCE` every fault happens once in all processes together,
also in those that are started again, and leaves a file there with its number.

Off, a site is a call that compares a global with None.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from offpolicy.errors import ConfigError

VARIABLE, ONCE_VARIABLE = "OFFPOLICY_FAULT", "OFFPOLICY_FAULT_ONCE"
ROLES = ("supervisor", "learner", "collector", "evaluator")
ACTIONS = ("kill", "hang", "delay:<ms>", "exit:<code>", "<errno>")
_FAULT = re.compile(r"([a-z_.]+)(?:@([a-z0-9=,]+))?:([A-Za-z0-9]+)(?::([0-9]+))?")
_CONDITIONS = ("role", "rank", "n")


class Site(NamedTuple):
    """A place where a fault can be injected."""

    about: str  # what comes next there
    can_refuse: bool = False  # True where the operating system may refuse it, so that an errno is a fault


SITES: Mapping[str, Site] = {
    # files
    "disk.mkdir": Site("a directory of a checkpoint is made", can_refuse=True),
    "disk.write": Site("a block of a checkpoint's file is written", can_refuse=True),
    "disk.link": Site("a file of the last checkpoint gets a name in the next one", can_refuse=True),
    "disk.fsync": Site("a file or a directory is made durable", can_refuse=True),
    "disk.rename": Site("a checkpoint, or what replaces it, gets its name", can_refuse=True),
    "disk.remove": Site("an old checkpoint or a draft is removed", can_refuse=True),
    "file.write": Site("a file is written that will replace another one", can_refuse=True),
    "file.fsync": Site("that file is made durable", can_refuse=True),
    "file.rename": Site("that file gets its name", can_refuse=True),
    "record.write": Site("a line is appended to a file of records", can_refuse=True),
    "record.replace": Site("a record is written over the last one, of the same env step", can_refuse=True),
    "record.mend": Site("superseded lines are moved out of a file of records", can_refuse=True),
    "tensorboard.write": Site("an event is appended", can_refuse=True),
    "wandb.write": Site("the id of the W&B run is written", can_refuse=True),
    "console.write": Site("a line or a frame is shown", can_refuse=True),
    "trace.write": Site("the trace is made readable", can_refuse=True),
    # the run directory
    "run_dir.create": Site("the directory is made", can_refuse=True),
    "run_dir.lock": Site("its lock is taken", can_refuse=True),
    "run_dir.aside": Site("the records of an attempt are moved aside", can_refuse=True),
    "run_dir.latest": Site("`latest` is pointed to the run", can_refuse=True),
    "train_log.trim": Site("the middle of a long `train.log` is overwritten by its end, then cut off", can_refuse=True),
    # a snapshot of several processes
    "snapshot.mkdir": Site("a collector or rank makes the directory of its part", can_refuse=True),
    "snapshot.adopt": Site("the leader moves a file of a part into its draft", can_refuse=True),
    "snapshot.request": Site("the leader asks the collectors for their parts"),
    "snapshot.release": Site("the leader lets the collectors go on"),
    # shared memory
    "memory.allocate": Site("a block is allocated", can_refuse=True),
    "memory.release": Site("memory of old replay rows is given back to the kernel", can_refuse=True),
    "ring.reserved": Site("rows are announced and not yet copied"),
    "ring.copied": Site("rows are copied and not yet revealed"),
    "ring.committed": Site("rows are revealed"),
    "rollout.reserved": Site("a slot of rollouts is taken for writing"),
    "rollout.committed": Site("a rollout is handed over"),
    "rollout.taken": Site("a rollout is copied and given back"),
    "mailbox.cleared": Site("a slot of weights or a report is about to be overwritten"),
    "mailbox.copied": Site("it is overwritten and not yet the newest"),
    "mailbox.published": Site("it is the newest"),
    # messages and waits
    "wake.send": Site("another process is woken"),
    "wake.wait": Site("the process waits to be woken"),
    "message.send": Site("a message goes to the supervisor"),
    "message.read": Site("the supervisor reads messages of a child"),
    "supervisor.wait": Site("the supervisor waits for its children"),
    "supervisor.reap": Site("the supervisor takes note of a child's end"),
    "supervisor.kill": Site("the supervisor kills what is left of its children"),
    # starts
    "spawn": Site("a child is started", can_refuse=True),
    "spawn.spec": Site("the started child gets its specification"),
    "child.start": Site("a child begins, before it imports its part"),
    "video.spawn": Site("the process of an evaluation's video is started", can_refuse=True),
    "video.mkdir": Site("the directory of the videos is made", can_refuse=True),
    "video.remove": Site("an old video is removed", can_refuse=True),
    # learner ranks
    "rank.join": Site("a rank joins the group"),
    "rank.gather": Site("the ranks agree on what comes next"),
    "rank.reduce": Site("the ranks average their gradients"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the variable. None as `role`, `rank` or `n` means any."""

    site: str
    action: str
    argument: int
    role: str | None = None
    rank: int | None = None
    n: int | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Reads one fault. Raises `ConfigError`."""
        match = _FAULT.fullmatch(text)
        if match is None:
            raise ConfigError(f"{VARIABLE}: got {text!r}, allowed site[@role=,rank=,n=]:action[:argument]")
        site, conditions, action, argument = match.groups()
        if site not in SITES:
            raise ConfigError(f"{VARIABLE}: got site {site!r}, allowed one of {', '.join(SITES)}")
        _check_action(site, action, argument)
        chosen = _conditions(conditions or "")
        rank, n = (int(chosen[name]) if name in chosen else None for name in ("rank", "n"))
        return cls(site, action, int(argument or 0), chosen.get("role"), rank, n)

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


def _check_action(site: str, action: str, argument: str | None) -> None:
    takes_argument = action in ("delay", "exit")
    is_known = takes_argument or action in ("kill", "hang") or action in errno.errorcode.values()
    if not is_known or takes_argument != (argument is not None):
        given = action if argument is None else f"{action}:{argument}"
        raise ConfigError(f"{VARIABLE}: got action {given!r}, allowed {', '.join(ACTIONS)}")
    if action in errno.errorcode.values() and not SITES[site].can_refuse:
        allowed = ", ".join(ACTIONS[:-1])
        raise ConfigError(f"{VARIABLE}: got {site}:{action}, allowed {allowed}: {site} is nothing that can be refused")


def _conditions(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(",") if text)
    pairs = {name: value for name, _, value in parts}
    wrong = [
        name for name, value in pairs.items() if name not in _CONDITIONS or (name != "role" and not value.isdigit())
    ]
    if wrong or pairs.get("role", ROLES[0]) not in ROLES:
        raise ConfigError(f"{VARIABLE}: got @{text}, allowed role={'|'.join(ROLES)}, rank=<number>, n=<number>")
    return pairs


class Plan:
    """The faults of one process, by site."""

    def __init__(self, faults: Mapping[int, Fault], once_dir: str | None) -> None:
        """`faults` by their number in the variable."""
        self._faults, self._once_dir = faults, once_dir
        self._sites = frozenset(fault.site for fault in faults.values())
        self._visits: Counter[str] = Counter()

    def hit(self, site: str) -> None:
        """Counts the visit and does what is due at it."""
        if site not in self._sites:
            return
        self._visits[site] += 1
        for number, fault in self._faults.items():
            if fault.site == site and fault.n in (None, self._visits[site]) and self._is_first(number):
                fault.do()

    def _is_first(self, number: int) -> bool:
        """True unless the fault has happened before in any process, which counts only with a directory for it."""
        if self._once_dir is None:
            return True
        try:
            os.close(os.open(os.path.join(self._once_dir, str(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        return True


_plan: Plan | None = None


def hit(site: str) -> None:
    """Does what `OFFPOLICY_FAULT` wants at this site of this process; nothing without it. May raise `OSError`."""
    if _plan is not None:
        _plan.hit(site)


def arm(role: str, rank: int = 0, environ: Mapping[str, str] = os.environ) -> None:
    """Reads the faults of this process from the environment. Raises `ConfigError`; the supervisor warns of them."""
    global _plan
    text = environ.get(VARIABLE, "")
    faults = dict(enumerate(Fault.parse(part.strip()) for part in text.split(";") if part.strip()))
    mine = {
        number: fault for number, fault in faults.items() if fault.role in (None, role) and fault.rank in (None, rank)
    }
    _plan = Plan(mine, environ.get(ONCE_VARIABLE)) if mine else None
    if faults and role == ROLES[0]:
        sys.stderr.write(f"offpolicy: warning: {VARIABLE}={text} injects faults into this run\n")
