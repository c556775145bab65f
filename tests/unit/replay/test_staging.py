"""Slots, their requests, and the stream of copies; CUDA's part is played by fakes, and by CUDA where there is one."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.replay.ring import Ring
from offpolicy.replay.sampler import Bounds, UniformSampler
from offpolicy.replay.staging import CopyStream, Request, Slot, nbytes_text
from offpolicy.timing.device_timer import StreamSync

WIDTH = 3


def make_sampler(count: int = 20) -> UniformSampler:
    ring = Ring(memoryview(bytearray(Ring.nbytes(32, WIDTH, 4))), WIDTH, np.float32)
    ring.append(np.arange(count, dtype=np.float32)[:, None].repeat(WIDTH, axis=1))
    return UniformSampler([ring], np.random.default_rng(0), guard=0)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(999, "999 B"), (880_000, "880 KB"), (999_600, "1000 KB"), (1_234_567, "1.23 MB"), (52 * 10**9, "52 GB")],
)
def test_bytes_are_written_with_three_digits(nbytes: int, text: str) -> None:
    assert nbytes_text(nbytes) == text


@pytest.mark.parametrize("bounds", [None, Bounds((3, 4), (9, 2**40))])
def test_a_request_survives_json(bounds: Bounds | None) -> None:
    request = Request(4, bounds, 17, taken=1)
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


def packed_slot(staging: torch.Tensor, rows: torch.Tensor, request: Request) -> Slot:
    slot, sampler = Slot(staging, rows), make_sampler()
    slot.accept(request)
    slot.pack(sampler, sampler.bounds())
    return slot


def test_a_slot_hands_out_its_batches_in_turn_as_views_with_their_indices() -> None:
    block = torch.full((3, 5, WIDTH), -1.0)
    slot = packed_slot(block, block, Request(3, None, 0))
    first, first_draw = slot.hand_out(1)
    rest, rest_draw = slot.hand_out(2)
    assert slot.num_left == 0
    assert first.data_ptr() == block.data_ptr()
    assert torch.equal(torch.cat([first, rest]), block)
    indices = np.concatenate([first_draw.index, rest_draw.index])
    assert np.array_equal(indices, block[..., 0].reshape(-1).numpy())


def test_a_slot_holds_no_more_than_was_asked_for_and_skips_what_was_taken() -> None:
    block = torch.full((4, 5, WIDTH), -1.0)
    slot = packed_slot(block, block, Request(3, None, 0, taken=2))
    assert slot.num_left == 1
    assert (block[3] == -1.0).all()
    assert torch.equal(slot.hand_out(1)[0], block[2:3])


def test_dropped_batches_are_not_handed_out() -> None:
    block = torch.zeros((3, 5, WIDTH))
    slot = packed_slot(block, block, Request(3, None, 0))
    slot.hand_out(1)
    slot.drop_rest()
    assert slot.num_left == 0


def test_a_staged_slot_hands_out_what_was_copied() -> None:
    staging, rows = torch.full((2, 5, WIDTH), -1.0), torch.full((2, 5, WIDTH), -2.0)
    slot = packed_slot(staging, rows, Request(2, None, 0))
    assert slot.is_staged
    assert (rows == -2.0).all()
    slot.copy_to_device(CopyStream(torch.device("cpu"), StreamSync(torch.device("cpu"))))
    assert torch.equal(slot.hand_out(2)[0], staging)
    assert not packed_slot(staging, staging, Request(1, None, 0)).is_staged


class FakeCuda:
    """Streams and events of `torch.cuda` that record their calls; nothing is reached before `finish`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tape: list[str] = []
        self.is_finished = False
        self.learner = FakeStream(self, "learner")
        self.current = self.learner
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(self, "copies"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.use)

    @contextmanager
    def use(self, stream: FakeStream) -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before

    def wait(self) -> None:
        self.tape.append(f"host waits for {self.current.name}")


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def record_event(self) -> FakeEvent:
        self._cuda.tape.append(f"{self.name} marks")
        return FakeEvent(self._cuda, self.name)

    def wait_event(self, event: FakeEvent) -> None:
        self._cuda.tape.append(f"{self.name} waits for {event.name}")


class FakeEvent:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def query(self) -> bool:
        return self._cuda.is_finished


def test_a_copy_is_ordered_on_the_device_and_the_host_waits_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    copy_stream = CopyStream(torch.device("cuda"), cuda)
    target, source = torch.zeros(2), torch.ones(2)
    copied = copy_stream.copy(target, source, after=copy_stream.learner_mark())
    copy_stream.stall_learner_stream(copied)
    assert cuda.tape == ["learner marks", "copies waits for learner", "copies marks", "learner waits for copies"]
    copy_stream.block_until(copied)
    assert cuda.tape[4:] == ["copies waits for copies", "host waits for copies"]
    cuda.is_finished = True
    copy_stream.block_until(copied)
    assert len(cuda.tape) == 6
    assert torch.equal(target, source)


class TapeTimer:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def __enter__(self) -> None:
        self._cuda.tape.append(f"{self._cuda.current.name}: from here")

    def __exit__(self, *_: object) -> None:
        self._cuda.tape.append(f"{self._cuda.current.name}: to here")


def test_a_copy_is_timed_on_its_own_stream_without_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    copy_stream = CopyStream(torch.device("cuda"), cuda, TapeTimer(cuda))
    copy_stream.copy(torch.zeros(2), torch.ones(2), after=copy_stream.learner_mark())
    assert cuda.tape[1:] == ["copies waits for learner", "copies: from here", "copies: to here", "copies marks"]


def test_on_the_cpu_a_copy_is_done_when_the_call_returns() -> None:
    copy_stream = CopyStream(torch.device("cpu"), StreamSync(torch.device("cpu")))
    target = torch.zeros(2)
    mark = copy_stream.copy(target, torch.ones(2), after=copy_stream.learner_mark())
    assert mark is None
    assert target.tolist() == [1, 1]
    copy_stream.stall_learner_stream(mark)
    copy_stream.block_until(mark)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_the_device_a_copy_waits_for_the_learner_and_the_learner_for_the_copy() -> None:
    device = torch.device("cuda", 0)
    copy_stream = CopyStream(device, StreamSync(device))
    target = torch.zeros(1 << 20, device=device)
    source = torch.ones(1 << 20, pin_memory=True)
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(50):
        busy = busy @ busy * 1e-3
    seen_before = target.clone()  # queued after the matrix products, before the copy
    copied = copy_stream.copy(target, source, after=copy_stream.learner_mark())
    copy_stream.stall_learner_stream(copied)
    seen_after = target.clone()
    copy_stream.block_until(copied)
    assert copied is not None
    assert copied.query()
    assert (seen_before.sum().item(), seen_after.sum().item()) == (0.0, float(1 << 20))
