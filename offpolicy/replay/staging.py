"""Batches on their way to the device: page-locked host blocks, a copy stream, slots packed ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ConfigError
from offpolicy.protocols import DeviceSync
from offpolicy.replay.sampler import LEAST_SHARE, Bounds, Draw, Sampler
from offpolicy.saved_fields import Fields
from offpolicy.timing.ledger import NULL_SPAN


def host_block(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, key: str, instead: str) -> Tensor:
    """Returns an uninitialised block on the host, page-locked if `device` copies from it.

    Raises `ConfigError` naming the configuration `key`, the bytes, and what to write `instead`.
    """
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
    except RuntimeError as error:
        size = nbytes_text(dtype.itemsize * math.prod(shape))
        kind = "page-locked " if device.type == "cuda" else ""
        raise ConfigError(f"{key}: the host refuses {size} of {kind}memory; {instead} ({error})") from error


class StagingBlock:
    """A host block that must not change before its last copy is done."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.copied: torch.Event | None = None


def staging_blocks(
    count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, key: str, instead: str
) -> list[StagingBlock]:
    """Returns blocks of a shape, to be used in turn. Raises as `host_block`."""
    return [StagingBlock(values) for values in host_block((count, *shape), dtype, device, key, instead)]


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


class RequestLimits(NamedTuple):
    """The largest request of a batch source."""

    num_batches: int
    num_rings: int
    env_steps: int


@dataclass(frozen=True, slots=True)
class Request:
    """The batches that a slot is to hold: its bounds and the sampler's stream determine their rows."""

    num_batches: int
    bounds: Bounds | None  # None: those of the instant at which `env_steps` transitions exist
    env_steps: int
    taken: int = 0  # batches handed out before the run was resumed

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        bounds = self.bounds and {
            "first": list(self.bounds.first), "last": list(self.bounds.last), "share": self.bounds.share,
        }  # fmt: skip
        return {"num_batches": self.num_batches, "bounds": bounds, "env_steps": self.env_steps, "taken": self.taken}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], limits: RequestLimits) -> Request:
        """The inverse of `to_json`. Raises `CheckpointError` for a request that no source within `limits` makes.

        One that waits for more env steps than a resumed run is now to do waits for all of those.
        """
        fields = Fields("requests", data)
        num_batches = fields.count("num_batches", limits.num_batches)
        if not num_batches:
            raise fields.refused("num_batches", "at least 1")
        bounds = None if fields.value("bounds") is None else _bounds(fields.fields("bounds"), limits.num_rings)
        env_steps = min(fields.count("env_steps"), limits.env_steps)
        return cls(num_batches, bounds, env_steps, fields.count("taken", num_batches))


def _bounds(fields: Fields, num_rings: int) -> Bounds:
    """Returns saved bounds with at least one row."""
    firsts, lasts = fields.counts("first", num_rings), fields.counts("last", num_rings)
    if any(map(int.__gt__, firsts, lasts)) or firsts == lasts:
        raise fields.refused("first", f"less than last, {lasts}")
    share = fields.number("share") if "share" in fields else 1.0
    if not LEAST_SHARE <= share <= 1.0:
        raise fields.refused("share", f"a number from {LEAST_SHARE} to 1")
    return Bounds(tuple(firsts), tuple(lasts), share)


class Slot:
    """Room for the batches of one request: `staging` on the host, `rows` on the device; one block on the CPU.

    Its states in turn: free, submitted, packed, in use. Only one thread uses it at any time.
    """

    def __init__(self, staging: Tensor, rows: Tensor) -> None:
        self._staging, self._rows = staging, rows  # [U, B, W]
        self.request = Request(0, None, 0)
        self.random_before: dict[str, Any] | None = None  # the sampler's stream before these batches were drawn
        self.last_use: torch.Event | None = None  # when the learner is done with the previous batches
        self.taken = 0  # batches handed out
        self._draw = Draw(np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def num_left(self) -> int:
        """Number of batches not handed out yet."""
        return self.request.num_batches - self.taken

    @property
    def is_staged(self) -> bool:
        """True if packed batches must be copied to the device."""
        return self._rows is not self._staging

    def accept(self, request: Request) -> None:
        """Starts over with the batches of a request."""
        self.request, self.taken, self.random_before = request, request.taken, None

    def pack(self, sampler: Sampler, bounds: Bounds) -> None:
        """Draws and gathers the requested batches."""
        packed = self._staging[: self.request.num_batches]
        self._draw = sampler.fill(packed.numpy().reshape(-1, packed.shape[-1]), bounds)

    def copy_to_device(self, copy_stream: CopyStream) -> torch.Event | None:
        """Starts the copy of the packed batches; returns the mark of its end."""
        count = self.request.num_batches
        return copy_stream.copy(self._rows[:count], self._staging[:count], after=self.last_use)

    def hand_out(self, count: int) -> tuple[Tensor, Draw]:
        """Returns the next batches [count, B, W], valid until the slot is free again, and their rows."""
        begin, end = self.taken, self.taken + count
        self.taken = end
        per_batch = len(self._draw.position) // self.request.num_batches
        rows = slice(begin * per_batch, end * per_batch)
        return self._rows[begin:end], Draw(self._draw.ring[rows], self._draw.position[rows])

    def drop_rest(self) -> None:
        """Discards the batches that are not handed out yet."""
        self.taken = self.request.num_batches
