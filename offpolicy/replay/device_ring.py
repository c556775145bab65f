"""The ring of the replay on the learner's device, written and sampled there by the learner's own thread.

Counting the episodes that end in a vector step would make the host wait for the device, so each of them is two blocks
of N slots: the transitions, then the observations that they have led to, whose code is zero. The slots are those of
`replay_ring.py`, a row finds its next observation N slots further, and of n-step replay (2 k - 1) N for k steps. The
device's queue keeps the order of what is written and drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.errors import ConfigError
from offpolicy.nets.normalizer import weighted_moments
from offpolicy.processes.handshake import LearnerGate
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import RunningReturns, SourceSpec
from offpolicy.replay.resident_source import Mirror, ResidentSampler, ResidentSource
from offpolicy.replay.ring import COMMITTED, DROPPED, FLOOR, HEADER_BYTES, RESERVED, WRITTEN, row_spans
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, RowLayout
from offpolicy.replay.staging import nbytes_text
from offpolicy.types import Batches, Float32

if TYPE_CHECKING:
    from offpolicy.distributed.world import World


class DeviceRing(ReplayRing):
    """A ring on `device`. Only its counters are in the shared `buffer`, for the supervisor.

    Raises `ConfigError` if the device has no room.
    """

    def __init__(  # noqa: PLR0913  # as of a `ReplayRing`, and where it lies
        self,
        buffer: memoryview,
        layout: RowLayout,
        max_transitions: int,
        *,
        num_envs: int,
        n_step: int = 1,
        device: torch.device,
    ) -> None:
        self._words = buffer[:HEADER_BYTES].cast("Q")
        self.layout, self.width = layout, layout.slot_width
        self.num_envs, self.max_transitions, self._n_step = num_envs, max_transitions, n_step
        self.per_step = 2 * num_envs  # slots of a vector step
        self.capacity = self.copied_rows = self.per_step * (-(-max_transitions // num_envs) + n_step)
        self._rows = np.empty((0, self.width), np.float32)
        try:
            self.store = torch.zeros(self.capacity, self.width, device=device)  # [capacity, slot_width]
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            size = nbytes_text(4 * self.capacity * self.width)
            raise ConfigError(f"replay.capacity: the replay needs {size} on {device}; lower it ({error})") from error
        is_float = layout.obs_dtype == "float32"
        self.obs = (self.store if is_float else self.store.view(torch.uint8))[:, : layout.obs_dim]
        self.tails = self.store[:, layout.obs_words : -1]  # action, reward, discount
        self.codes = self.store.view(torch.int32)[:, -1]

    def add_step(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> slice:
        """Writes a vector step of which no row is complete; returns the slots of its rows. obs: [N, O], action: [N, A].

        The oldest step is recycled where there is no room.
        """
        words, num_envs = self._words, self.num_envs
        end = words[COMMITTED] + self.per_step
        begin = words[COMMITTED] % self.capacity
        rows, successors = slice(begin, begin + num_envs), slice(begin + num_envs, begin + self.per_step)
        self.obs[rows], self.obs[successors] = obs, next_obs
        self.tails[rows, : self.layout.action_dim] = action
        self.codes[rows] = 0
        words[FLOOR] = max(words[FLOOR], end - self.capacity)
        words[RESERVED] = words[COMMITTED] = end
        words[WRITTEN] += num_envs
        words[DROPPED] = words[WRITTEN] - (end - words[FLOOR]) // 2
        return rows

    @property
    def complete(self) -> int:
        """The end of the slots whose rows are complete, as far as they ever will be."""
        return max(self._words[COMMITTED] - (self._n_step - 1) * self.per_step, self._words[FLOOR])

    def spans(self, start: int, stop: int) -> list[Any]:
        """Returns views of the slots [start, stop) on the device."""
        return row_spans(self.store, start, stop)

    def copy_range(self, start: int, out: NDArray[Any]) -> int:
        """Copies the slots [start, start + len(out)) to the host. The rest as in `Ring`."""
        filled = 0
        for rows in self.spans(start, start + len(out)):
            out[filled : filled + len(rows)] = rows.cpu().numpy()
            filled += len(rows)
        return max(start, self.oldest)

    def copy_open(self) -> Float32:
        """Returns no slots: all are committed."""
        return np.empty((0, self.width), np.float32)

    def restore_slots(self, first: int, blocks: Sequence[Float32], ahead: Float32, num_written: int = 0) -> None:
        """Fills an unused ring with saved slots [n, slot_width] from `first` on; keeps the newest that fit."""
        words, index = self._words, first
        end = first + sum(map(len, blocks))
        words[FLOOR] = max(first, end - self.capacity)
        for rows in blocks:
            kept = torch.from_numpy(rows[max(words[FLOOR] - index, 0) :])
            index += len(rows)
            for place in self.spans(index - len(kept), index):
                place.copy_(kept[: len(place)])
                kept = kept[len(place) :]
        words[RESERVED] = words[COMMITTED] = end
        num_kept = (end - words[FLOOR]) // 2
        words[WRITTEN] = max(num_written, num_kept)
        words[DROPPED] = words[WRITTEN] - num_kept

    def obs_on_device(self, start: int, stop: int) -> Tensor:
        """Returns the observations [m, O] that were acted on in the slots [start, stop), whole vector steps."""
        start = min(max(start, self.oldest), stop)
        blocks = [obs.view(-1, self.per_step, obs.shape[1]) for obs in row_spans(self.obs, start, stop)]
        return torch.cat([block[:, : self.num_envs].flatten(0, 1) for block in blocks]).float()


class DeviceSampler(ResidentSampler):
    """Draws rows of one `DeviceRing` where they lie. Positions count its transitions, not its slots."""

    def _open_store(self) -> Tensor:
        return self._ring.store[None]

    @property
    def _ring(self) -> DeviceRing:
        ring = self.rings[0]
        assert isinstance(ring, DeviceRing)
        return ring

    def _load_new(self) -> None:
        mirror: Mirror = self._mirrors[0]
        mirror.first, mirror.last = self._ring.kept_from // 2, self._ring.complete // 2

    def _slots(self, index: Tensor) -> Tensor:
        num_envs = self._ring.num_envs
        return (index + index // num_envs * num_envs) % self._ring.capacity


class DeviceReturns(RunningReturns):
    """The running returns of the environments of a `DeviceRing`, on its device."""

    def __init__(self, ring: DeviceRing, discount: float) -> None:
        self._ring, self._discount = ring, discount
        self._g = torch.zeros(ring.num_envs, dtype=torch.float64, device=ring.store.device)
        self._steps: list[tuple[Tensor, Tensor]] = []  # G [N], and where it is of a transition [N]

    def add_rows(self, number: int, start: int, stop: int) -> None:
        """Continues with the vector steps in the slots [start, stop)."""
        ring, reward = self._ring, self._ring.layout.action_dim
        for begin in range(max(start, ring.oldest), stop, ring.per_step):
            rows = slice(begin % ring.capacity, begin % ring.capacity + ring.num_envs)
            codes = ring.codes[rows]
            is_row = codes != 0
            self._g = self._g * self._discount + torch.where(is_row, ring.tails[rows, reward], 0.0)
            self._steps.append((self._g, is_row))
            self._g = torch.where(is_row & (codes & (IS_TERMINATED | IS_TRUNCATED) == 0), self._g, 0.0)

    def take_moments(self) -> Tensor:
        """Returns number, mean, sum of squared deviations and greatest |G| of the steps since the last call. [4]."""
        if not self._steps:
            return torch.zeros(4, dtype=torch.float64, device=self._g.device)
        returns, is_row = (torch.cat(parts) for parts in zip(*self._steps, strict=True))
        self._steps.clear()
        return torch.cat([weighted_moments(returns[:, None], is_row), (returns.abs() * is_row).max()[None]])

    def state(self) -> list[list[float]]:
        """Returns G by environment, as that of one ring."""
        return [self._g.tolist()]

    def set_state(self, state: list[list[float]]) -> None:
        """Continues from what `state` returned."""
        self._g = torch.tensor(state[0], dtype=torch.float64, device=self._g.device)


class DeviceSource(ResidentSource):
    """Samples on the learner's device from the ring that is written there."""

    def __init__(self, spec: SourceSpec, sampler: DeviceSampler, gate: LearnerGate, steps: World, updates: int) -> None:
        super().__init__(spec, sampler, gate, steps, updates)
        self._returns = None if spec.return_discount is None else DeviceReturns(self._ring, spec.return_discount)

    def gather_fresh(self) -> None:
        """Takes what the normalisers have not seen."""
        start, self.first_unseen_row[0] = self.first_unseen_row[0], self._ring.complete
        if self._spec.normalize_obs:
            self._fresh_obs = self._ring.obs_on_device(start, self._ring.complete)
        if self._returns is not None:
            self._returns.add_rows(0, start, self._ring.complete)

    def to_device(self, rows: Tensor) -> Batches:
        """Returns the batches as their fields: all is there already."""
        fresh = self._fresh_obs if self._spec.normalize_obs else None
        moments = None if self._returns is None else self._returns.take_moments()
        return Batches(self._fields_of(rows), fresh, self._steps.env_steps, moments)

    @property
    def _ring(self) -> DeviceRing:
        ring = self._rings[0]
        assert isinstance(ring, DeviceRing)
        return ring

    def describe(self) -> str:
        return f"replay source: resident, written there, {self._sampler.description}"
