"""Threads on a clock that moves only while all of them sleep: one runs at a time, in an order that never changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class Stopped(Exception):
    """Raised in every simulated thread at the end of the simulation."""


@dataclass(eq=False)
class Sleeper:
    """A thread that sleeps until an instant, or until a condition holds."""

    until_ns: int
    is_true: Callable[[], bool] | None
    turn: threading.Event = field(default_factory=threading.Event)


class SimulatedThreads:
    """Runs functions as threads; `now_ns`, `sleep` and `wait` are what the machine would give them."""

    def __init__(self) -> None:
        self._now_ns, self._sleepers, self._is_over = 0, list[Sleeper](), False
        self._idle = threading.Event()

    def now_ns(self) -> int:
        """The current instant."""
        return self._now_ns

    def sleep(self, ns: int) -> None:
        """Blocks the calling thread for that long; other threads run meanwhile."""
        self._block(Sleeper(self._now_ns + ns, None))

    def wait(self, is_true: Callable[[], bool]) -> None:
        """Blocks the calling thread until a condition holds."""
        if not is_true():
            self._block(Sleeper(0, is_true))

    def _block(self, sleeper: Sleeper) -> None:
        if not self._is_over:
            self._sleepers.append(sleeper)
            self._idle.set()
            sleeper.turn.wait()
        if self._is_over:
            raise Stopped

    def run(self, functions: list[Callable[[], None]], is_over: Callable[[], bool]) -> None:
        """Runs all of them until `is_over`; raises what one of them raised, `RuntimeError` if all wait for ever."""
        errors: list[BaseException] = []

        def guarded(function: Callable[[], None]) -> None:
            try:
                self.sleep(0)
                function()
            except Stopped:
                pass
            except BaseException as error:
                errors.append(error)
            finally:
                self._idle.set()

        threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
        for thread in threads:
            self._idle.clear()
            thread.start()
            self._idle.wait()
        try:
            while not errors and not is_over():
                self._resume_next()
        finally:
            self._is_over = True
            for sleeper in self._sleepers:
                sleeper.turn.set()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def _resume_next(self) -> None:
        """Lets one thread run until it blocks again: the first whose condition holds, else the first to wake."""
        ready = [sleeper for sleeper in self._sleepers if sleeper.is_true is not None and sleeper.is_true()]
        timed = [sleeper for sleeper in self._sleepers if sleeper.is_true is None]
        if not ready and not timed:
            raise RuntimeError("every simulated thread waits for a condition that no other one makes true")
        sleeper = ready[0] if ready else min(timed, key=lambda each: each.until_ns)
        self._sleepers.remove(sleeper)
        self._now_ns = max(self._now_ns, sleeper.until_ns)
        self._idle.clear()
        sleeper.turn.set()
        self._idle.wait()
