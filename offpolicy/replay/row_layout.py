"""The columns of a replay row: as a slot of the ring, and as a row of a batch.

A slot holds an observation once, and what was done there. The observation that a transition ends in is that of a later
slot, so it is not stored twice (`replay_ring.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offpolicy.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

WORD_BYTES = 4
# The last word of a slot, a uint32: flags, and in the bits above them the vector steps to the slot with the next
# observation. It is zero where the slot is no transition: it only holds an observation.
IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT = 1, 2, 2


@dataclass(slots=True)
class RowLayout:
    """Columns of slots [n, slot_width] of four-byte words and of batches [n, width] of float32.

    A slot: observation (`obs_words`, in the environment's type), action, reward, discount, code. A row of a batch: obs,
    action, reward, discount, terminated, next_obs, and columns without a meaning, as it is two slots side by side. The
    columns are indices into the last dimension of a batch: `rows[:, layout.obs]`, `rows[:, layout.reward]`.
    """

    obs_dim: int
    action_dim: int
    obs_dtype: str = "float32"  # or uint8
    obs_words: int = field(init=False)  # words of an observation in a slot
    slot_width: int = field(init=False)  # words of a slot
    nbytes: int = field(init=False)  # of a slot
    obs: slice = field(init=False)  # the observation that was acted on
    action: slice = field(init=False)
    reward: int = field(init=False)  # the sum of `gamma^i r_i` over the steps of the row
    discount: int = field(init=False)  # `gamma^k` for the k steps of the row
    terminated: int = field(init=False)  # 1.0 where the MDP ended, else 0.0
    half: int = field(init=False)  # columns of a batch before the next observation
    next_obs: slice = field(init=False)  # the observation that the row's span ends in
    width: int = field(init=False)  # W, the columns of a row of a batch

    def __post_init__(self) -> None:
        self.obs_words = self.obs_dim if self.obs_dtype == "float32" else -(-self.obs_dim // WORD_BYTES)
        self.slot_width = self.obs_words + self.action_dim + 3
        self.nbytes = WORD_BYTES * self.slot_width
        self.reward = self.obs_dim + self.action_dim
        self.discount, self.terminated, self.half = self.reward + 1, self.reward + 2, self.reward + 3
        self.obs, self.action = slice(0, self.obs_dim), slice(self.obs_dim, self.reward)
        self.next_obs = slice(self.half, self.half + self.obs_dim)
        self.width = 2 * self.half

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
