"""The deaths that a run survives: how many there may be, and the sentence about too many."""

from __future__ import annotations

from collections.abc import Callable

from offpolicy.errors import CrashLoopError

WINDOW_S = 600.0  # in which more than `runner.max_restarts` deaths are a crash loop


class Restarts:
    """Counts the restarts of a run, or of the environments of a collector."""

    def __init__(self, limit: int, elapsed_s: Callable[[], float]) -> None:
        """`limit`: `runner.max_restarts`; 0 where no death is survived."""
        self.limit, self._elapsed_s = limit, elapsed_s
        self._deaths: list[tuple[float, str]] = []  # within the window: when, and what has happened
        self.total = 0

    def add(self, death: str) -> str:
        """Counts a death; returns the number of its restart in words. Raises `CrashLoopError` if there are too many."""
        now_s = self._elapsed_s()
        self._deaths = [(at_s, text) for at_s, text in self._deaths if at_s >= now_s - WINDOW_S] + [(now_s, death)]
        if len(self._deaths) > self.limit:
            causes = "; ".join(text for _, text in self._deaths)
            raise CrashLoopError(
                f"crash loop: {len(self._deaths)} deaths within {WINDOW_S / 60:g} minutes, more than"
                f" runner.max_restarts={self.limit}: {causes}"
            )
        self.total += 1
        return f"restart {len(self._deaths)} of at most {self.limit}"
