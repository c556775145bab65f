"""Stand-ins that tests of several packages use."""

from __future__ import annotations


class FakeClock:
    """A clock that moves only when it is advanced."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The current instant."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Moves the clock forward by `ns` nanoseconds."""
        self._now_ns += ns
