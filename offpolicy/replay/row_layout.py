"""The packed replay row: which columns hold what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from offpolicy.types import Batch, Float32

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of one float32 row: obs, next_obs, action, reward, terminated, truncated, discount."""

    obs_dim: int
    action_dim: int

    @property
    def width(self) -> int:
        """W, the columns of a row."""
        return 2 * self.obs_dim + self.action_dim + 4

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return 4 * self.width

    def split(self, rows: Tensor) -> Batch:
        """Views of `rows` [B, W] as the fields of a batch."""
        o, a = self.obs_dim, self.action_dim
        return Batch(
            obs=rows[:, :o],
            next_obs=rows[:, o : 2 * o],
            action=rows[:, 2 * o : 2 * o + a],
            reward=rows[:, -4],
            terminated=rows[:, -3],
            discount=rows[:, -1],
        )

    def pack(self, obs: Float32, action: Float32, next_obs: Float32) -> Float32:
        """A new block [N, W] with the array columns filled; the scalar columns are set through `scalars`."""
        rows = np.empty((len(obs), self.width), dtype=np.float32)
        o, a = self.obs_dim, self.action_dim
        rows[:, :o] = obs
        rows[:, o : 2 * o] = next_obs
        rows[:, 2 * o : 2 * o + a] = action
        return rows

    @staticmethod
    def scalars(rows: Float32) -> Float32:
        """The view [N, 4] of reward, terminated, truncated, discount."""
        return rows[:, -4:]

    def obs_of(self, rows: Float32) -> Float32:
        """The view [N, O] of the observations."""
        return rows[:, : self.obs_dim]
