"""Sources of batches. A runner picks one; the loop does not know which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from offpolicy.data.layout import RowLayout
from offpolicy.data.pace import Pace
from offpolicy.data.ring import Ring
from offpolicy.protocols import StepGate
from offpolicy.types import Batches, Float32


class UniformSampler:
    """Draws rows of a ring uniformly, with replacement, from its own random stream."""

    def __init__(self, ring: Ring, rng: np.random.Generator, guard: int) -> None:
        self._ring, self.rng, self._guard = ring, rng, guard
        self.samples = 0
        self.age_sum = 0.0  # rows written after the sampled one, summed over samples

    def fill(self, out: Float32) -> None:
        """Fill `out` [n, W] with committed rows that were intact throughout the copy."""
        index = self._draw(len(out))
        stale = ~self._ring.read(index, out)
        while stale.any():  # recycled by the writer meanwhile: draw those again
            redrawn = self._draw(int(stale.sum()))
            rows = np.empty((len(redrawn), out.shape[1]), dtype=out.dtype)
            intact = self._ring.read(redrawn, rows)
            holes = np.flatnonzero(stale)[intact]
            out[holes], index[holes] = rows[intact], redrawn[intact]
            stale[holes] = False
        self.samples += len(out)
        self.age_sum += float(self._ring.committed * len(out) - index.sum())

    def _draw(self, count: int) -> NDArray[np.int64]:
        newest, oldest = self._ring.committed, self._ring.oldest
        # Rows about to be recycled are not drawn while there are plenty of others: a redraw would be likely.
        guard = self._guard if newest - oldest > 4 * self._guard else 0
        return self.rng.integers(oldest + (guard if oldest else 0), newest, count)


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What a replay source is told."""

    layout: RowLayout
    pace: Pace
    batch_size: int
    normalize_obs: bool
    device: torch.device


class ReplaySource:
    """Samples on the learner's thread, where the ring lives, and copies to the device if that is elsewhere."""

    def __init__(self, spec: SourceSpec, ring: Ring, sampler: UniformSampler, gate: StepGate, updates: int) -> None:
        self._spec, self._ring, self.sampler, self._gate = spec, ring, sampler, gate
        self.updates = updates  # including those of the batch handed out last
        self.fresh_from = 0  # the first row whose observation the normaliser has not seen
        self._fresh: Float32 | None = None
        is_pinned = spec.device.type == "cuda"
        shape = (spec.pace.max_updates, spec.batch_size, spec.layout.width)
        self._staging = torch.empty(shape, dtype=torch.float32, pin_memory=is_pinned)

    @property
    def env_steps(self) -> int:
        """Transitions collected so far."""
        return self._gate.env_steps

    def wait_ready(self) -> None:
        """Block until the next update is due, or the run is stopping."""
        self._gate.wait_for(min(self._spec.pace.earliest(self.updates), self._spec.pace.total))

    def is_exhausted(self) -> bool:
        """Whether the env steps are spent and every update they call for is done."""
        return self._spec.pace.is_spent(self._gate.env_steps, self.updates)

    def wait_batch(self) -> None:
        """Nothing is prefetched: there is nothing to wait for."""

    def sample(self) -> Float32:
        """Rows [U, B, W] for the updates that are due now."""
        num_updates = max(self._spec.pace.due(self._gate.env_steps, self.updates), 1)
        rows: Float32 = self._staging[:num_updates].numpy()
        self.sampler.fill(rows.reshape(-1, self._spec.layout.width))
        self.updates += num_updates
        if self._spec.normalize_obs:
            self._gather_fresh()
        return rows

    def to_device(self, rows: Float32) -> Batches:
        """The batches on the learner's device, and the observations the normaliser has not seen yet."""
        block = torch.from_numpy(rows).to(self._spec.device)
        updates = tuple(self._spec.layout.split(batch) for batch in block)
        fresh_obs = None if self._fresh is None else torch.from_numpy(self._fresh).to(self._spec.device)
        return Batches(updates, fresh_obs)

    def _gather_fresh(self) -> None:
        stop = self._ring.committed
        self._fresh = self._spec.layout.obs_of(self._ring.read_range(self.fresh_from, stop))
        self.fresh_from = stop

    def release(self) -> None:
        """Grant the collector what the next iteration needs, and the lead of the mode."""
        self._gate.grant(self._spec.pace.granted(self.updates))
