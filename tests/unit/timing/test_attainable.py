"""What a machine attains is measured exactly, whatever else it does meanwhile, once, and never ends a run."""

from __future__ import annotations

import json
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from itertools import count, cycle, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.onednn import has_onednn, multiply
from offpolicy.timing import attainable
from offpolicy.timing.attainable import (
    BUDGET_NS,
    CPU_ROWS,
    MIN_ROUNDS,
    Watch,
    attainable_flops_per_sec,
    cache_directory,
    cache_key,
    remembered,
    remembered_attainable,
)
from offpolicy.timing.device_timer import StreamSync
from offpolicy.types import Direction, Product
from tests.fakes import FakeClock

CPU = torch.device("cpu")
FENCE = StreamSync(CPU)
PRODUCTS = (
    Product(Direction.FORWARD, 8, 3, 5, per_update=6.0),
    Product(Direction.WEIGHTS, 8, 3, 5, per_update=2.0),
    Product(Direction.INPUTS, 8, 5, 4, per_update=1.5),
)
KEY = {"processor": "a", "threads": 1, "products": [["forward", 8, 3, 5, 6.0]]}


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


class Drift:
    """A clock on which every span is half as long again as the one before."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns, self._reading = now_ns, count()

    def __call__(self) -> int:
        return int(self._now_ns() * 1.5 ** next(self._reading))


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


@pytest.mark.parametrize("is_rounded", [False, True])
def test_a_product_is_measured_with_its_factors_as_they_are(make_machine: MakeMachine, is_rounded: bool) -> None:
    machine, products = make_machine(), [one._replace(is_rounded=is_rounded) for one in PRODUCTS]
    assert attainable_flops_per_sec(products, CPU, FENCE, machine.watch) == pytest.approx(1e7, rel=1e-3)
    assert machine.dtypes == {torch.bfloat16 if is_rounded else torch.float32}
    assert cache_key(products, CPU, "a") != cache_key(
        [one._replace(is_rounded=not is_rounded) for one in products], CPU, "a"
    )


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
def test_a_product_is_measured_by_the_library_that_makes_it(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, products = make_machine(), [one._replace(is_onednn=True) for one in PRODUCTS]
    made: list[Tensor] = []

    def timed(left: Tensor, right: Tensor) -> Tensor:
        made.append(multiply(left, right))
        machine.mm(left, right, out=made[-1])
        return made[-1]

    monkeypatch.setattr(attainable, "multiply", timed)
    assert attainable_flops_per_sec(products, CPU, FENCE, machine.watch) == pytest.approx(1e7, rel=1e-3)
    assert made
    assert machine.num_calls == len(made)
    assert cache_key(products, CPU, "a") != cache_key(PRODUCTS, CPU, "a")


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


def test_a_time_that_was_seen_once_is_an_accident(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.clock.now_ns = Drift(machine.clock.now_ns)  # type: ignore[method-assign]
    assert attainable_flops_per_sec(PRODUCTS[:1], CPU, FENCE, machine.watch) is None


def test_a_quiet_machine_is_left_alone_as_soon_as_it_is_known(make_machine: MakeMachine) -> None:
    machine = make_machine()
    attainable_flops_per_sec(PRODUCTS, CPU, FENCE, machine.watch)
    assert machine.clock.now_ns() < 3 * MIN_ROUNDS * 150_000 < BUDGET_NS


def test_more_rows_than_saturate_a_core_are_counted_not_made(make_machine: MakeMachine) -> None:
    machine, product = make_machine(), Product(Direction.FORWARD, 5 * CPU_ROWS, 1, 1, per_update=1.0)
    assert attainable_flops_per_sec([product], CPU, FENCE, machine.watch) == pytest.approx(1e7, rel=1e-3)
    assert machine.sizes == {(CPU_ROWS, 1, 1)}


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


@pytest.mark.parametrize("other", [{"threads": 2}, {"processor": "b"}, {"products": [["forward", 8, 3, 5, 7.0]]}])
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


def test_bytes_that_are_no_text_are_measured_again(cache: Path) -> None:
    remembered(KEY, Measure(5e9))
    (path,) = cache.iterdir()
    path.write_bytes(b"\xff\xfe\x00")
    assert remembered(KEY, Measure(7e9)) == 7e9


def test_where_nothing_can_be_written_every_run_measures(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [5e9, 7e9]


def test_what_a_busy_machine_did_not_tell_is_not_remembered(cache: Path) -> None:
    measure = Measure(None, 5e9)
    assert remembered(KEY, measure) is None
    assert not cache.exists()
    assert remembered(KEY, measure) == 5e9


def test_the_key_tells_thread_counts_apart() -> None:
    one = cache_key((), CPU, "a")
    torch.set_num_threads(2)
    assert {name for name, value in cache_key((), CPU, "a").items() if value != one[name]} == {"threads"}


def test_the_directory_is_the_users_cache_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("OFFPOLICY_CACHE")
    assert cache_directory() == Path("/elsewhere/offpolicy")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "offpolicy"


def nobody(_: int) -> None:
    raise KeyError("no such user")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OFFPOLICY_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [5e9, 7e9]
    assert list(tmp_path.iterdir()) == []


def test_the_key_tells_numbers_of_allowed_cores_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for cores in (1, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        keys.append(cache_key((), CPU, "a"))
    assert {name for name, value in keys[0].items() if value != keys[1][name]} == {"cores"}


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


@pytest.mark.parametrize(("beside", "factor"), [(4e9, 1.25), (6e9, 1.0)])
def test_every_number_of_threads_is_measured_and_one_beside_a_busy_core(
    monkeypatch: pytest.MonkeyPatch, beside: float, factor: float
) -> None:
    def attained(*_: object) -> float:
        is_beside = any(thread.name == "busy" for thread in threading.enumerate())
        return beside if is_beside else 5e9 * torch.get_num_threads()

    monkeypatch.setattr("offpolicy.timing.attainable.attainable_flops_per_sec", attained)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = remembered_attainable(PRODUCTS, CPU, FENCE, "a", [1, 2])
        assert (found.by_threads, found.beside_factor) == ({1: 5e9, 2: 1e10}, factor)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert not any(thread.name == "busy" for thread in threading.enumerate())
    assert remembered_attainable(PRODUCTS, CPU, FENCE, "a", [2]).beside_factor == 1.0  # no core is left
