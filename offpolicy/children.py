"""Child processes: their signals, the death of their parent, their output, and exit codes in words."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, BinaryIO, NoReturn, TypeAlias, TypeVar

from offpolicy.start import STOP_SIGNALS

ORPHANED = 71  # exit code of a process whose parent was dead already
SAVE_SIGNAL = signal.SIGUSR1  # save a checkpoint now, and go on
RUN_SIGNALS = (*STOP_SIGNALS, SAVE_SIGNAL)  # the supervisor's; the other processes of a run do nothing about them
# Rounds in which a thread of libgomp waits for the others before it gives its core away. By default it spins for
# milliseconds, and where another program has the core of one of them an update takes several times as long. With a
# third of these rounds a thread often sleeps between two of the products of an update, and updates are slower by 20 %.
SPIN_ROUNDS = 3_000
# For a learner that tries its numbers of threads (ADR 45). Its threads stay awake in the serial parts of an update, and
# in a collector's turn that is short.
LONG_SPIN_ROUNDS = 60_000
CALL_THREAD = "call within"  # name of the threads of `call_within`
GRACE_S = 5.0  # for each thread or process that an environment left running, until nobody waits for it any longer
OUTPUT_LINES = 20  # last lines of a failed process's output that its error quotes

T = TypeVar("T")
Handler: TypeAlias = Callable[[int, FrameType | None], Any]  # Any: ignored

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
NAME_CHARACTERS = 15  # that the kernel keeps of a thread's name


def with_spin_rounds(environment: Mapping[str, str], rounds: int) -> dict[str, str]:
    """Returns the environment of a process whose OpenMP threads spin for so many rounds, unless it says otherwise.

    OpenMP reads it when torch is loaded.
    """
    chosen = environment.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    return dict(environment) if chosen else {**environment, "GOMP_SPINCOUNT": str(rounds)}


def module_path() -> list[str]:
    """Returns where Python looks for modules here, for another process: what is no text in `sys.path` it ignores."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def scratch_file() -> BinaryIO:
    """Returns an empty file without a name, in memory: /tmp may be full, or read-only."""
    return os.fdopen(os.memfd_create("offpolicy-call"), "w+b")


def tail_of(output: BinaryIO) -> str:
    """Returns the last `OUTPUT_LINES` lines of a file that a process has printed to."""
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").rstrip().splitlines()[-OUTPUT_LINES:])


def call_within(timeout_s: float, call: Callable[[], T]) -> T:
    """Calls a function in a thread; returns its result, or raises its error.

    Raises TimeoutError if it has not ended after `timeout_s`. Its thread then stays: torch's calls of a store whose
    process is frozen never end, whatever deadline they were given. Such a process must end by `leave_now`.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=work, name=CALL_THREAD, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, f"no thread for a call: {error}") from error
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or "no answer") from error


def is_held(grace_s: float = 0.0) -> bool:
    """True if the interpreter would wait, perhaps for ever, for threads or processes that were left running.

    They are those of `call_within`, and what an environment has started and not ended. The latter have `grace_s` to end
    by themselves, as what writes a last file does.
    """
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})  # they end when they are told
    threads = [one for one in threading.enumerate() if one is not threading.main_thread() and one not in pools]
    if any(one.name == CALL_THREAD for one in threads):
        return True
    processes = sys.modules.get("multiprocessing.process")
    left = [*(one for one in threads if not one.daemon), *(processes.active_children() if processes else ())]
    for one in left:
        one.join(grace_s)
        if one.is_alive():
            return True
    return False


def leave_now(code: int) -> NoReturn:
    """Ends this process without taking its interpreter down: it has failed, or is held.

    A thread that is still in a call of a library would abort the process there, and hide its exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, or what an environment has made of the stream
            stream.flush()
    os._exit(code)


def resolve(target: str) -> Callable[..., Any]:
    """Returns the function named `module:function`."""
    module, name = target.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def describe_exit(code: int | None) -> str:
    """Returns how a process ended, by its return code: "was killed by SIGKILL" or "exited with code 3"."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent `parent_pid` dies, however that happens (Linux).

    The kernel watches the parent's *thread* that started this process. Elsewhere than on Linux nothing happens.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the request; the signal will never come
        os._exit(ORPHANED)


def show_name(name: str) -> None:
    """Shows this name in `ps` and `top`."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:NAME_CHARACTERS])


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Blocks the run's signals. A child started inside inherits that, and unblocks them once it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, RUN_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handle_signals(numbers: Sequence[signal.Signals], handler: Handler) -> dict[signal.Signals, Any]:
    """Installs a handler and returns those before it. A signal ignored at entry (nohup, `cmd &`) stays ignored."""
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


class SignalKeeper:
    """A handler that keeps the signals which have come until somebody takes them, or nobody needs them any more."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._raises = False
        self.is_dropping = False

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
        """Forgets the signals that have come, and those that will: the run has its outcome."""
        self.is_dropping = True
        self._numbers.clear()

    def take(self) -> list[int]:
        """Returns the signals that have come since the last call."""
        numbers, self._numbers = self._numbers, []
        return numbers


@contextlib.contextmanager
def signals_queued(*, ends_process: bool = False) -> Iterator[SignalKeeper]:
    """Keeps the run's signals for whoever handles them next, or until the end of the block.

    To block them is not enough: the kernel gives a signal that the main thread blocks to a thread of a library.
    `ends_process`: the process ends with the block. Once they are dropped, the signals are then ignored from there on:
    an interpreter that is being taken down calls no handler of Python's, and would die of them.
    """
    keeper = SignalKeeper()
    before = handle_signals(RUN_SIGNALS, keeper)
    try:
        yield keeper
    finally:
        is_over = ends_process and keeper.is_dropping
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_over else handler)
        for kept in keeper.take():
            os.kill(os.getpid(), kept)


def leave_signals() -> None:
    """Does nothing about the run's signals, which are the supervisor's; those that came while held are dropped.

    A handler that does nothing, not SIG_IGN: that would pass to the programs an environment starts, and stay with them.
    Processes that it forks can be ended by SIGTERM again.
    """
    handle_signals(RUN_SIGNALS, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RUN_SIGNALS)


def _do_nothing(*_: object) -> None:
    """The handler of signals that are the supervisor's."""


def _be_terminable() -> None:
    """Lets SIGTERM end a process that was forked off: it has inherited that this one does nothing about it."""
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_be_terminable)
