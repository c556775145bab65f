"""The multiprocessing context of environment workers: nothing of it has a name in `/dev/shm`.

The standard one makes semaphores with names for its queues and arrays, and removes them when the run ends in order or
when only a part of it is killed. If all processes are killed at once, as the kernel does with a container that is out
of memory, they stay until the next boot. Gymnasium uses the queue for the errors of its workers only, and never takes
the lock of its arrays.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.context
import socket
from typing import Any

from offpolicy.children import signals_blocked

NAME = "offpolicy_spawn"  # that Gymnasium asks multiprocessing for
LONGEST = (
    8_192  # characters of an error and of its traceback, twelve bytes each at most: so much a socket takes at once
)


class ErrorQueue:
    """Errors from workers to their parent, each one message of a socket: whole, or not sent at all."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._writer.setblocking(False)
        self._text = ""  # of the last error

    def put(self, error: tuple[int, Any, Any, str]) -> None:
        """Sends index, type, value and traceback, as text; nothing where those of other workers fill the socket."""
        index, kind, value, trace = error
        text = f"{getattr(kind, '__name__', kind)}: {value}"
        with contextlib.suppress(BlockingIOError):  # a worker that waits here never ends; the first errors name it all
            self._writer.send(json.dumps([index, text[:LONGEST], trace[-LONGEST:]]).encode())

    def get(self) -> tuple[int, type[Exception], str, str]:
        """Returns the next error, as a `RuntimeError`. Raises the last one where those of other workers did not fit.

        A worker sends its error before it says that it has failed: what has not come by then does not come.
        """
        try:
            message = self._reader.recv(32 * LONGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise RuntimeError(self._text) from None
        index, self._text, trace = json.loads(message)
        return index, RuntimeError, self._text, trace.replace("%", "%%")  # Gymnasium formats it for its log

    def close(self) -> None:
        """Closes both ends in this process."""
        self._reader.close()
        self._writer.close()


class NoLock:
    """A lock that nobody takes."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Returns at once."""
        return True

    def release(self) -> None:
        """Does nothing."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


class WorkerProcess(multiprocessing.context.SpawnProcess):
    """A worker that begins with the run's signals blocked: one that is sent to all processes would end it."""

    def start(self) -> None:
        """Starts it."""
        with signals_blocked():
            super().start()


class WorkerContext(multiprocessing.context.SpawnContext):
    """Spawned workers, never forked: this process has threads (torch), and a forked child inherits their locks."""

    Process = WorkerProcess

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802  # the name that multiprocessing gives it
        """Returns a queue without semaphores."""
        return ErrorQueue()

    def Array(self, typecode_or_type: Any, size_or_initializer: Any, *, lock: Any = True) -> Any:  # noqa: N802
        """Returns shared numbers whose lock is none."""
        no_lock: Any = NoLock()  # Any: typeshed knows the locks of multiprocessing only
        return super().Array(typecode_or_type, size_or_initializer, lock=no_lock)


def worker_context() -> str:
    """Returns the name under which multiprocessing knows the context: Gymnasium takes a name only."""
    contexts: dict[str, Any] = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
    contexts.setdefault(NAME, WorkerContext())
    return NAME
