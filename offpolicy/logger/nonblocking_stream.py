"""A stdout, or stderr, that nobody has to read: a write to it never waits.

A full pipe, a pager, Ctrl-S and a stalled ssh stop whoever writes to them. That must not be the supervisor, which
answers signals and looks after the processes of a run. So a thread writes; there is one only while there is something
to write.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from typing import IO, TextIO, cast

from offpolicy import fault

MOST_BYTES = 1 << 20  # that wait to be written; beyond them the oldest texts are left out
PATIENCE_S = 5.0  # without a byte that is read, after which the end of a run waits no longer


def nonblocking(stream: TextIO) -> TextIO:
    """Returns a stream that writes to the file of `stream` and never waits; `stream` itself where it has no file."""
    try:
        has_file = isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0  # a notebook's stream is no wrapper
    except Exception:  # in memory, or closed; or of what a program has wrapped
        has_file = False
    return cast("TextIO", NonBlockingStream(stream)) if has_file else stream


def is_behind(stream: IO[str]) -> bool:
    """True if not all that was written to a stream has been taken yet."""
    return isinstance(stream, NonBlockingStream) and stream.is_writing


def drain(stream: IO[str]) -> None:
    """Waits until all that was written to a stream is taken, or nobody has read for `PATIENCE_S`."""
    if isinstance(stream, NonBlockingStream):
        stream.drain()


class NonBlockingStream:
    """The file of a text stream, written by a thread, in whole texts and in their order."""

    def __init__(self, stream: TextIO) -> None:
        self.encoding = stream.encoding
        self._stream, self._fd = stream, stream.fileno()
        self._texts: deque[bytes] = deque()
        self._num_bytes = self._num_left_out = self._num_taken = 0
        self._error: Exception | None = None
        self._is_given_up = False  # nobody has read for `PATIENCE_S`
        self._changed = threading.Condition()
        self.is_writing = False  # there is a thread, so there is something to write

    def write(self, text: str) -> int:
        """Hands a text to the thread. Raises the error with which an earlier one was refused."""
        content = text.encode(self.encoding, "replace")
        with self._changed:
            if self._error is not None:
                raise self._error
            self._texts.append(content)
            self._num_bytes += len(content)
            while self._num_bytes > MOST_BYTES and len(self._texts) > 1:
                self._num_bytes -= len(self._texts.popleft())
                self._num_left_out += 1
            if not self.is_writing:
                self._start()
        return len(text)

    def flush(self) -> None:
        """Does nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        """True for a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Returns the descriptor of the file."""
        return self._fd

    def drain(self) -> None:
        """Waits until all is written, or nobody has read for `PATIENCE_S`: then no later call waits either."""
        with self._changed:
            while self.is_writing and not self._is_given_up:
                before = self._num_taken
                self._changed.wait(PATIENCE_S)
                self._is_given_up = self._num_taken == before

    def _start(self) -> None:
        self.is_writing = True
        try:
            threading.Thread(target=self._write_all, name="console", daemon=True).start()
        except RuntimeError:  # the machine has no thread left; the next text tries again
            self.is_writing = False

    def _write_all(self) -> None:
        """Runs in the thread. It ends with the last text, or with the first that is refused."""
        ready = select.poll()
        try:
            ready.register(self._fd, select.POLLOUT)
            while (content := self._next()) is not None:
                if ready.poll(0):  # else it would wait, and hold what the end of the interpreter waits for
                    self._stream.flush()  # what a callback has printed before
                while content:
                    fault.hit("console.write")
                    written = os.write(self._fd, content[: select.PIPE_BUF])
                    content = content[written:]
                    self._num_taken += written  # what is read of a long text counts, too
        except Exception as error:  # nobody will read any more, or it was closed; or of what a program has wrapped
            with self._changed:
                self._error, self.is_writing = error, False
                self._texts.clear()
                self._took()

    def _next(self) -> bytes | None:
        """Returns what is to be written next; None, and the thread ends, once all is written."""
        with self._changed:
            self._took()
            if not self._texts:
                self.is_writing = False
                return None
            content = self._texts.popleft()
            self._num_bytes -= len(content)
            left_out, self._num_left_out = self._num_left_out, 0
        notice = f"offpolicy: {left_out} lines are left out here: nobody read them\n" if left_out else ""
        return notice.encode() + content

    def _took(self) -> None:
        """Notes that something was taken."""
        self._num_taken += 1
        self._is_given_up = False
        self._changed.notify()
