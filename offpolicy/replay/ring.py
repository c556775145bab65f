"""The shared-memory ring of rows: one writer, many readers, no lock.

Two counters of rows ever written make it safe. The writer announces (`reserved`), copies, then reveals (`committed`).
A reader draws below `committed`, copies, and afterwards reads `reserved` again: rows below
`reserved - capacity` may have been recycled meanwhile and are drawn again. A third word, the floor, holds the first row
that was written to this buffer, since a restored ring continues the indices of a checkpoint.

Rows are named by their logical index (how many rows were written before them), never by their slot.
Each word is an aligned 8-byte store with a single writer; on x86-64 stores are seen in program order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy import fault

HEADER_BYTES = 128
RESERVED, COMMITTED, FLOOR, WRITTEN, DROPPED = range(5)  # words of the header; the last two are of `replay_ring.py`


class Ring:
    """A ring of rows [capacity, W] over a buffer of `HEADER_BYTES + capacity * W * itemsize` bytes.

    Every row is complete by itself; `ReplayRing` is one whose rows share observations.
    """

    def __init__(self, buffer: memoryview, width: int, dtype: type[np.floating[Any]]) -> None:
        self._words = buffer[:HEADER_BYTES].cast("Q")
        flat: NDArray[Any] = np.frombuffer(buffer, dtype=dtype, offset=HEADER_BYTES)
        self.capacity = flat.size // width
        self.width = width
        self._rows = flat[: self.capacity * width].reshape(self.capacity, width)

    @staticmethod
    def nbytes(capacity: int, width: int, itemsize: int) -> int:
        """Returns the bytes of the buffer of a ring."""
        return HEADER_BYTES + capacity * width * itemsize

    @property
    def committed(self) -> int:
        """Number of rows ever written; every index below it, and not below `oldest`, is readable."""
        return self._words[COMMITTED]

    @property
    def oldest(self) -> int:
        """The lowest index that is certainly intact now."""
        return max(self._words[FLOOR], self._words[RESERVED] - self.capacity)  # no word is negative

    def append(self, rows: NDArray[Any]) -> None:
        """Writes rows [n, W], n <= capacity, and reveals them."""
        start = self._words[COMMITTED]
        self._words[RESERVED] = start + len(rows)
        fault.hit("ring.reserved")
        filled = 0
        for place in self.spans(start, start + len(rows)):
            place[:] = rows[filled : filled + len(place)]
            filled += len(place)
        fault.hit("ring.copied")
        self._words[COMMITTED] = start + len(rows)
        fault.hit("ring.committed")

    def spans(self, start: int, stop: int) -> list[NDArray[Any]]:
        """Returns views of the rows [start, stop) in order: one, or two where they wrap. Not safe from a writer."""
        return row_spans(self._rows, start, stop)

    def copy_range(self, start: int, out: NDArray[Any]) -> int:
        """Copies the rows [start, start + len(out)), at most `capacity` of them, into `out` [n, W].

        Returns the first index that was intact throughout: the rows before it were recycled meanwhile.
        """
        filled = 0
        for rows in self.spans(start, start + len(out)):
            out[filled : filled + len(rows)] = rows
            filled += len(rows)
        return max(start, self.oldest)

    def read_range(self, start: int, stop: int) -> NDArray[Any]:
        """Returns a copy of the rows [start, stop); those recycled before or during the copy are left out."""
        start = max(start, self.oldest)
        rows = np.empty((max(stop - start, 0), self.width), dtype=self._rows.dtype)
        return rows[self.copy_range(start, rows) - start :]


def row_spans(rows: Any, start: int, stop: int) -> list[Any]:  # Any: an array or a tensor [capacity, W], and views
    """Returns views of the rows [start, stop) of a ring in order: one, or two where they wrap."""
    head, length = start % len(rows), stop - start
    first = rows[head : head + length]
    return [first] if len(first) == length else [first, rows[: length - len(first)]]
