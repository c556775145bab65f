"""Which deaths of collectors and learners a run survives, and which are a crash loop (ADR 26 and 28)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from offpolicy.children import describe_exit
from offpolicy.errors import EnvFailure, EnvWorkerKilled
from offpolicy.processes.control_page import CollectorWord, ControlWords, RankWord

WINDOW_S = 600.0  # in which more than `max_restarts` deaths of one collector, or of the learners, are a crash loop
LEARNERS = -1  # index of all learner ranks, which die and begin together; no collector has it


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Limits of starting a process again."""

    max_restarts: int = 0  # of one collector, or of the learners, within `WINDOW_S`
    on_error: str = "raise"  # restart: an environment that raised is survived too


NO_RESTARTS = RestartPolicy()


class Death(NamedTuple):
    """One death of a process."""

    at_s: float
    env_steps: int  # of the run when it was noticed
    cause: str
    who: str  # the process, or "it" where there is only one that it can have been


class Restarts:
    """Remembers the deaths of the collectors of one host, or of its learners, which count as one."""

    def __init__(self, policy: RestartPolicy, elapsed_s: Callable[[], float]) -> None:
        self._policy, self._elapsed_s = policy, elapsed_s
        self._deaths: dict[int, list[Death]] = {}
        self.total = 0  # deaths, those before the window among them

    def is_survivable(self, code: int, error: Mapping[str, Any], *, has_begun: bool) -> bool:
        """True if the run goes on after an exit with this code and message, while there are restarts left."""
        if self._policy.max_restarts == 0:
            return False
        kind = error.get("error")
        if kind == EnvFailure.__name__:
            return self._policy.on_error == "restart" and has_begun
        return kind == EnvWorkerKilled.__name__ or (kind is None and code < 0)

    def is_learner_survivable(self, code: int, error: Mapping[str, Any]) -> bool:
        """True if the run goes on after such an end of a learner: a death by a signal, never an error of the code."""
        return self._policy.max_restarts > 0 and code < 0 and not error

    def add(self, index: int, code: int, error: Mapping[str, Any], env_steps: int, who: str = "it") -> Death:
        """Remembers a death of collector `index`, or of the learners; returns it."""
        cause = str(error.get("text") or describe_exit(code))
        death = Death(self._elapsed_s(), env_steps, cause.splitlines()[0], who)
        self.total += 1
        since_s = death.at_s - WINDOW_S
        self._deaths[index] = [old for old in self._deaths.get(index, ()) if old.at_s >= since_s] + [death]
        return death

    def crash_loop(self, index: int) -> str | None:
        """Returns the deaths of `index` in words if they are too many; None if it may be started again."""
        deaths = self._deaths.get(index, [])
        if len(deaths) <= self._policy.max_restarts:
            return None
        causes = "; ".join(f"at env step {death.env_steps:,} {death.who} {_verb(death.cause)}" for death in deaths)
        who = "it" if len({death.who for death in deaths}) == 1 else "they"
        return f"crash loop: {who} died {len(deaths)} times within {WINDOW_S / 60:g} minutes: {causes}"

    def number(self, index: int) -> str:
        """Returns the number of this restart of `index` within the window, and how many there may be."""
        return f"restart {len(self._deaths.get(index, ()))} of at most {self._policy.max_restarts}"


@dataclass(frozen=True, slots=True)
class LearnerRestarts:
    """How the learners are started again after one of them has died (ADR 28)."""

    deaths: Restarts  # they may outlive a supervisor
    # Payload to continue from the newest checkpoint, and why not from a newer one. Raises `CheckpointError`.
    renew: Callable[[], tuple[Mapping[str, Any], Sequence[str]]]
    keeps_others: bool  # False: all processes end, to begin again under another supervisor


def _verb(cause: str) -> str:
    return cause if cause.startswith(("was ", "exited ")) else f"failed: {cause}"


def clear_collector_words(words: ControlWords) -> None:
    """Writes the words of a collector that is dead, in its place, for the one that takes over."""
    words.set(CollectorWord.PROGRESS, 0)  # it starts: it has the time of a start
    words.set(CollectorWord.IS_WAITING, 0)
    words.set(CollectorWord.IS_SAVING, 0)
    words.bump(CollectorWord.RESTARTS)


def clear_rank_words(ranks: Sequence[ControlWords]) -> None:
    """Writes the words of learner ranks that are dead, in their place, for those that begin again.

    A snapshot that was going on is given up: the collectors continue. Counts stay, or they would go back.
    """
    for words in ranks:
        words.set(RankWord.PROGRESS, 0)
        words.set(RankWord.IS_WAITING, 0)
    ranks[0].set(RankWord.SNAPSHOT_RELEASE, ranks[0].get(RankWord.SNAPSHOT_REQUEST))
