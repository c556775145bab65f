"""Cumulative reports in a mailbox: the reader subtracts two of them, so a missed one costs freshness, never truth.

A report is JSON, so a rank can read that of another host; a type of `offpolicy.types` is its name with its fields.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from offpolicy import types
from offpolicy.processes.mailbox import Mailbox
from offpolicy.types import CollectorTotals, EvaluatorTotals, LearnerTotals

Totals = TypeVar("Totals", CollectorTotals, EvaluatorTotals, LearnerTotals)
Bytes: TypeAlias = NDArray[np.uint8]
REPORT_BYTES = 131_072  # of a process's report at most; nearly all are the counts of its histograms


def pack(value: Any, size: int = REPORT_BYTES) -> Bytes:  # Any: tuples of numbers and of types of `offpolicy.types`
    """Returns a value as bytes [size], so that one collective can gather those of all ranks."""
    text = json.dumps(_plain(value), separators=(",", ":"))
    return np.frombuffer(bytearray(text.encode().ljust(size)), np.uint8)


def unpack(data: Bytes) -> Any:
    """The inverse of `pack`; tuples outside of a type are lists."""
    return json.loads(data.tobytes(), object_hook=_revived)


def _plain(value: Any) -> Any:
    if type(value).__module__ == types.__name__:
        return {"type": type(value).__name__, "fields": [_plain(getattr(value, each)) for each in value.__match_args__]}
    if isinstance(value, np.ndarray):
        return {"array": b64encode(value.tobytes()).decode(), "dtype": value.dtype.str, "shape": value.shape}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _revived(found: dict[str, Any]) -> Any:
    if "array" in found:
        return np.frombuffer(b64decode(found["array"]), found["dtype"]).reshape(found["shape"])
    if "type" in found:
        fields = (tuple(each) if isinstance(each, list) else each for each in found["fields"])
        return getattr(types, found["type"])(*fields)
    return found


class Reports(Generic[Totals]):
    """The newest reports of some processes, over a block of `nbytes(...)` bytes: of all ranks, or of one process."""

    def __init__(self, buffer: memoryview, num_processes: int = 1) -> None:
        self._size = num_processes * REPORT_BYTES
        self._mailbox = Mailbox(buffer, self._size)

    @staticmethod
    def nbytes(num_processes: int = 1) -> int:
        """Returns the bytes of the block."""
        return Mailbox.nbytes(num_processes * REPORT_BYTES)

    @property
    def version(self) -> int:
        """Number of times that they were published so far."""
        return self._mailbox.version

    def publish(self, *totals: Totals) -> None:
        """Makes these the newest: those of the ranks by global rank."""
        self._mailbox.publish(pack(totals, self._size))

    def read(self) -> tuple[Totals, ...]:
        """Returns the newest reports; none before the first."""
        data = np.empty(self._size, np.uint8)
        return tuple(unpack(data)) if self._mailbox.read(data) else ()
