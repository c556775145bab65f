"""What only a CUDA device can show. Run with `make test-gpu` on a machine that has one."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.sampler import Sampler
from offpolicy.replay.staging import CopyStream
from offpolicy.timing.device_timer import DeviceTimer, StreamSync, make_device_timer
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.training.flops import attainable_flops_per_sec
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.first_updates import work_of_algo
from tests.gpu.test_topologies import train
from tests.on_device import waits_refused
from tests.replay_scene import NUMBERED, append, numbered_ring

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # the first product of autograd's thread
]
REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def batches(device: str, seed: int = 0, count: int = 4) -> Batches:
    rng = torch.Generator().manual_seed(seed)

    def one() -> Batch:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=rng).to(device)

        ones = torch.ones(256, device=device)
        return Batch(normal(256, 17), normal(256, 6).tanh(), normal(256), normal(256, 17), 0 * ones, 0.99 * ones)

    return Batches(tuple(one() for _ in range(count)), None)


def timer_of(device: torch.device, *, is_enabled: bool = True) -> DeviceTimer:
    return make_device_timer(StreamSync(device), NullLedger(), is_enabled=is_enabled)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_updates_on_the_device_stay_close_to_those_on_the_cpu(name: str) -> None:
    """TD3's critic draws no device-dependent number when the smoothing noise is off; SAC is compared by its loss."""
    algo = AlgoConfig(name=name, target_noise=0.0, policy_delay=2)
    losses = {}
    for device in ("cpu", "cuda"):
        learner = make_learner(algo, SPEC, torch.device(device), 7)
        learner.update(batches(device))
        totals = learner.read_metrics()
        losses[device] = dict(zip(totals.names, totals.sums / np.maximum(totals.counts, 1), strict=True))
    tolerance = 1e-4 if name == "td3" else 0.2
    assert losses["cuda"]["critic_loss"] == pytest.approx(losses["cpu"]["critic_loss"], rel=tolerance)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # of RMS norm
@pytest.mark.parametrize("name", ["sac", "td3", "flashsac"])
def test_losses_in_bfloat16_stay_near_those_in_float32(name: str) -> None:
    """Within 5 % over 3 updates from one start; parameters stay float32."""
    losses = []
    for precision in ("fp32", "bf16"):
        learner = make_learner(
            AlgoConfig(name=name, precision=precision, policy_delay=1), SPEC, torch.device("cuda"), 7
        )
        learner.update(batches("cuda", count=3))
        tensors, totals = learner.state().tensors, learner.read_metrics()
        losses.append(dict(zip(totals.names, totals.sums, strict=True)))
        assert not learner.has_diverged()
        assert all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point())
        assert {tensors[key].dtype for key in tensors if key.startswith(("policy.", "critic."))} == {torch.float32}
    for metric in ("critic_loss", "actor_loss"):
        assert losses[1][metric] == pytest.approx(losses[0][metric], rel=0.05)
        assert losses[1][metric] != losses[0][metric]


def busy(device: torch.device, count: int = 50) -> None:
    """Queues some tens of milliseconds of work."""
    work = torch.randn(8192, 8192, device=device)
    for _ in range(count):
        work = work @ work * 1e-3


def test_a_wait_that_gives_its_core_away_does_not_spin() -> None:
    device = torch.device("cuda", 0)
    used_s = {}
    for yields_core in (False, True):
        device_sync = StreamSync(device, yields_core=yields_core)
        device_sync.wait()
        busy(device, 200)
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        device_sync.wait()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
        assert wall_s > 0.05
        used_s[yields_core] = cpu_s / wall_s
    assert used_s[False] > 0.8
    assert used_s[True] < 0.2


def test_rows_on_their_way_to_the_device_make_the_host_wait_for_nothing() -> None:
    """Batches from page-locked memory, and fresh observations, behind work that is queued before them."""
    device, layout = torch.device("cuda", 0), NUMBERED
    ring = numbered_ring(4096, 2000)
    limiter = RateLimiter(Fraction(1), start=1, start_updates=0, lead=0, credit=0, max_updates=1, total=10**6)
    spec = SourceSpec(layout, limiter, 256, device, normalize_obs=True, fresh_rings=(0,))
    gate = AlwaysAhead()
    source = ReplaySource(spec, Sampler([ring], np.random.default_rng(0), guard=0), gate, gate, 0)
    source.to_device(source.sample())  # page-locks its memory
    torch.cuda.synchronize(device)
    append(ring, 3)
    rows = source.sample()
    busy(device)
    with waits_refused():
        batches = source.to_device(rows)
    before = rows.clone()
    source.sample()  # waits: the block is still to be read
    assert torch.equal(batches.updates[0].obs.cpu(), before[0][:, layout.obs])
    assert batches.fresh_obs is not None
    assert batches.fresh_obs.shape == (3, 2)


class AlwaysAhead:
    """The gate of a collector that has done everything."""

    env_steps = 2000

    def wait_for(self, env_steps: int) -> None: ...
    def grant(self, env_steps: int) -> None: ...


