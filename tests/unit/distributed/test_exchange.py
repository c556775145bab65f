from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.distributed.process_group import GroupExchange, checksum
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from tests.fakes import FakeClock

DTYPES = (torch.float32, torch.float64)


def tensors_of(dtype: torch.dtype) -> list[Tensor]:
    """As a learner has them: a matrix, a vector and a number."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((5, 7), (7,), ())]


def words_of(tensor: Tensor) -> Tensor:
    """A view of the tensor's bits, 32 at a time."""
    return tensor.reshape(-1).view(torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_the_checksum_changes_with_any_bit_of_any_tensor(dtype: torch.dtype, data: st.DataObject) -> None:
    tensors = tensors_of(dtype)
    before = checksum(tensors)
    words = words_of(data.draw(st.sampled_from(tensors)))
    word, bit = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, 31))
    words[word] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert checksum(tensors) != before


class FakeDevice:
    """A group of two ranks with equal tensors, and a stream on which work is done only when it is waited for."""

    num_ranks = 2

    def __init__(self, *, uses_nccl: bool) -> None:
        self.uses_nccl, self.clock = uses_nccl, FakeClock(1_000_000)
        self.ledger = Ledger(LearnerPhase, self.clock)
        self.ledger.end_warmup()
        self.calls: list[str] = []
        self.queued_ns = 0

    def queue(self, ns: int) -> None:
        """Gives the stream work."""
        self.queued_ns += ns

    def sum(self, bucket: Tensor) -> None:
        """The sum of one number ends when the other rank has arrived."""
        self.calls.append("barrier" if bucket.numel() == 1 else "sum")
        bucket.mul_(2.0)
        took_ns = 25_000 if bucket.numel() == 1 else 40_000
        if self.uses_nccl:
            self.queue(took_ns)
        else:
            self.clock.advance(took_ns)

    def timed(self) -> Any:
        return self.ledger.phase(LearnerPhase.PARAM_SYNC)

    def wait(self) -> None:
        self.calls.append("wait")
        self.clock.advance(self.queued_ns)
        self.queued_ns = 0

    def check(self) -> None:
        self.calls.append("check")

    def outside_train(self) -> Any:
        return nullcontext()


class FakeEvent:
    """An event that is reached when what was queued before it is done."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self.at_ns = device, 0

    def record(self) -> None:
        self._device.calls.append("record")
        self.at_ns = self._device.clock.now_ns() + self._device.queued_ns

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert end_event.at_ns <= self._device.clock.now_ns(), "read before it was reached"
        return (end_event.at_ns - self.at_ns) / 1e6


@pytest.mark.parametrize(
    ("uses_nccl", "calls", "exchanged"),
    [
        (
            True,
            ["record", "barrier", "record", "sum", "record", "wait", "check"],
            {"rank_barrier": 25_000, "param_sync": 40_000},
        ),
        (False, ["wait", "sum"], {"param_sync": 40_000}),
    ],
)
def test_an_exchange_waits_for_the_device_once_and_leaves_its_arithmetic_in_train(
    monkeypatch: pytest.MonkeyPatch, uses_nccl: bool, calls: list[str], exchanged: dict[str, int]
) -> None:
    device: Any = FakeDevice(uses_nccl=uses_nccl)
    monkeypatch.setattr("offpolicy.distributed.process_group.CudaEvent", lambda _: FakeEvent(device))
    exchange = GroupExchange(device, torch.device("cpu"), device, device.ledger)
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor(5.0)]
    with device.ledger.phase(LearnerPhase.TRAIN):
        device.queue(300_000)  # a backward pass, of which the host does not wait for the end
        device.clock.advance(7_000)
        exchange.average(tensors)
    account = device.ledger.account()
    taken_ns = {phase: ns for phase, ns in account.phases_ns.items() if ns}
    assert taken_ns == {"train": 307_000, **exchanged}
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 2.0], 5.0]
    assert device.calls == calls
