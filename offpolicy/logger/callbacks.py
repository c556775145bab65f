"""Callbacks: the caller's own objects, called with what a run reports, beside the supervisor's own work.

Each callback has a thread of the supervisor's process and a queue: one that raises is dropped, one that blocks is left
behind, and neither delays the run. What a callback computes takes the interpreter from the panel and the records, not
from training, which happens in other processes.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from offpolicy.errors import ConfigError
from offpolicy.logger.record import Record
from offpolicy.logger.sinks import cause_of
from offpolicy.timing.clock import MonotonicClock
from offpolicy.types import EvalResult

QUEUE_CALLS = 256  # calls that may wait for a callback; further ones are dropped and counted
SETTLE_S = 5.0  # seconds that the end of a run waits for callbacks
METHODS = ("on_record", "on_episode", "on_evaluation", "on_checkpoint")
NS_PER_S = 1e9


class Callback(Protocol):
    """What is called; a class that inherits from it has a method that does nothing for each that it leaves out."""

    def on_record(self, record: Record) -> None:
        """Gets each record of `metrics.jsonl`: numbers and texts by key."""

    def on_episode(self, record: Record) -> None:
        """Gets each finished episode: the record of `episodes.jsonl`, or that of an evaluation, which has `episode`."""

    def on_evaluation(self, result: EvalResult) -> None:
        """Gets each evaluation, when it has ended."""

    def on_checkpoint(self, path: Path) -> None:
        """Gets the directory of each checkpoint, when it is whole on the disk; old ones are removed later."""


class CallbackThread:
    """One callback and its thread, which ends with `None` in the queue."""

    def __init__(self, callback: Callback, warn: Callable[[str], None]) -> None:
        self.name = name_of(callback)
        self.calls = 0
        self.wall_s = 0.0  # of its thread in its methods; it is no phase of any process that trains
        self.dropped = 0  # calls that were not made: it had failed, or the queue was full
        self.error: str | None = None
        self._callback, self._warn = callback, warn
        # Any: the arguments of calls of one method
        self._queue: queue.Queue[tuple[str, Sequence[Any]] | None] = queue.Queue(QUEUE_CALLS)
        self._is_late = False
        # A daemon: one that blocks stays behind.
        self._thread = threading.Thread(target=self._serve, name="callback", daemon=True)
        self._thread.start()

    def post(self, method: str, arguments: Sequence[Any]) -> None:  # Any: those of the method
        """Queues a call for each argument, as one entry of the queue, or counts them as dropped."""
        if self.error is None and not self._queue.full():
            self._queue.put_nowait((method, arguments))
            return
        self.dropped += len(arguments)
        if self.error is None and not self._is_late:
            self._is_late = True
            self._warn(f"warning: callback {self.name} is behind: {QUEUE_CALLS} calls wait, others are dropped")

    def settle(self, timeout_s: float) -> bool:
        """Waits until every call was made; False if it takes longer."""
        with self._queue.all_tasks_done:
            return self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the thread; one that is blocked in the callback is left behind."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:  # it is blocked; should it return one day, the thread ends all the same
            with contextlib.suppress(queue.Empty, queue.Full):
                self._queue.get_nowait()
                self._queue.put_nowait(None)
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        while (call := self._queue.get()) is not None:
            method, arguments = call
            for argument in arguments:
                if self.error is not None:
                    self.dropped += 1
                    continue
                begin_ns = MonotonicClock.now_ns()
                try:
                    getattr(self._callback, method)(argument)
                except BaseException as error:  # `asyncio.CancelledError` is no `Exception`: it would end the thread
                    self.error = f"{method}: {cause_of(error)}"
                    self._warn(f"warning: callback {self.name} is not called any more in this run: {self.error}")
                self.calls += 1
                self.wall_s += (MonotonicClock.now_ns() - begin_ns) / NS_PER_S
            self._queue.task_done()


class Callbacks:
    """All callbacks of a run. Its methods are called by the supervisor and return at once, but for the last two."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads = [CallbackThread(callback, self._warnings.put) for callback in callbacks]

    def post(self, method: str, *arguments: Any) -> None:  # Any: what the method takes
        """Has a method of all callbacks called with each argument, in turn."""
        for thread in self._threads if arguments else ():
            thread.post(method, copy.deepcopy(arguments))  # a callback may change a record, on its thread

    def take_warnings(self) -> list[str]:
        """Returns the warnings since the last call: each callback has at most one of each kind."""
        return [self._warnings.get_nowait() for _ in range(self._warnings.qsize())]

    def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Waits for the calls that are queued, and warns of a callback that does not return."""
        end_ns = MonotonicClock.now_ns() + int(timeout_s * NS_PER_S)  # the time is that of all
        for thread in self._threads:
            if not thread.settle(max(0.0, (end_ns - MonotonicClock.now_ns()) / NS_PER_S)):
                self._warnings.put(f"warning: callback {thread.name} did not return within {timeout_s:g} s")

    def section(self) -> list[dict[str, Any]]:  # Any: values of summary.json
        """Returns the section `callbacks` of `summary.json`: what each has cost."""
        names = ("name", "calls", "wall_s", "dropped", "error")
        return [{name: getattr(thread, name) for name in names} for thread in self._threads]

    def close(self, timeout_s: float = 0.1) -> None:
        """Ends the threads."""
        for thread in self._threads:
            thread.close(timeout_s)


def name_of(callback: object) -> str:
    """Returns `module:Class` of a callback."""
    return f"{type(callback).__module__}:{type(callback).__qualname__}"


def load_callback(target: str) -> Callback:
    """Returns the callback `module:Name`: an instance of a class, made without arguments, or an object as it is.

    Raises `ConfigError` naming the key `callbacks`, what is wrong and why.
    """
    module, _, name = target.rpartition(":")
    if os.getcwd() not in sys.path:  # a console script has its own directory on the path
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
        callback = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"callbacks: got {target!r}, which cannot be loaded: {cause}") from error
    return checked(callback, target)


def checked(callback: Any, name: str | None = None) -> Callback:  # Any: not checked yet
    """Returns the callback. Raises `ConfigError` if it lacks a method."""
    missing = [method for method in METHODS if not callable(getattr(callback, method, None))]
    if missing:
        lacks = f"{name or name_of(callback)!r}, which has no {', '.join(missing)}"
        raise ConfigError(f"callbacks: got {lacks}; inherit from offpolicy.logger.callbacks.Callback")
    found: Callback = callback
    return found
