"""Slots, their requests, and the stream of copies; a simulated device plays CUDA's part, and CUDA where it is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import CheckpointError
from offpolicy.replay.ring import Ring
from offpolicy.replay.sampler import Bounds, UniformSampler
from offpolicy.replay.staging import CopyStream, Request, RequestLimits, Slot, nbytes_text
from offpolicy.timing.device_timer import StreamSync
from tests.simulated_device import CUDA, MS, SimulatedDevice

WIDTH = 3
LIMITS = RequestLimits(num_batches=4, num_rings=2, env_steps=20)


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


@pytest.mark.parametrize("bounds", [None, Bounds((3, 4), (9, 2**40)), Bounds((3, 4), (9, 10), 0.49)])
def test_a_request_survives_json(bounds: Bounds | None) -> None:
    request = Request(4, bounds, 17, taken=1)
    assert Request.from_json(json.loads(json.dumps(request.to_json())), LIMITS) == request


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_batches": 5}, "num_batches: got 5, allowed a whole number from 0 to 4"),
        ({"num_batches": 0}, "num_batches: got 0, allowed at least 1"),
        ({"env_steps": -1}, "env_steps: got -1"),
        ({"taken": -1}, "taken: got -1"),
        ({"bounds": []}, "bounds: got [], allowed a mapping"),
        ({"bounds": {"first": [0], "last": [1]}}, "first: got [0], allowed a list of 2 whole numbers"),
        ({"bounds": {"first": [0, 0], "last": [0, 0]}}, "first: got [0, 0], allowed less than last"),
        ({"bounds": {"first": [5, 0], "last": [4, 9]}}, "first: got [5, 0], allowed less than last"),
        ({"bounds": {"first": [0, 0], "last": [4, 9], "share": 0}}, "share: got 0, allowed a number from 0.05 to 1"),
    ],
)
def test_a_request_that_no_source_makes_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    data = Request(4, Bounds((3, 4), (9, 10)), 17).to_json() | change
    with pytest.raises(CheckpointError, match="^requests: ") as caught:
        Request.from_json(data, LIMITS)
    assert said in str(caught.value)


@pytest.mark.parametrize("bounds", [None, Bounds((3, 4), (9, 10))])
def test_a_request_for_more_env_steps_than_the_run_is_now_to_do_waits_for_those(bounds: Bounds | None) -> None:
    """A resume with `total_timesteps` at what was done already was refused for the rows of the next iteration."""
    assert Request.from_json(Request(4, bounds, 21).to_json(), LIMITS) == Request(4, bounds, 20)


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
    indices = np.concatenate([first_draw.position, rest_draw.position])
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


def pinned(value: float) -> torch.Tensor:
    return torch.full((2,), value).pin_memory()


def test_a_copy_is_ordered_on_the_device_and_the_host_waits_only_when_asked(device: SimulatedDevice) -> None:
    copy_stream = CopyStream(CUDA, StreamSync(CUDA))
    target, seen = torch.zeros(2, device=CUDA), []
    device.work(30 * MS, [target], lambda content: seen.append(content.tolist()))
    copied = copy_stream.copy(target, pinned(1.0), after=copy_stream.learner_mark())
    copy_stream.stall_learner_stream(copied)
    device.work(30 * MS, [target], lambda content: seen.append(content.tolist()))
    assert device.now_ns() == 0
    copy_stream.block_until(copied)
    assert device.now_ns() == device.kernel_ns + 30 * MS + device.copy_ns  # not for the work behind the copy
    assert device.calls["synchronize"] == 1
    copy_stream.block_until(copied)
    assert device.calls["synchronize"] == 1  # it was reached
    device.default.synchronize()
    assert seen == [[0.0, 0.0], [1.0, 1.0]]


class OnCurrentStream:
    """A timer that notes the stream that is current around a copy, and what it has to do."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.begins: list[str] = []

    def __enter__(self) -> None:
        stream = self._device.current_stream()
        self.begins.append(stream.name)
        self.mark = stream.record_event(torch.cuda.Event(enable_timing=True))

    def __exit__(self, *_: object) -> None:
        self.ends = self._device.current_stream().record_event(torch.cuda.Event(enable_timing=True))


def test_a_copy_is_timed_on_its_own_stream_without_what_it_waits_for(device: SimulatedDevice) -> None:
    timer = OnCurrentStream(device)
    copy_stream = CopyStream(CUDA, StreamSync(CUDA), timer)
    target = torch.zeros(2, device=CUDA)
    device.work(30 * MS, [target])
    copy_stream.block_until(copy_stream.copy(target, pinned(1.0), after=copy_stream.learner_mark()))
    assert timer.begins == ["copies 1"]
    assert timer.mark.elapsed_time(timer.ends) == device.copy_ns / MS


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
