"""The ends of a life that `docs/reliability.md` names for what was done to it: exit code, culprit and cause."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults import Fault

CHILDREN = ("learner", "collector", "evaluator")
STEP_TIMEOUT_S = 5.0  # env.step_timeout_s of every scene
LOAD_S = 3.0  # that a loaded machine may add to a standstill
STARTS = ("run_dir.", "file.", "disk.fsync", "memory.allocate")  # sites that a start passes by
IN_WORDS = re.compile(
    r"offpolicy: (?P<role>supervisor|learner|collector|evaluator) \d+ \(pid \d+\) failed at env step (?P<steps>[\d,]+):"
    r" (?P<cause>\S.*)"
)


class Hit(NamedTuple):
    """A signal that was sent to a process of the run: "child" as role where it had no name yet."""

    number: int
    role: str
    pause_s: float = 0.0  # of SIGSTOP


@dataclass(frozen=True, slots=True)
class End:
    """The end of one life: exit code, output, and what was done to it.

    `fired` are the injected faults that happened, `hits` the signals; `is_supervisor_hit`: it was killed, or ended on
    purpose. `early` are the signals that came to the supervisor while it imported. `options` are the run's.
    """

    code: int
    stdout: str
    stderr: str
    fired: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()
    early: frozenset[int] = frozenset()
    is_supervisor_hit: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def last_line(self) -> str:
        """The last line on stderr."""
        return (self.stderr.rstrip().splitlines() or [""])[-1]

    @property
    def faults(self) -> list[Fault]:
        """The faults that happened."""
        return [Fault.parse(text) for text in self.fired]

    @property
    def has_lost_output(self) -> bool:
        """True if the console refused a line."""
        return any(fault.site == "console.write" and hasattr(errno, fault.action) for fault in self.faults)

    @property
    def is_announced(self) -> bool:
        """True if the run directory was claimed and named."""
        return "run directory:" in self.stdout

    @property
    def max_restarts(self) -> int:
        """How many deaths the run survives."""
        return int(self.options.get("runner.max_restarts", 4))

    @property
    def deaths(self) -> int:
        """How many processes of the run were killed at most."""
        by_fault = sum(fault.action == "kill" and fault.role in CHILDREN for fault in self.faults)
        return by_fault + sum(hit.number == signal.SIGKILL and hit.role in (*CHILDREN, "child") for hit in self.hits)

    def standstill_s(self, role: str) -> float:
        """For how long the processes of a role were made to stand still, in all."""
        by_fault = sum(fault.argument / 1000 for fault in self.faults if (fault.action, fault.role) == ("delay", role))
        return by_fault + sum(hit.pause_s for hit in self.hits if hit.role in (role, "child"))


class Named(NamedTuple):
    """An end that the documents name: exit code, who may be the culprit, and what its cause says."""

    code: int
    roles: tuple[str, ...] = ()  # () where no process has failed
    cause: str = ""  # a regular expression


def named_ends(end: End) -> Iterator[Named]:
    """All ends that the documents name for what was done."""
    yield Named(0)
    yield from _of_signals(end)
    for fault in end.faults:
        yield from _of_fault(end, fault)
    if end.deaths > end.max_restarts:
        cause = "^crash loop: " if end.max_restarts else "killed by SIGKILL"
        yield Named(70 if end.max_restarts else 1, CHILDREN, cause)
    for role in CHILDREN:
        if end.standstill_s(role) > STEP_TIMEOUT_S - LOAD_S:
            yield Named(70, (role,), HUNG)


HUNG = r"no progress for|waited for|did not finish within|lost rank"


def _of_signals(end: End) -> Iterator[Named]:
    """A stop is asked of the supervisor; a child does nothing about the signals of the run."""
    stops = {hit.number for hit in end.hits if hit.role == "supervisor"}
    if signal.SIGINT in stops:
        yield Named(130)
    if stops & {signal.SIGTERM, signal.SIGHUP}:
        yield Named(143)
    yield from (Named(-number) for number in end.early)


def _of_fault(end: End, fault: Fault) -> Iterator[Named]:
    role = fault.role or ""
    if fault.action == "exit" and role in CHILDREN:  # by itself: it is no death by a signal, and not survived
        yield Named(1, (role,), f"exited with code {fault.argument}")
    elif fault.action == "hang" and role in CHILDREN:
        yield Named(70, (role,), HUNG)
    elif hasattr(errno, fault.action):
        text = re.escape(os.strerror(getattr(errno, fault.action)))
        if fault.site.startswith(STARTS) and "learner 0: " not in end.stdout:
            yield Named(2, (), text)
        if fault.site == "spawn":
            yield Named(1, ("supervisor", *CHILDREN), f"cannot be started: {text}")
        elif fault.site == "memory.allocate":
            yield Named(1, CHILDREN, text)
        else:
            yield Named(74, ("supervisor", "learner", "collector"), text)
