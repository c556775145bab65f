"""Batch sources of a replay: what they have in common, and the direct one. The loop does not know which it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.processes.handshake import LearnerGate
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.row_layout import RowLayout
from offpolicy.replay.running_returns import RunningReturns
from offpolicy.replay.sampler import Sampler
from offpolicy.replay.staging import CopyStream, StagingBlock, host_block, nbytes_text
from offpolicy.timing.device_timer import StreamSync
from offpolicy.types import NO_ACCOUNT, Account, Batch, Batches, Float32

if TYPE_CHECKING:
    from offpolicy.distributed.world import World
    from offpolicy.replay.resident_source import ResidentSampler


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Configuration of a replay source of one rank."""

    layout: RowLayout
    rate_limiter: RateLimiter
    batch_size: int  # rows per update of this rank
    device: torch.device
    normalize_obs: bool
    fresh_rings: tuple[int, ...] = ()  # rings whose observations and returns this rank passes to the normalisers
    return_discount: float | None = None  # of the running returns that rewards are scaled by; None: they are not
    num_slots: int = 2  # of a source that packs ahead

    @property
    def block_shape(self) -> tuple[int, int, int]:
        """Shape of the batches of the longest iteration: [U, B, W]."""
        return self.rate_limiter.max_updates, self.batch_size, self.layout.width


class RateLimitedSource:
    """The part that replay sources share: rate limiter, handshake, observations for the normaliser, copy to the device.

    Decisions depend on `steps`, which all ranks agree on; `gate` only waits for the collectors and grants them steps.
    """

    rollouts = None  # the rows come from a replay
    has_batch_wait = False

    def __init__(
        self, spec: SourceSpec, sampler: Sampler | ResidentSampler, gate: LearnerGate, steps: World, updates: int
    ) -> None:
        self._spec, self._rings, self._gate, self._steps = spec, sampler.rings, gate, steps
        self._draws = sampler
        self.updates = updates
        self.first_unseen_row = [0] * len(self._rings)
        self._fresh: Float32 | None = None
        discount = spec.return_discount
        self._returns = None if discount is None else RunningReturns(self._rings, spec.layout, discount)

    @property
    def samples(self) -> int:
        return self._draws.samples

    @property
    def sample_age_sum(self) -> float:
        return float(self._draws.age_sum)

    @property
    def num_due(self) -> int:
        """Updates of the iteration that begins now, at least one."""
        return max(self._spec.rate_limiter.due(self._steps.env_steps, self.updates), 1)

    def wait_ready(self) -> None:
        limiter = self._spec.rate_limiter
        self._gate.wait_for(min(limiter.earliest(self.updates), limiter.total))

    def wait_batch(self) -> None:
        """Nothing is packed ahead."""

    def is_exhausted(self) -> bool:
        return self._spec.rate_limiter.is_spent(self._steps.env_steps, self.updates)

    def to_device(self, rows: Tensor) -> Batches:
        """Copies the batches, and the observations the normaliser has not seen yet, to the learner's device."""
        updates = self._fields_of(rows)
        fresh = None if self._fresh is None else self._to_device(torch.from_numpy(self._fresh))
        moments = None if self._returns is None else self._to_device(self._returns.take_moments())
        return Batches(updates, fresh, self._steps.env_steps, moments)

    def _fields_of(self, rows: Tensor) -> tuple[Batch, ...]:
        """Returns the batches [U, B, W] as their fields on the learner's device."""
        on_device = rows.to(self._spec.device, non_blocking=True)
        return tuple(map(self._spec.layout.split, on_device))

    def _to_device(self, fresh: Tensor) -> Tensor:
        """Queues a copy: from pageable memory the host would wait for the stream."""
        device = self._spec.device
        return fresh.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else fresh

    def release(self) -> None:
        """Grants the collectors what the next iteration needs, and the lead of the mode."""
        self._gate.grant(self._spec.rate_limiter.granted(self.updates))

    def set_mode(self, mode: str) -> None:
        """Takes turns with the collectors from now on (`alternate`), or lets them work ahead (`overlap`)."""
        limiter = self._spec.rate_limiter.taking_turns(takes_turns=mode == "alternate")
        self._spec = replace(self._spec, rate_limiter=limiter)

    def gather_fresh(self) -> None:
        """Reads what was written since the last time, of the rings that this rank passes to the normalisers."""
        if not self._spec.normalize_obs and self._returns is None:
            return
        blocks = [np.empty((0, self._spec.layout.obs_dim), dtype=np.float32)]
        for number in self._spec.fresh_rings:
            start, stop = self.first_unseen_row[number], self._rings[number].committed
            if self._spec.normalize_obs:
                blocks.append(self._rings[number].read_obs(start, stop))
            if self._returns is not None:
                self._returns.add_rows(number, start, stop)
            self.first_unseen_row[number] = stop
        if self._spec.normalize_obs:
            self._fresh = np.concatenate(blocks)

    def random_state(self) -> dict[str, Any]:
        returns = {} if self._returns is None else {"returns": self._returns.state()}
        return self._draws.state() | returns

    def set_random_state(self, state: dict[str, Any]) -> None:
        self._draws.set_state(state)
        if self._returns is not None:
            self._returns.set_state(state["returns"])

    def packer_account(self) -> Account:
        """Returns an empty account: nothing is packed ahead."""
        return NO_ACCOUNT

    def close(self) -> None:
        """Nothing was started."""


class ReplaySource(RateLimitedSource):
    """`direct`: samples on the learner's thread, where the rings are; copies to the device if that is elsewhere."""

    kind = "direct"

    def __init__(self, spec: SourceSpec, sampler: Sampler, gate: LearnerGate, steps: World, updates: int) -> None:
        super().__init__(spec, sampler, gate, steps, updates)
        self._sampler = sampler
        values = host_block(spec.block_shape, torch.float32, spec.device)
        self._staging, self._copy_stream = StagingBlock(values), CopyStream(spec.device, StreamSync(spec.device))
        numbers = range(1, len(values) + 1)  # of updates: views for torch and for NumPy are made once
        self._blocks = [(values[:n], values[:n].numpy().reshape(-1, spec.layout.width)) for n in numbers]
        self._fields = tuple(map(spec.layout.split, values)) if spec.device.type == "cpu" else ()

    def sample(self) -> Tensor:
        """Returns rows [U, B, W] for the updates that are due now."""
        self._copy_stream.block_until(self._staging.copied)  # it was, where the loop waits behind every update
        num_due = self.num_due
        rows, array = self._blocks[num_due - 1]
        self._sampler.hand_out(self._sampler.fill(array))
        self.updates += num_due
        self.gather_fresh()
        return rows

    def to_device(self, rows: Tensor) -> Batches:
        """Queues the copies; the host does not wait for them here."""
        batches = super().to_device(rows)
        self._staging.copied = self._copy_stream.learner_mark()
        return batches

    def _fields_of(self, rows: Tensor) -> tuple[Batch, ...]:
        """On a CPU they are the same views in every iteration, made once."""
        return self._fields[: len(rows)] or super()._fields_of(rows)

    def describe(self) -> str:
        size = nbytes_text(self._staging.values.nbytes)
        return f"replay source: direct, {size} of staging on the host{self._sampler.description}"
