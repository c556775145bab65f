"""Demonstrations in the batches: in every batch the rows of the replay come first, then a fixed number of those."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.errors import ConfigError
from offpolicy.protocols import DeviceSync
from offpolicy.replay.sampler import Bounds, Draw, UniformSampler
from offpolicy.replay.staging import CopyStream, nbytes_text, staging_blocks
from offpolicy.seeding import generator
from offpolicy.types import Float32

Int64 = NDArray[np.int64]


class EndlessRows:
    """Hands out rows without end, each once per cycle over all ranks, every cycle in another order.

    The order is a function of seed, path and cycle, so it is not saved; `path` tells one start of a run from another.
    Rank r of R takes every R-th row of the order, from number r on: ranks never take the same row in a cycle. Raises
    `ValueError` if there are no rows.
    """

    def __init__(self, rows: Float32, seed: int, rank: int = 0, num_ranks: int = 1, path: Sequence[int] = ()) -> None:
        if not len(rows):
            raise ValueError("there are no rows to hand out")
        self.rows = rows  # [M, W]
        self.digest = hashlib.sha256(rows.tobytes()).hexdigest()[:16]  # identifies the rows
        self.taken = 0  # rows handed out by this rank
        self._seed, self._rank, self._num_ranks, self._path = seed, rank, num_ranks, tuple(path)
        self._orders: dict[int, Int64] = {}  # orders in use, by cycle

    @property
    def cycle(self) -> int:
        """The cycle of this rank's next row, from 0."""
        number: int = self._place(self.taken) // len(self.rows)
        return number

    def take(self, count: int) -> Int64:
        """Returns the indices of the next rows. [count]. Draws the order of each cycle that begins."""
        needed = range(self.cycle, self._place(self.taken + max(count, 1) - 1) // len(self.rows) + 1)
        for number in set(needed) - self._orders.keys():
            self._orders[number] = generator(self._seed, "demos", number, *self._path).permutation(len(self.rows))
        self._orders = {number: self._orders[number] for number in needed}
        place = self._place(np.arange(self.taken, self.taken + count))
        cycle, offset = np.divmod(place, len(self.rows))
        index = np.empty(count, np.int64)
        for number, order in self._orders.items():
            here = cycle == number
            index[here] = order[offset[here]]
        self.taken += count
        return index

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another object continues."""
        return {"taken": self.taken, "path": list(self._path)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned."""
        self.taken, self._path, self._orders = state["taken"], tuple(state["path"]), {}

    def _place(self, taken: Any) -> Any:  # Any: a number, or an array of them
        """Returns the position of this rank's row number `taken` in the cycles laid end to end."""
        return taken * self._num_ranks + self._rank


@dataclass(frozen=True, slots=True)
class DemoShare:
    """The demonstrations of one rank, and their number of rows in each of its batches."""

    rows: EndlessRows
    per_batch: int
    batch_size: int
    description: str  # for the run's header

    @property
    def identity(self) -> list[str | int]:
        """Values that must be equal for a saved state to continue with the same rows."""
        return [self.rows.digest, self.per_batch]

    def describe(self) -> str:
        """Returns the end of a source's line in the run's header."""
        return f"; {self.per_batch} of {self.batch_size} rows of every batch from {self.description}"


class MixedSampler:
    """A sampler that adds demonstrations to every batch. They have no age: it returns the draws from the replay."""

    def __init__(self, replay: UniformSampler, share: DemoShare) -> None:
        self._replay, self._share = replay, share
        self.bounds = replay.bounds

    def fill(self, out: Float32, bounds: Bounds | None = None) -> Draw:
        """Fills `out` [U * B, W]; returns what was drawn from the replay, U times the rest of B."""
        demos, width = self._share.rows, out.shape[1]
        num_batches, num_fresh = len(out) // self._share.batch_size, self._share.batch_size - self._share.per_batch
        batches = out.reshape(num_batches, self._share.batch_size, width)
        fresh = np.empty((num_batches * num_fresh, width), np.float32)
        draw = self._replay.fill(fresh, bounds)
        batches[:, :num_fresh] = fresh.reshape(num_batches, num_fresh, width)
        index = demos.take(num_batches * self._share.per_batch)
        batches[:, num_fresh:] = demos.rows[index].reshape(num_batches, self._share.per_batch, width)
        return draw

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another sampler fills the same batches."""
        return {**self._replay.state(), "demos": self._share.rows.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self._replay.set_state(state)
        self._share.rows.set_state(state["demos"])

    def describe(self) -> str:
        """Returns the end of a source's line in the run's header."""
        return self._replay.describe() + self._share.describe()


Sampler = UniformSampler | MixedSampler


class ResidentDemos:
    """The demonstrations on the device: their rows are copied there once, and the indices of each batch.

    Raises `ConfigError` if the device or the host has no room.
    """

    def __init__(self, share: DemoShare, max_batches: int, device: torch.device, device_sync: DeviceSync) -> None:
        self.share = share
        rows = share.rows.rows
        try:
            self._rows = torch.from_numpy(rows).to(device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            size = nbytes_text(rows.nbytes)
            raise ConfigError(f"replay.demos: {size} of demonstrations do not fit on {device} ({error})") from error
        self._copy_stream = CopyStream(device, device_sync)
        shape = (max_batches * share.per_batch,)
        self._blocks = cycle(staging_blocks(2, shape, torch.int64, device, "replay.demos", "lower replay.demo_share"))
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._gathered = self._copy_stream.learner_mark()

    def draw(self, num_batches: int) -> Tensor:
        """Returns the next rows [U, D, W] on the device."""
        count = num_batches * self.share.per_batch
        block = next(self._blocks)
        self._copy_stream.block_until(block.copied)
        block.values[:count].numpy()[:] = self.share.rows.take(count)
        block.copied = self._copy_stream.copy(self._index[:count], block.values[:count], after=self._gathered)
        self._copy_stream.stall_learner_stream(block.copied)
        rows = self._rows.index_select(0, self._index[:count])
        self._gathered = self._copy_stream.learner_mark()
        return rows.view(num_batches, self.share.per_batch, -1)