def test_the_wait_behind_an_update_is_divided_among_what_it_was_for() -> None:
    """Draws that take as long as the update on the device: half of the wait is theirs."""
    device = torch.device("cuda", 0)
    ledger = Ledger(LearnerPhase)
    timer = make_device_timer(StreamSync(device), ledger, is_enabled=True)
    busy(device)
    timer.end_update()
    ledger.end_warmup()
    for _ in range(5):
        with ledger.phase(LearnerPhase.REPLAY_SAMPLE), timer.span(DeviceSpan.SAMPLE):
            busy(device)
        with ledger.phase(LearnerPhase.TRAIN):
            with timer.span(DeviceSpan.TRAIN):
                busy(device)
            timer.end_update()
    account, totals = ledger.account(), timer.totals()
    assert totals is not None
    assert totals.sample_ns == pytest.approx(totals.train_ns, rel=0.1)
    spent = account.phases_ns
    assert spent["replay_sample"] == pytest.approx(totals.sample_ns, rel=0.1)
    assert spent["train"] == pytest.approx(totals.train_ns, rel=0.1)
    assert sum(spent.values()) == account.wall_ns


def test_exposed_and_hidden_copies_are_the_device_time_of_the_copies() -> None:
    """Copies of 64 MiB; the learner waits for every second one."""
    device = torch.device("cuda", 0)
    device_timer = timer_of(device)
    device_timer.end_update()  # of the warm-up, whose copies do not count
    timer = device_timer.background_copies()
    assert timer is not None
    copies = CopyStream(device, StreamSync(device), timer)
    source, target = torch.ones(1 << 24, pin_memory=True), torch.zeros(1 << 24, device=device)
    expected_ms, stream = 0.0, copies._stream
    for index in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with timer.learner_waiting() if index % 2 else contextlib.nullcontext():
            begin.record(stream)
            copies.block_until(copies.copy(target, source, after=copies.learner_mark()))
            end.record(stream)
            with copies.as_current():
                timer.split_finished()
        end.synchronize()
        expected_ms += begin.elapsed_time(end)
    totals = device_timer.totals()
    assert totals is not None
    assert (totals.h2d_ns + totals.h2d_hidden_ns) / 1e6 == pytest.approx(
        expected_ms, rel=0.15
    )  # of copies of a millisecond each
    assert totals.h2d_ns / totals.h2d_hidden_ns == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(("side", "count", "expected"), [(8, 2000, 1), (8192, 20, 0)])
def test_tiny_kernels_are_launch_bound_and_large_ones_are_not(side: int, count: int, expected: int) -> None:
    device = torch.device("cuda", 0)
    device_timer, work = timer_of(device), torch.ones(side, side, device=device)
    for _ in range(7):  # the first one is warm-up
        with device_timer.span(DeviceSpan.TRAIN):
            for _ in range(count):
                torch.mm(work, work)
        device_timer.end_update()
    totals = device_timer.totals()
    assert totals is not None
    assert totals.train_ns > 0
    assert totals.iterations == 6
    assert totals.launch_bound == pytest.approx(6 * expected, abs=1)


def test_timing_adds_no_wait_for_the_device_and_changes_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "device": (torch.cuda, "synchronize"), "event": (torch.cuda.Event, "synchronize"),
        "stream": (torch.cuda.Stream, "synchronize"), "item": (torch.Tensor, "item"), "cpu": (torch.Tensor, "cpu"),
    }  # fmt: skip
    originals, counts = {name: getattr(*place) for name, place in places.items()}, []
    for name, place in places.items():

        def counted(*args: Any, _name: str = name, **kwargs: Any) -> Any:
            counts[-1][_name] += 1
            return originals[_name](*args, **kwargs)

        monkeypatch.setattr(*place, counted)
    states, device = [], torch.device("cuda", 0)
    for is_enabled in (False, True):
        counts.append(Counter[str]())
        device_timer = timer_of(device, is_enabled=is_enabled)
        learner = make_learner(AlgoConfig(name="sac"), SPEC, device, 7)
        for seed in range(10):
            with device_timer.span(DeviceSpan.TRAIN):
                learner.update(batches("cuda", seed))
            device_timer.end_update()
        states.append(learner.state().tensors)
    assert counts[0] == counts[1]
    assert counts[0]["stream"] == 10
    assert all(torch.equal(states[1][name], tensor) for name, tensor in states[0].items())


def test_what_the_device_attains_is_known_within_seconds() -> None:
    device = torch.device("cuda", 0)
    products = work_of_algo(AlgoConfig(name="sac"), SPEC, device).products
    attained = attainable_flops_per_sec(products, torch.float32, StreamSync(device))
    assert 1e10 < attained < 1e15
    busy(device, 200)  # the clocks are up now, whatever they were before
    torch.cuda.synchronize(device)  # or the time of measuring would pass in waiting for that
    again = attainable_flops_per_sec(products, torch.float32, StreamSync(device))
    assert attained == pytest.approx(again, rel=0.1)


def test_a_run_on_the_device_records_its_time_and_its_operations(tmp_path: Path) -> None:
    """That its account closes, see test_topologies.py."""
    train(tmp_path, "log.every_s=0.3")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "perf/flops_of_attainable" in record and "device/train_ms" in record][-1]
    assert 0.0 < last["device/train_ms"] <= 1.05 * last["timing/learner_train_ms"]
    assert 0.0 < last["device/busy_share"] <= 1.0
    assert last["device/dropped"] == 0
    assert 0.0 < last["perf/flops_of_attainable"] < 1.0
