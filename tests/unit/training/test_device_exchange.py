"""The exchange between ranks beside the device time of an update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from offpolicy.training.device_exchange import ExchangeOutsideTrain


class Tape:
    """An exchange of three ranks and the context around it, which note their calls."""

    num_ranks = 3

    def __init__(self) -> None:
        self.calls: list[str] = []

    def average(self, tensors: Sequence[Tensor]) -> None:
        self.calls.append(f"average {len(tensors)}")

    def gather(self, vector: Tensor) -> Tensor:
        self.calls.append("gather")
        return vector.expand(3, -1)

    @contextmanager
    def outside(self) -> Iterator[None]:
        self.calls.append("stops")
        yield
        self.calls.append("goes on")


def test_the_update_stops_for_every_exchange() -> None:
    tape = Tape()
    exchange = ExchangeOutsideTrain(tape, tape.outside())
    exchange.average([torch.zeros(2), torch.zeros(3)])
    exchange = ExchangeOutsideTrain(tape, tape.outside())
    assert exchange.gather(torch.ones(2)).shape == (3, 2)
    assert tape.calls == ["stops", "average 2", "goes on", "stops", "gather", "goes on"]
    assert exchange.num_ranks == 3
