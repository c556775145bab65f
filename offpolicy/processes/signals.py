"""Signals: those that end a command before its run, those that a run keeps, and none in its children.

It imports almost nothing, so that a command can use it before everything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVE_SIGNAL = signal.SIGUSR1  # save a checkpoint now, and go on
RUN_SIGNALS = (*STOP_SIGNALS, SAVE_SIGNAL)  # the supervisor's; the other processes of a run do nothing about them

Handler: TypeAlias = Callable[[int, FrameType | None], Any]  # Any: ignored
_clean_ups: list[Callable[[], object]] = []


def stop_code(number: int) -> int:
    """Returns the exit code of a command that a stop signal has ended."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED


def handle_signals(numbers: Sequence[signal.Signals], handler: Handler) -> dict[signal.Signals, Any]:
    """Installs a handler and returns those before it. A signal ignored at entry (nohup, `cmd &`) stays ignored."""
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


# -- before a run -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupts_exit() -> Iterator[None]:
    """Lets a stop signal end the process at once, with no traceback, where nothing is open that must be closed.

    A `KeyboardInterrupt` would be swallowed by libraries that the start calls, and SIGTERM would leave what it has
    started. Where a signal is ignored or handled by the caller, nothing changes.
    """
    replaced = (signal.default_int_handler, signal.SIG_DFL, _exit)
    before = handle_signals([number for number in STOP_SIGNALS if signal.getsignal(number) in replaced], _exit)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _exit:  # else the run has ended, and ignores them from there on
                signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"offpolicy: interrupted\n")
    for clean_up in reversed(_clean_ups):
        with contextlib.suppress(Exception):
            clean_up()
    os._exit(stop_code(number))


@contextlib.contextmanager
def cleaned_up(clean_up: Callable[[], object]) -> Iterator[None]:
    """Lets a signal that ends the process, see `interrupts_exit`, call `clean_up` first, in the signal's handler."""
    _clean_ups.append(clean_up)
    try:
        yield
    finally:
        _clean_ups.remove(clean_up)


def drop_save_requests() -> None:
    """Lets a SIGUSR1 do nothing until a run has processes that can save: by default it would end the command."""
    if signal.getsignal(SAVE_SIGNAL) is signal.SIG_DFL:
        signal.signal(SAVE_SIGNAL, _do_nothing)


# -- in a run's main process ------------------------------------------------------------------------------------------


class SignalKeeper:
    """The handler of a run's signals: it keeps them until they are taken, or dropped once the run has its outcome.

    `fd` can be read once one has come.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.is_dropping = fd, False
        self._numbers: list[int] = []
        self._raises = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.is_dropping:
            self._numbers.append(number)
            self._raise_for_stop()

    @contextlib.contextmanager
    def stops_raise(self) -> Iterator[None]:
        """Raises `KeyboardInterrupt` in the block for a stop signal that has come, or comes; it stays kept."""
        self._raises = True
        try:
            self._raise_for_stop()
            yield
        finally:
            self._raises = False

    def _raise_for_stop(self) -> None:
        if self._raises and any(number in STOP_SIGNALS for number in self._numbers):
            self._raises = False  # a second one must not interrupt what cleans up
            raise KeyboardInterrupt

    def drop(self) -> None:
        """Drops the signals that have come, and those that will: the run has its outcome."""
        self.is_dropping = True
        self._numbers.clear()

    def take(self) -> list[int]:
        """Returns the signals that have come since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        numbers, self._numbers = self._numbers, []
        return numbers


@contextlib.contextmanager
def signals_kept(*, ends_process: bool = False) -> Iterator[SignalKeeper]:
    """Keeps the run's signals; those that are left at the end of the block go to the handlers before it.

    To block them is not enough: the kernel gives a signal that the main thread blocks to a thread of a library.
    `ends_process`: the process ends with the block. Once dropped, signals are then ignored: an interpreter that is
    being taken down calls no handler of Python's, and would die of them.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    keeper = SignalKeeper(reader)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = handle_signals(RUN_SIGNALS, keeper)
    try:
        yield keeper
    finally:
        is_over = ends_process and keeper.is_dropping
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_over else handler)
        signal.set_wakeup_fd(wakeup_before)
        left = keeper.take()
        os.close(reader)
        os.close(writer)
        for kept in left:
            os.kill(os.getpid(), kept)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Blocks the run's signals. What is started inside inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, RUN_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in its children --------------------------------------------------------------------------------------------------


def leave_signals() -> None:
    """Lets the run's signals, which are the supervisor's, do nothing; SIGTERM ends processes that this one forks.

    By a handler, not by SIG_IGN, which would pass to the programs that an environment starts.
    """
    handle_signals(RUN_SIGNALS, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RUN_SIGNALS)
    os.register_at_fork(after_in_child=_be_terminable)


def _do_nothing(number: int, frame: FrameType | None) -> None: ...


def _be_terminable() -> None:
    """Lets SIGTERM end a process that has inherited `_do_nothing`."""
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
