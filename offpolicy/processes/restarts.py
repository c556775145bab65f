"""Which deaths of a collector a run survives, and which are a crash loop (ADR 26)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from offpolicy.children import describe_exit
from offpolicy.errors import EnvFailure, EnvWorkerKilled
from offpolicy.processes.control_page import CollectorWord, ControlWords

WINDOW_S = 600.0  # in which more than `max_restarts` deaths of one collector are a crash loop


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Limits of starting a collector again."""

    max_restarts: int = 0  # of one collector within `WINDOW_S`
    on_error: str = "raise"  # restart: an environment that raised is survived too


NO_RESTARTS = RestartPolicy()


class Death(NamedTuple):
    """One death of a collector."""

    at_s: float
    env_steps: int  # of the run when it was noticed
    cause: str


class Restarts:
    """Remembers the deaths of the collectors of one host."""

    def __init__(self, policy: RestartPolicy, elapsed_s: Callable[[], float]) -> None:
        self._policy, self._elapsed_s = policy, elapsed_s
        self._deaths: dict[int, list[Death]] = {}

    def is_survivable(self, code: int, error: Mapping[str, Any], *, has_begun: bool) -> bool:
        """True if the run goes on after an exit with this code and message, while there are restarts left."""
        if self._policy.max_restarts == 0:
            return False
        kind = error.get("error")
        if kind == EnvFailure.__name__:
            return self._policy.on_error == "restart" and has_begun
        return kind == EnvWorkerKilled.__name__ or (kind is None and code < 0)

    def add(self, index: int, code: int, error: Mapping[str, Any], env_steps: int) -> Death:
        """Remembers a death of collector `index`; returns it."""
        cause = str(error.get("text") or describe_exit(code))
        death = Death(self._elapsed_s(), env_steps, cause.splitlines()[0])
        since_s = death.at_s - WINDOW_S
        self._deaths[index] = [old for old in self._deaths.get(index, ()) if old.at_s >= since_s] + [death]
        return death

    def crash_loop(self, index: int) -> str | None:
        """Returns the deaths of collector `index` in words if they are too many; None if it may be started again."""
        deaths = self._deaths.get(index, [])
        if len(deaths) <= self._policy.max_restarts:
            return None
        causes = "; ".join(f"at env step {death.env_steps:,} it {_verb(death.cause)}" for death in deaths)
        return f"crash loop: it died {len(deaths)} times within {WINDOW_S / 60:g} minutes: {causes}"

    def count(self, index: int) -> int:
        """Returns the deaths of collector `index` within the window."""
        return len(self._deaths.get(index, ()))


def _verb(cause: str) -> str:
    return cause if cause.startswith(("was ", "exited ")) else f"failed: {cause}"


def clear_words(words: ControlWords) -> None:
    """Writes the words of a collector that is dead, in its place, for the one that takes over."""
    words.set(CollectorWord.PROGRESS, 0)  # it starts: it has the time of a start
    words.set(CollectorWord.IS_WAITING, 0)
    words.bump(CollectorWord.RESTARTS)
