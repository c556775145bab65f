"""A pipe without a reader, for what must not wait for a reader."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from offpolicy.output import drain, nonblocking

LIMIT_S = 60.0


class FullPipe:
    """A pipe that is full of dots, and a stream over its end for writing."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.num_dots = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.num_dots += os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        self.file = os.fdopen(writer, "w")
        self.stream = nonblocking(self.file)
        self.said = b""
        self.pause_s = 0.0  # of the reader after each block
        self._thread = threading.Thread(target=self._read)

    def read(self) -> None:
        """Begins to read, until the end for writing is closed."""
        self._thread.start()

    def _read(self) -> None:
        while block := os.read(self.reader, 4096):
            self.said += block
            time.sleep(self.pause_s)

    def close(self) -> str:
        """Returns all that was written after the dots."""
        if self._thread.ident is None:
            self.read()
        drain(self.stream)
        self.file.close()
        self._thread.join(LIMIT_S)
        os.close(self.reader)
        return self.said[self.num_dots :].decode()
