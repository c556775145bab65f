"""Batches of which a stated share are demonstrations: the rows of the replay first, then those, in every batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ConfigError
from offpolicy.protocols import Fence
from offpolicy.replay.endless import EndlessRows
from offpolicy.replay.sampler import Bounds, Draw, UniformSampler
from offpolicy.replay.staging import CopyStream, nbytes_text, staging_blocks
from offpolicy.types import Float32


@dataclass(frozen=True, slots=True)
class Share:
    """The demonstrations of one rank, and how many of the rows of its batches they are."""

    rows: EndlessRows
    per_batch: int
    batch_size: int
    told: str  # what they are, for the run's header

    @property
    def identity(self) -> list[str | int]:
        """What must be equal for a saved state to go on with the same rows."""
        return [self.rows.digest, self.per_batch]

    def describe(self) -> str:
        """The end of a source's line in the run's header."""
        return f"; {self.per_batch} of {self.batch_size} rows of every batch from {self.told}"


class MixedSampler:
    """A `Sampler` that leaves room for demonstrations in every batch. They have no age: its draws are the replay's."""

    def __init__(self, replay: UniformSampler, share: Share) -> None:
        self._replay, self._share = replay, share
        self.bounds, self.has_written = replay.bounds, replay.has_written

    def prepare(self, num_batches: int) -> None:
        """Have the order of the demonstrations at hand: a new cycle is drawn here and not while gathering."""
        self._share.rows.prepare(num_batches * self._share.per_batch)

    def fill(self, out: Float32, bounds: Bounds | None = None) -> Draw:
        """Fill `out` [U * B, W]; returns what was drawn from the replay, U times the rest of B."""
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
        """That of both."""
        return {**self._replay.state(), "demos": self._share.rows.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._replay.set_state(state)
        self._share.rows.set_state(state["demos"])

    def describe(self) -> str:
        """The end of a source's line in the run's header."""
        return self._share.describe()


class ResidentDemos:
    """The demonstrations on the device: which rows are next travels there, the rows themselves did once.

    Raises `ConfigError` if the device or the host has no room.
    """

    def __init__(self, share: Share, max_batches: int, device: torch.device, fence: Fence) -> None:
        self.share = share
        rows = share.rows.rows
        try:
            self._rows = torch.from_numpy(rows).to(device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            size = nbytes_text(rows.nbytes)
            raise ConfigError(f"replay.demos: {size} of demonstrations do not fit on {device} ({error})") from error
        self._lane = CopyStream(device, fence)
        shape = (max_batches * share.per_batch,)
        self._blocks = cycle(staging_blocks(shape, torch.int64, device, "replay.demos", "lower replay.demo_share"))
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._gathered = self._lane.learner_mark()

    def prepare(self, num_batches: int) -> None:
        """Have the order of the demonstrations at hand."""
        self.share.rows.prepare(num_batches * self.share.per_batch)

    def draw(self, num_batches: int) -> Tensor:
        """The next rows [U, D, W] on the device."""
        count = num_batches * self.share.per_batch
        block = next(self._blocks)
        self._lane.block_until(block.copied)
        block.values[:count].numpy()[:] = self.share.rows.take(count)
        block.copied = self._lane.copy(self._index[:count], block.values[:count], after=self._gathered)
        self._lane.hold_learner(block.copied)
        rows = self._rows.index_select(0, self._index[:count])
        self._gathered = self._lane.learner_mark()
        return rows.view(num_batches, self.share.per_batch, -1)
