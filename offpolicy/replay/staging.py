"""Batches on their way to the device: page-locked host blocks and a copy stream."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from offpolicy.protocols import DeviceSync
from offpolicy.timing.ledger import NULL_SPAN


def host_block(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns an uninitialised block on the host, page-locked if `device` copies from it."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Queues a copy, which the host does not wait for: from pageable memory it would wait for the stream."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


class StagingBlock:
    """A host block that must not change before its last copy is done."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.copied: torch.Event | None = None


def nbytes_text(nbytes: int) -> str:
    """Returns a number of bytes as text: 880 KB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= size:
            number = nbytes / size
            return f"{number:.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"
    return f"{nbytes} B"


class CopyStream:
    """Copies to the device beside the learner's stream; only `block_until` makes the host wait for them.

    A mark is a point in the device's work. On the CPU it is None: everything is done when a call returns.
    Every copy is issued inside the context `timer`.
    """

    def __init__(
        self, device: torch.device, device_sync: DeviceSync, timer: AbstractContextManager[None] = NULL_SPAN
    ) -> None:
        self._device, self._device_sync, self._timer = device, device_sync, timer
        self._stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types there
            if device.type == "cuda"
            else None
        )

    def enter_thread(self) -> None:
        """Makes the device the current one of the calling thread, or torch would open the first GPU beside it."""
        if self._stream is not None:
            torch.cuda.set_device(self._device)

    def as_current(self) -> AbstractContextManager[Any]:  # Any: torch has no types there
        """Returns a context in which this stream is the thread's current one."""
        return NULL_SPAN if self._stream is None else torch.cuda.stream(self._stream)

    def learner_mark(self) -> torch.Event | None:
        """Returns the end of the work queued on the learner's stream so far; called on the learner's thread."""
        if self._stream is None:
            return None
        mark: torch.Event = torch.cuda.current_stream(self._device).record_event()
        return mark

    def copy(self, target: Tensor, source: Tensor, after: torch.Event | None) -> torch.Event | None:
        """Copies once `after` is reached; returns the mark of the copy's end, until when `source` must not change."""
        if self._stream is None:
            target.copy_(source)
            return None
        if after is not None:
            self._stream.wait_event(after)
        with self.as_current(), self._timer:
            target.copy_(source, non_blocking=True)
        mark: torch.Event = self._stream.record_event()
        return mark

    def stall_learner_stream(self, until: torch.Event | None) -> None:
        """Makes the learner's stream wait for `until` before what it is given from now on; the host does not wait."""
        if until is not None:
            torch.cuda.current_stream(self._device).wait_event(until)

    def block_until(self, mark: torch.Event | None) -> None:
        """Waits, on the host, until a mark is reached."""
        if mark is None or mark.query():
            return
        with self.as_current():
            torch.cuda.current_stream(self._device).wait_event(mark)
            self._device_sync.wait()
