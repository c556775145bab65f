"""The exchange between ranks beside the device time of an update, in which it has no part."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from offpolicy.protocols import Exchange


class ExchangeOutsideTrain:
    """An `Exchange` in the context `outside_train`: `device/train_ms` is without it, and without waits for ranks."""

    def __init__(self, exchange: Exchange, outside_train: AbstractContextManager[None]) -> None:
        self._exchange, self._outside_train = exchange, outside_train

    @property
    def num_ranks(self) -> int:
        """R, over all hosts."""
        return self._exchange.num_ranks

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over the ranks."""
        with self._outside_train:
            self._exchange.average(tensors)

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vectors [n] of all ranks as [R, n]."""
        with self._outside_train:
            return self._exchange.gather(vector)
