"""The signals of a run: which have come, what they ask for, and a descriptor that wakes the supervisor for them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

from offpolicy.children import RUN_SIGNALS, SAVE_SIGNAL, SignalKeeper, handle_signals
from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

SECOND_S = 0.5  # a signal so soon after the first is the same one: launchers forward what their child has got too


class RunSignals:
    """Handles the run's signals while it is entered, but for those that were ignored at entry.

    The first Ctrl-C, TERM or HUP calls `on_stop`. A second Ctrl-C calls `on_kill`: one that comes later than
    `SECOND_S`, once the screen was given the text that the run stops. `on_save` is called for every `SAVE_SIGNAL`.
    """

    def __init__(
        self,
        elapsed_s: Callable[[], float],
        *,
        on_stop: Callable[[], None],
        on_kill: Callable[[], None],
        on_save: Callable[[], object],
    ) -> None:
        self._elapsed_s, self._on_stop, self._on_kill, self._on_save = elapsed_s, on_stop, on_kill, on_save
        self._first_s: float | None = None
        self._is_shown = False
        self.exit_code = 0  # that the first stop signal asks for

    def __enter__(self) -> RunSignals:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._old_handlers = handle_signals(RUN_SIGNALS, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RUN_SIGNALS)  # those that came while held are taken now
        for keeper in self._old_handlers.values():
            for number in keeper.take() if isinstance(keeper, SignalKeeper) else ():
                self._on_signal(number, None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self._reader.close()
        self._writer.close()

    @property
    def fd(self) -> int:
        """A descriptor that is readable once a signal has come."""
        return self._reader.fileno()

    def drain(self) -> None:
        """Makes `fd` unreadable until the next signal."""
        self._reader.recv(64)

    def show(self, shown: Callable[[], None]) -> None:
        """Calls `shown` if the first stop signal has come and nobody has said so yet."""
        if self._first_s is not None and not self._is_shown:
            shown()
            self._is_shown = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == SAVE_SIGNAL:
            self._on_save()
            return
        now_s = self._elapsed_s()
        if self._first_s is None:
            self._first_s = now_s
            self.exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
            self._on_stop()
        elif number == signal.SIGINT and self._is_shown and now_s - self._first_s >= SECOND_S:
            self._on_kill()
