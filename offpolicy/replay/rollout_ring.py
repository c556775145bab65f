"""The shared-memory ring of rollouts: one collector fills slots, one learner rank takes them, no lock.

A slot holds one whole rollout, so a slot, unlike a replay row, has an owner: the collector from `reserve` until
`commit`, then the learner until it has copied it out. Two counters of rollouts, ever committed and ever taken, tell
the owner of a slot. Only the collector writes the first and only the learner the second, and a slot is handed over by
the store that moves its counter, after everything in it was written, or read. So nothing is overwritten while read.

One more slot than the ring can queue lies beside it: where the collector may not wait (`rollout.when_full=drop`) it
fills that one while no slot is free, and drops it if there is still none at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy import fault
from offpolicy.types import Float32, Rollouts

if TYPE_CHECKING:
    from torch import Tensor

HEADER_BYTES = 64
_COMMITTED, _TAKEN, _DROPPED, _SKIPPED = range(4)  # words of the header


@dataclass(slots=True)
class RolloutLayout:
    """One float32 row per environment and time step: obs, action, log_prob, reward, terminated, truncated, is_valid.

    With `has_final_obs` also the true successor, between action and log_prob: where environments reset in the step in
    which an episode ends, the next row holds another episode's observation.
    """

    obs_dim: int
    action_dim: int
    length: int  # T
    num_envs: int  # N, of one collector
    has_final_obs: bool = False
    obs: slice = field(init=False)  # the observation that was acted on
    action: slice = field(init=False)
    final_obs: slice = field(init=False)  # empty without them
    width: int = field(init=False)  # W, the columns of a row
    # A slot [T + 1, N, W]: the last step holds only the observation that the rollout ended in.
    shape: tuple[int, int, int] = field(init=False)
    slot_nbytes: int = field(init=False)

    LOG_PROB: ClassVar[int] = -5
    REWARD: ClassVar[int] = -4
    TERMINATED: ClassVar[int] = -3
    TRUNCATED: ClassVar[int] = -2
    IS_VALID: ClassVar[int] = -1

    def __post_init__(self) -> None:
        first, second = self.obs_dim, self.obs_dim + self.action_dim
        third = second + self.obs_dim * self.has_final_obs
        self.obs, self.action, self.final_obs = slice(0, first), slice(first, second), slice(second, third)
        self.width = third + 5
        self.shape = self.length + 1, self.num_envs, self.width
        self.slot_nbytes = 4 * math.prod(self.shape)

    def split(self, rows: Tensor, progress: float, env_steps: int = 0) -> Rollouts:
        """Returns views of `rows` [T + 1, B, W] as the fields of a batch."""
        steps = rows[:-1]
        return Rollouts(
            obs=rows[..., self.obs],
            action=steps[..., self.action],
            log_prob=steps[..., self.LOG_PROB],
            reward=steps[..., self.REWARD],
            terminated=steps[..., self.TERMINATED],
            truncated=steps[..., self.TRUNCATED],
            is_valid=steps[..., self.IS_VALID],
            progress=progress,
            env_steps=env_steps,
            final_obs=steps[..., self.final_obs] if self.has_final_obs else None,
        )


class RolloutStamp(NamedTuple):
    """Facts about a rollout besides its rows."""

    number: int  # rollouts that this collector began before it
    version: int  # version of the weights that acted in all of it
    num_steps: int  # its transitions


_STAMP_WORDS = len(RolloutStamp._fields)


class RolloutRing:
    """A ring of `num_slots` rollouts over a buffer of `nbytes` bytes."""

    def __init__(self, buffer: memoryview, layout: RolloutLayout, num_slots: int) -> None:
        self.layout, self.num_slots = layout, num_slots
        self._words = buffer[:HEADER_BYTES].cast("Q")
        places = num_slots + 1  # the last is the spare one
        stamp_bytes = 8 * _STAMP_WORDS * places
        self._stamps: NDArray[np.int64] = np.frombuffer(
            buffer, dtype=np.int64, offset=HEADER_BYTES, count=_STAMP_WORDS * places
        ).reshape(places, _STAMP_WORDS)
        count = places * layout.slot_nbytes // 4
        rows = np.frombuffer(buffer, dtype=np.float32, offset=HEADER_BYTES + stamp_bytes, count=count)
        self._rows: Float32 = rows.reshape(places, *layout.shape)
        self._open = num_slots

    @staticmethod
    def nbytes(layout: RolloutLayout, num_slots: int) -> int:
        """Returns the bytes of the buffer of a ring."""
        return HEADER_BYTES + (num_slots + 1) * (layout.slot_nbytes + 8 * _STAMP_WORDS)

    @property
    def committed(self) -> int:
        """Number of rollouts ever handed to the learner."""
        return self._words[_COMMITTED]

    @property
    def taken(self) -> int:
        """Number of rollouts that the learner has copied out or skipped."""
        return self._words[_TAKEN]

    @property
    def skipped(self) -> int:
        """Number of rollouts that the learner has skipped."""
        return self._words[_SKIPPED]

    @property
    def dropped(self) -> int:
        """Number of rollouts dropped because no slot was free."""
        return self._words[_DROPPED]

    @property
    def unread(self) -> int:
        """Number of rollouts that wait for the learner."""
        return self.committed - self.taken

    @property
    def is_full(self) -> bool:
        """True if no slot is free."""
        return self.unread >= self.num_slots

    def reserve(self) -> Float32:
        """Returns the slot [T + 1, N, W] that the collector fills next: the spare one if no other is free."""
        fault.hit("rollout.reserved")
        self._open = self.num_slots if self.is_full else self.committed % self.num_slots
        rows: Float32 = self._rows[self._open]
        return rows

    def commit(self, stamp: RolloutStamp) -> bool:
        """Hands the rollout over; False if it had to be dropped."""
        slot = self._open
        if slot == self.num_slots:
            if self.is_full:
                self._words[_DROPPED] += 1
                return False
            slot = self.committed % self.num_slots
            self._rows[slot] = self._rows[self.num_slots]
        self._stamps[slot] = stamp
        fault.hit("rollout.committed")
        self._words[_COMMITTED] += 1
        return True

    @property
    def head(self) -> RolloutStamp:
        """The stamp of the oldest rollout; at least one must wait."""
        return RolloutStamp(*self._stamps[self.taken % self.num_slots].tolist())

    def take(self, out: Float32) -> RolloutStamp:
        """Copies the oldest rollout into `out` [T + 1, N, W] and frees its slot; at least one must wait."""
        stamp = self.head
        out[...] = self._rows[self.taken % self.num_slots]
        fault.hit("rollout.taken")
        self._words[_TAKEN] += 1
        return stamp

    def skip(self) -> None:
        """Frees the slot of the oldest rollout, which is not learnt from."""
        self._words[_SKIPPED] += 1
        self._words[_TAKEN] += 1

    def waiting(self) -> list[tuple[RolloutStamp, Float32]]:
        """Returns stamps and views of the rollouts that wait, oldest first; not safe while either side is working."""
        slots = [number % self.num_slots for number in range(self.taken, self.committed)]
        return [(RolloutStamp(*self._stamps[slot].tolist()), self._rows[slot]) for slot in slots]
