"""What a machine attains is measured exactly, whatever else it does meanwhile, once, and never ends a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.timing.attainable import (
    BUDGET_NS,
    Watch,
    attainable_flops_per_sec,
    remembered,
    remembered_attainable,
)
from offpolicy.timing.device_timer import StreamSync
from offpolicy.types import Product
from tests.fakes import FakeClock

CPU = torch.device("cpu")
FENCE = StreamSync(CPU)
PRODUCTS = (
    Product(8, 3, 5, per_update=6.0),
    Product(5, 8, 3, per_update=2.0),
    Product(8, 4, 5, per_update=1.5),
)
KEY = {"processor": "a", "threads": 1, "products": [[8, 3, 5, 6.0]]}


class Machine:
    """Stands in for `torch.mm`: each call takes its operations by a speed, and waits for a core before."""

    def __init__(self, waits_ns: Iterator[int], slow_side: int | None = None) -> None:
        self.clock, self.queued_ns, self.num_calls = FakeClock(), 0, 0
        self.watch = Watch(self.clock, lambda: self.queued_ns)
        self.sizes: set[tuple[int, int, int]] = set()
        self.dtypes: set[torch.dtype] = set()
        self._waits_ns, self._slow_side = waits_ns, slow_side

    def mm(self, left: Tensor, right: Tensor, *, out: Tensor) -> None:
        assert out.shape == (left.shape[0], right.shape[1])
        self.dtypes |= {left.dtype, right.dtype, out.dtype}
        size = left.shape[0], left.shape[1], right.shape[1]
        self.sizes.add(size)
        ns = 100 * 2 * left.shape[0] * left.shape[1] * right.shape[1]  # 0.01 operations per ns
        wait_ns = next(self._waits_ns)
        self.queued_ns += wait_ns
        self.clock.advance(wait_ns + ns * (2 if self._slow_side in size else 1))
        self.num_calls += 1


MakeMachine = Callable[..., Machine]


@pytest.fixture
def make_machine(monkeypatch: pytest.MonkeyPatch) -> MakeMachine:
    def make(waits_ns: Iterator[int] | None = None, slow_side: int | None = None) -> Machine:
        machine = Machine(waits_ns or repeat(0), slow_side)
        monkeypatch.setattr(torch, "mm", machine.mm)
        return machine

    return make


def test_a_machine_of_known_speed_is_measured_exactly(make_machine: MakeMachine) -> None:
    machine = make_machine()
    assert attainable_flops_per_sec(PRODUCTS, CPU, FENCE, machine.watch) == pytest.approx(1e7, rel=1e-3)
    assert machine.sizes == {(8, 3, 5), (5, 8, 3), (8, 4, 5)}


def test_products_count_as_often_as_an_update_makes_them(make_machine: MakeMachine) -> None:
    machine = make_machine(slow_side=4)  # the last product takes twice as long
    usual, slow = 8 * 240.0, 1.5 * 320.0
    expected = 1e7 * (usual + slow) / (usual + 2 * slow)
    assert attainable_flops_per_sec(PRODUCTS, CPU, FENCE, machine.watch) == pytest.approx(expected, rel=1e-3)


def test_readings_in_which_a_thread_waited_for_a_core_do_not_count(make_machine: MakeMachine) -> None:
    machine = make_machine(cycle((*repeat(0, 40), *repeat(70_000, 100))))
    assert attainable_flops_per_sec(PRODUCTS, CPU, FENCE, machine.watch) == pytest.approx(1e7, rel=0.02)


def test_where_every_call_waits_alike_nothing_is_known_and_the_budget_is_kept(make_machine: MakeMachine) -> None:
    machine = make_machine(repeat(12_000_000))
    assert attainable_flops_per_sec(PRODUCTS, CPU, FENCE, machine.watch) is None
    assert machine.clock.now_ns() < 1.1 * BUDGET_NS


def test_a_real_measurement_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    attained = attainable_flops_per_sec(PRODUCTS, CPU, FENCE)
    assert attained is None or attained > 0
    assert torch.equal(torch.get_rng_state(), before)


class Measure:
    """Counts how often it was asked, and answers with the next of its answers."""

    def __init__(self, *answers: float | None) -> None:
        self.answers, self.num_calls = answers, 0

    def __call__(self) -> float | None:
        self.num_calls += 1
        return self.answers[self.num_calls - 1]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFPOLICY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_second_run_does_not_measure(cache: Path) -> None:
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure) for _ in range(3)] == [5e9] * 3
    assert measure.num_calls == 1
    assert [path.name[:11] for path in cache.iterdir()] == ["attainable-"]


@pytest.mark.parametrize("other", [{"threads": 2}, {"processor": "b"}, {"products": [[8, 3, 5, 7.0]]}])
def test_another_machine_thread_count_or_network_is_measured_anew(other: dict[str, Any]) -> None:
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY | other, measure), remembered(KEY, measure)] == [5e9, 7e9, 5e9]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "7", '{"flops_per_sec": 1e9}', "[" * 100_000,
        json.dumps({"key": KEY, "flops_per_sec": 10**400}),
        json.dumps({"key": KEY}), json.dumps({"key": KEY, "flops_per_sec": "much"}),
        json.dumps({"key": KEY, "flops_per_sec": 0}), json.dumps({"key": KEY, "flops_per_sec": float("nan")}),
        json.dumps({"key": KEY, "flops_per_sec": [1]}), json.dumps({"key": {**KEY, "threads": 9}, "flops_per_sec": 1}),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_measured_again_and_mended(cache: Path, content: str) -> None:
    remembered(KEY, Measure(5e9))
    (path,) = cache.iterdir()
    path.write_text(content)
    measure = Measure(7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [7e9, 7e9]


def test_where_nothing_can_be_written_every_run_measures(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [5e9, 7e9]


def test_what_a_busy_machine_did_not_tell_is_not_remembered(cache: Path) -> None:
    measure = Measure(None, 5e9)
    assert remembered(KEY, measure) is None
    assert not cache.exists()
    assert remembered(KEY, measure) == 5e9


@pytest.mark.parametrize(
    "failure", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_measurement_that_finds_no_room_is_no_failure_of_the_run(
    monkeypatch: pytest.MonkeyPatch, failure: RuntimeError
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr("offpolicy.timing.attainable.attainable_flops_per_sec", fail)
    assert remembered_attainable(PRODUCTS, CPU, FENCE, "a", [1]) == ({}, 1.0)
