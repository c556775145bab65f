"""The packed replay row: which columns hold what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from offpolicy.types import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of one float32 row: obs, next_obs, action, reward, terminated, truncated, discount.

    Each is an index into the last dimension of arrays and tensors: `rows[:, layout.obs]`, `rows[:, layout.REWARD]`.
    """

    obs_dim: int
    action_dim: int

    REWARD: ClassVar[int] = -4
    TERMINATED: ClassVar[int] = -3
    TRUNCATED: ClassVar[int] = -2
    DISCOUNT: ClassVar[int] = -1

    @property
    def obs(self) -> slice:
        """The observation that was acted on."""
        return slice(0, self.obs_dim)

    @property
    def next_obs(self) -> slice:
        """The observation that the row's span ends in."""
        return slice(self.obs_dim, 2 * self.obs_dim)

    @property
    def action(self) -> slice:
        """The action."""
        return slice(2 * self.obs_dim, 2 * self.obs_dim + self.action_dim)

    @property
    def width(self) -> int:
        """W, the columns of a row."""
        return 2 * self.obs_dim + self.action_dim + 4

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return 4 * self.width

    def split(self, rows: Tensor) -> Batch:
        """Returns views of `rows` [B, W] as the fields of a batch."""
        return Batch(
            obs=rows[:, self.obs],
            next_obs=rows[:, self.next_obs],
            action=rows[:, self.action],
            reward=rows[:, self.REWARD],
            terminated=rows[:, self.TERMINATED],
            discount=rows[:, self.DISCOUNT],
        )
