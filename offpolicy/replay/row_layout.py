"""The columns of a replay row: as a slot of the ring, and as a row of a batch.

A slot holds an observation once, and what was done there. The observation that a transition ends in is that of a later
slot, so it is not stored twice (`replay_ring.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offpolicy.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

WORD_BYTES = 4
# The last word of a slot, a uint32: flags, and in the bits above them the vector steps to the slot with the next
# observation. It is zero where the slot is no transition: it only holds an observation.
IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT = 1, 2, 2


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of slots [n, slot_width] of four-byte words and of batches [n, width] of float32.

    A slot: observation (`obs_words`, in the environment's type), action, reward, discount, code. A row of a batch: obs,
    action, reward, discount, terminated, next_obs, and columns without a meaning, as it is two slots side by side. Each
    property is an index into the last dimension of a batch: `rows[:, layout.obs]`, `rows[:, layout.reward]`.
    """

    obs_dim: int
    action_dim: int
    obs_dtype: str = "float32"  # or uint8

    @property
    def obs_words(self) -> int:
        """Words of an observation in a slot."""
        return self.obs_dim if self.obs_dtype == "float32" else -(-self.obs_dim // WORD_BYTES)

    @property
    def slot_width(self) -> int:
        """Words of a slot."""
        return self.obs_words + self.action_dim + 3

    @property
    def nbytes(self) -> int:
        """Bytes of a slot."""
        return WORD_BYTES * self.slot_width

    @property
    def obs(self) -> slice:
        """The observation that was acted on."""
        return slice(0, self.obs_dim)

    @property
    def action(self) -> slice:
        """The action."""
        return slice(self.obs_dim, self.obs_dim + self.action_dim)

    @property
    def reward(self) -> int:
        """The sum of `gamma^i r_i` over the steps of the row."""
        return self.obs_dim + self.action_dim

    @property
    def discount(self) -> int:
        """`gamma^k` for the k steps of the row."""
        return self.reward + 1

    @property
    def terminated(self) -> int:
        """1.0 where the MDP ended, else 0.0."""
        return self.reward + 2

    @property
    def half(self) -> int:
        """Columns of a batch before the next observation."""
        return self.reward + 3

    @property
    def next_obs(self) -> slice:
        """The observation that the row's span ends in."""
        return slice(self.half, self.half + self.obs_dim)

    @property
    def width(self) -> int:
        """W, the columns of a row of a batch."""
        return 2 * self.half

    def split(self, rows: Tensor) -> Batch:
        """Returns views of `rows` [B, W] as the fields of a batch."""
        return Batch(
            obs=rows[:, self.obs],
            next_obs=rows[:, self.next_obs],
            action=rows[:, self.action],
            reward=rows[:, self.reward],
            terminated=rows[:, self.terminated],
            discount=rows[:, self.discount],
        )
