"""Batch sources of a replay: what they have in common, and the direct one. The loop does not know which it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from offpolicy.processes.handshake import LearnerGate
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, RowLayout
from offpolicy.replay.sampler import Sampler
from offpolicy.replay.staging import CopyStream, StagingBlock, host_block, nbytes_text, to_device
from offpolicy.timing.device_timer import StreamSync
from offpolicy.types import NO_ACCOUNT, Account, Batch, Batches, Float32, Float64

if TYPE_CHECKING:
    from offpolicy.distributed.world import World


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


class Draws(Protocol):
    """A sampler, on the host or on the device, as far as every source uses it."""

    samples: int

    @property
    def rings(self) -> Sequence[ReplayRing]:
        """What is drawn from."""
        ...

    @property
    def age_sum(self) -> Any:  # Any: a number, or a tensor [] of the device
        """Sum of the ages of `samples`, in transitions."""
        ...

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another one draws the same rows."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        ...


class RunningReturns:
    """The running discounted returns G of every environment, by ring, and the moments of those not taken yet.

    G_t = gamma G_(t-1) + r_t within an episode, as Gymnasium's NormalizeReward has it and FlashSAC (arXiv:2604.04539)
    section 4: not the return of a state, but a number that grows with the rewards as returns do. Every row is read
    once, when it is new, so the sums are the same however often it is sampled. After a bad row (`env.max_bad_rows`) the
    returns of all environments of its collector begin at 0.
    """

    def __init__(self, rings: Sequence[ReplayRing], layout: RowLayout, discount: float) -> None:
        """`rings` hold rows of one step each."""
        self._rings, self._discount = tuple(rings), discount
        self._reward = layout.obs_words + layout.action_dim  # a column of a slot
        self._returns = [np.zeros(ring.num_envs) for ring in self._rings]
        self._fresh: list[Float64] = []

    def add_rows(self, number: int, start: int, stop: int) -> None:
        """Continues with the rows [start, stop) of a ring, whole vector steps; those recycled are left out."""
        slots = self._rings[number].read_range(start, stop)
        returns = self._returns[number]
        shape = len(slots) // len(returns), len(returns)
        rewards = slots[:, self._reward].astype(np.float64).reshape(shape)
        codes = slots.view(np.uint32)[:, -1].reshape(shape)
        is_row = codes != 0
        is_end = ~is_row | ((codes & (IS_TERMINATED | IS_TRUNCATED)) != 0)  # the row of autoreset is no step
        history = np.empty(shape)
        for step in range(shape[0]):
            returns *= self._discount
            returns += rewards[step]
            history[step] = returns
            returns[is_end[step]] = 0.0
        self._fresh.append(history[is_row])

    def take_moments(self) -> Tensor:
        """Returns number, mean, sum of squared deviations and greatest |G| of the steps since the last call. [4]."""
        fresh = np.concatenate([np.empty(0), *self._fresh])
        self._fresh.clear()
        if not len(fresh):
            return torch.zeros(4, dtype=torch.float64)
        moments = [len(fresh), fresh.mean(), np.square(fresh - fresh.mean()).sum(), np.abs(fresh).max()]
        return torch.tensor(moments, dtype=torch.float64)

    def state(self) -> list[list[float]]:
        """Returns G by ring and environment, as JSON data: float64 survive it bit for bit."""
        return [returns.tolist() for returns in self._returns]

    def set_state(self, state: list[list[float]]) -> None:
        """Continues from what `state` returned."""
        for returns, saved in zip(self._returns, state, strict=True):
            returns[:] = saved


class RateLimitedSource:
    """The part that replay sources share: rate limiter, handshake, observations for the normaliser, copy to the device.

    Decisions depend on `steps`, which all ranks agree on; `gate` only waits for the collectors and grants them steps.
    """

    rollouts = None  # the rows come from a replay
    has_batch_wait = False

    def __init__(self, spec: SourceSpec, sampler: Draws, gate: LearnerGate, steps: World, updates: int) -> None:
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
        updates, device = self._fields_of(rows), self._spec.device
        fresh = None if self._fresh is None else to_device(torch.from_numpy(self._fresh), device)
        moments = None if self._returns is None else to_device(self._returns.take_moments(), device)
        return Batches(updates, fresh, self._steps.env_steps, moments)

    def _fields_of(self, rows: Tensor) -> tuple[Batch, ...]:
        """Returns the batches [U, B, W] as their fields on the learner's device."""
        on_device = rows.to(self._spec.device, non_blocking=True)
        return tuple(map(self._spec.layout.split, on_device))

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
