"""`replay.source=resident`: a copy of the rings on the learner's device, sampled there.

Only the rows that are new since the last batch are copied, on a copy stream, through host blocks, two per ring, so that
the rings themselves need not be page-locked. The order of the device's work ensures that a batch is gathered after the
rows it may contain were copied, and before they are overwritten. The host waits for a copy only when it needs its block
again, and for the age of the samples only when that is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offpolicy.errors import ConfigError
from offpolicy.processes.handshake import LearnerGate
from offpolicy.replay.demonstrations import Demonstrations
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import RateLimitedSource, SourceSpec
from offpolicy.replay.ring import row_spans
from offpolicy.replay.row_layout import IS_TERMINATED, OFFSET_SHIFT
from offpolicy.replay.sampler import share_of_transitions
from offpolicy.replay.staging import CopyStream, StagingBlock, host_block, nbytes_text, to_device
from offpolicy.timing.device_timer import DeviceTimer
from offpolicy.timing.phases import DeviceSpan

if TYPE_CHECKING:
    from offpolicy.distributed.world import World

STAGING_ROWS = 4096


def resident_nbytes(num_rings: int, capacity: int, width: int) -> int:
    """Returns the bytes on the device of the copies of `num_rings` rings of `capacity` float32 rows [W = width]."""
    return 4 * num_rings * capacity * width


class Mirror:
    """The rows [first, last) of one ring on the device; row i is at `i % capacity` of the store."""

    def __init__(self, ring: ReplayRing, store: Tensor) -> None:
        self._ring, self._store = ring, store  # [capacity, W]
        self.first = self.last = 0
        self.copied = 0  # rows below are copied, and are what they will be

    def load(self, block: StagingBlock, stop: int, copy_stream: CopyStream, after: torch.Event | None) -> None:
        """Copies the next rows below `stop`, as many as the block holds, into the store once `after` is reached."""
        room = min(len(block.values), len(self._store))
        start = min(max(self.copied, self._ring.oldest), stop)
        end = min(start + room, stop)
        intact = min(self._ring.copy_range(start, block.values[: end - start].numpy()), end)
        filled = intact - start
        for target in row_spans(self._store, intact, end):
            block.copied = copy_stream.copy(target, block.values[filled : filled + len(target)], after)
            filled += len(target)
        if intact > self.copied:
            self.first = intact  # the rows in between were recycled before they could be copied
        self.first, self.copied = max(self.first, end - len(self._store)), end


def staging_blocks(
    count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Iterator[StagingBlock]:
    """Returns blocks of a shape, to be used in turn."""
    return cycle(map(StagingBlock, host_block((count, *shape), dtype, device)))


class ResidentSampler:
    """Draws rows, with replacement and equally likely, from the copies of `rings` (of one capacity) on `device`.

    A copy has room for `replay.capacity` transitions where episodes have 64 steps or more; else the oldest are left
    out. `timer` is that of the learner's device. Raises `ConfigError` if the device has no room.
    """

    def __init__(
        self,
        rings: Sequence[ReplayRing],
        device: torch.device,
        seed: int,
        timer: DeviceTimer,
        demos: Demonstrations | None = None,
    ) -> None:
        self.rings, self._device, self._demos = tuple(rings), device, demos
        self._demo_rows = None if demos is None else torch.from_numpy(demos.rows).to(device)
        self._draw_timer = timer.span(DeviceSpan.SAMPLE)
        self._store = self._open_store()  # [rings, capacity, slot_width]
        self._share = 1.0  # of the rows that are transitions; nearly, while they are written
        self._mirrors = [Mirror(ring, rows) for ring, rows in zip(rings, self._store, strict=True)]
        self._copy_stream = CopyStream(device, timer, timer.span(DeviceSpan.H2D))
        self._blocks = staging_blocks(2 * len(rings), (STAGING_ROWS, rings[0].width), torch.float32, device)
        # What a draw needs of the rings: see `_describe_rings` for the rows.
        self._host_tables = staging_blocks(2, (3, len(rings)), torch.int64, device)
        self._table = torch.zeros((3, len(rings)), dtype=torch.int64, device=device)
        # When the store and the table are free to be written: first when they are made, then after the last gather.
        self._gathered = self._copy_stream.learner_mark()
        self._generator = torch.Generator(device).manual_seed(seed)
        self.age_sum = torch.zeros((), dtype=torch.float64, device=device)  # in transitions, over `samples`
        self.samples = 0  # rows of the replay drawn
        source = "" if demos is None else demos.description
        self.description = f"{nbytes_text(self._store.nbytes)} on {device}{source}"

    def _open_store(self) -> Tensor:
        shape = len(self.rings), self.rings[0].copied_rows, self.rings[0].width
        try:
            return torch.empty(shape, dtype=torch.float32, device=self._device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            size = nbytes_text(resident_nbytes(*shape))
            raise ConfigError(
                f"replay.source=resident: the copy of the replay needs {size} on {self._device};"
                f" lower replay.capacity, or use replay.source=direct ({error})"
            ) from error

    def _slots(self, index: Tensor) -> Tensor:
        """Returns the slots of the rows `index` in the store of their ring."""
        return index % self._store.shape[1]

    @property
    def num_rows(self) -> int:
        """Rows that can be drawn."""
        return sum(mirror.last - mirror.first for mirror in self._mirrors)

    def refresh(self) -> None:
        """Copies what was committed since the last time. Raises RuntimeError if nothing was ever written."""
        self._load_new()
        while not self.num_rows:  # the writers recycled everything while it was copied
            if not any(ring.committed for ring in self.rings):
                raise RuntimeError("no ring holds a row to sample: the learner started before the collectors")
            self._load_new()
        self._describe_rings()

    def draw(self, num_batches: int, batch_size: int) -> Tensor:
        """Returns batches [U, B, W] on the device; in each of them the demonstrations come last."""
        demos, num_fresh = self._demos, batch_size - (self._demos.per_batch if self._demos else 0)
        with self._draw_timer:  # behind the copies, so that the wait for them is not in it
            rows = self._draw_rows(num_batches * num_fresh).view(num_batches, num_fresh, -1)
            if demos is None or self._demo_rows is None:
                return rows
            index = to_device(torch.from_numpy(demos.take(num_batches)), self._device)
            mixed = self._demo_rows.index_select(0, index).view(num_batches, demos.per_batch, -1)
            return torch.cat([rows, mixed], dim=1)

    def _draw_rows(self, count: int) -> Tensor:
        """Returns rows [count, W] of the replay."""
        # Rows are drawn without the host looking at them, so many that enough of them are transitions: were they ever
        # fewer (8 standard deviations), some would come twice.
        num_drawn = math.ceil((count + 8 * math.sqrt(count) + 32) / self._share)
        ends, shifts, newest = self._table
        position = torch.randint(self.num_rows, (num_drawn,), generator=self._generator, device=self._device)
        ring = torch.bucketize(position, ends, right=True)
        index = position + shifts[ring]
        codes = self._store.view(torch.int32)[ring, self._slots(index), -1]
        num_found = (codes != 0).cumsum(0)
        wanted = torch.arange(count, device=self._device) % num_found[-1].clamp(min=1) + 1
        chosen = torch.searchsorted(num_found, wanted).clamp(max=num_drawn - 1)
        ring, index, codes = ring[chosen], index[chosen], codes[chosen]
        self.samples += count
        self.age_sum += len(self.rings) * self._share * (newest[ring] - index).sum()
        rows = self._batch_rows(ring, index, codes)
        self._gathered = self._copy_stream.learner_mark()
        return rows

    def _batch_rows(self, ring: Tensor, index: Tensor, codes: Tensor) -> Tensor:
        """Returns the rows `index` [n] of the rings `ring` [n] as `ReplayRing.read` does. [n, W]."""
        layout, capacity = self.rings[0].layout, self._store.shape[1]
        slot = self._slots(index)
        following = slot + torch.bitwise_right_shift(codes, OFFSET_SHIFT) * self.rings[0].num_envs
        pairs = torch.stack([slot, following], dim=1) % capacity + (ring * capacity)[:, None]
        slots = self._store.flatten(0, 1).index_select(0, pairs.flatten()).view(len(index), 2, -1)
        if layout.obs_dtype == "float32":
            rows = slots.flatten(1)
        else:
            rows = slots.new_zeros((len(slots), layout.width))
            obs = slots.view(getattr(torch, layout.obs_dtype))[:, :, : layout.obs_dim]
            rows[:, layout.obs], rows[:, layout.next_obs] = obs[:, 0], obs[:, 1]
            rows[:, layout.obs_dim : layout.terminated] = slots[:, 0, layout.obs_words : -1]
        rows[:, layout.terminated] = (codes & IS_TERMINATED).to(torch.float32)
        return rows

    def _load_new(self) -> None:
        for mirror, ring in zip(self._mirrors, self.rings, strict=True):
            stop = ring.committed
            end = ring.end  # read last: what the rows below `stop` refer to lies below it
            while mirror.last < stop and mirror.copied < end:
                block = next(self._blocks)
                self._copy_stream.block_until(block.copied)
                mirror.load(block, end, self._copy_stream, after=self._gathered)
            mirror.last = mirror.copied = stop  # what lies beyond is copied again when it is committed
            mirror.first = min(max(mirror.first, ring.kept_from), stop)
        self._share = share_of_transitions(self.rings)

    def _describe_rings(self) -> None:
        """Copies a table of the rings laid end to end: ends, logical index minus position, rows ever written."""
        block = next(self._host_tables)
        self._copy_stream.block_until(block.copied)
        table, end = block.values.numpy(), 0
        for number, mirror in enumerate(self._mirrors):
            end += mirror.last - mirror.first
            table[:, number] = end, mirror.last - end, mirror.last
        block.copied = self._copy_stream.copy(self._table, block.values, after=self._gathered)
        # Copies are in order: those of the rows come before this one.
        self._copy_stream.stall_learner_stream(block.copied)

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another sampler draws the same rows."""
        demos = {"demos": self._demos.state()} if self._demos else {}
        state = self._generator.get_state().numpy().tobytes().hex()
        return {"device": self._device.type, "generator": state, **demos}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        values = bytearray.fromhex(state["generator"])
        self._generator.set_state(torch.frombuffer(values, dtype=torch.uint8))
        if self._demos:
            self._demos.set_state(state["demos"])


class ResidentSource(RateLimitedSource):
    """Samples on the learner's device, from its copy of the rings."""

    kind = "resident"

    def __init__(
        self, spec: SourceSpec, sampler: ResidentSampler, gate: LearnerGate, steps: World, updates: int
    ) -> None:
        super().__init__(spec, sampler, gate, steps, updates)
        self._sampler = sampler

    def sample(self) -> Tensor:
        """Returns rows [U, B, W], already on the device, for the updates that are due now."""
        num_due = self.num_due
        self._sampler.refresh()
        rows = self._sampler.draw(num_due, self._spec.batch_size)
        self.updates += num_due
        self.gather_fresh()
        return rows

    def describe(self) -> str:
        return f"replay source: resident, {self._sampler.description}"
