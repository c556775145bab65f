"""A machine whose products take a scripted time is measured exactly, whatever else it does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, cycle, repeat

import pytest
import torch
from torch import Tensor

from offpolicy.timing.attainable import BUDGET_NS, CPU_ROWS, MIN_ROUNDS, Watch, attainable_flops_per_sec
from offpolicy.timing.clock import FakeClock
from offpolicy.timing.device import DeviceFence
from offpolicy.types import Direction, Product

CPU = torch.device("cpu")
FENCE = DeviceFence(CPU)
PRODUCTS = (
    Product(Direction.FORWARD, 8, 3, 5, per_update=6.0),
    Product(Direction.WEIGHTS, 8, 3, 5, per_update=2.0),
    Product(Direction.INPUTS, 8, 5, 4, per_update=1.5),
)


class Machine:
    """Stands in for `torch.mm`: each call takes its operations by a speed, and waits for a core before."""

    def __init__(self, waits_ns: Iterator[int], slow_side: int | None = None) -> None:
        self.clock, self.queued_ns, self.num_calls = FakeClock(), 0, 0
        self.watch = Watch(self.clock, lambda: self.queued_ns)
        self.sizes: set[tuple[int, int, int]] = set()
        self._waits_ns, self._slow_side = waits_ns, slow_side

    def mm(self, left: Tensor, right: Tensor, *, out: Tensor) -> None:
        assert out.shape == (left.shape[0], right.shape[1])
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
