"""The work counted in a learner's first updates is that of pencil and paper, and what a machine attains is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.onednn import has_onednn
from offpolicy.timing.device_timer import StreamSync
from offpolicy.training.flops import BUDGET_NS, Product, Work, attainable_flops_per_sec
from offpolicy.types import Rollouts, SpaceSpec
from tests.fakes import FakeClock
from tests.first_updates import batches_of, work_of, work_of_algo

CPU = torch.device("cpu")
SPEC = SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2)
ROWS, WIDTH = 32, 5


def small_work(name: str, **algo: Any) -> Work:
    """Of one hidden layer of WIDTH, and batches of ROWS."""
    return work_of_algo(AlgoConfig(**{"name": name, "hidden_dims": (WIDTH,), "batch_size": ROWS, **algo}), SPEC)


def forward(inputs: int, outputs: int) -> int:
    """Operations of a perceptron per row: two for each weight."""
    return 2 * (inputs * WIDTH + WIDTH * outputs)


def gradients(inputs: int, outputs: int) -> int:
    """Of its weights, and of its hidden layer."""
    return forward(inputs, outputs) + 2 * WIDTH * outputs


@pytest.mark.parametrize(("kernels", "columns"), [("fast", 2), ("textbook", 5)])
@pytest.mark.parametrize(("name", "outputs", "through"), [("sac", 4, 2), ("td3", 2, 1)])
def test_updates_of_sac_and_td3_are_counted(name: str, outputs: int, through: int, kernels: str, columns: int) -> None:
    """The gradient of a value by the action alone, or as autograd computes it, by the observation beside it too."""
    critics, actor = (5, 1), (3, outputs)
    learning = 2 * forward(*critics) + 2 * forward(*critics) + 2 * gradients(*critics)  # targets, values
    acting = forward(*actor) + gradients(*actor) + through * (forward(*critics) + forward(columns, 1))
    work = small_work(name, policy_delay=2, kernels=kernels)
    assert work.flops == ROWS * (forward(*actor) + learning + acting / 2)
    of_products = sum(number * 2 * p.rows * p.inner * p.columns for p, number in work.products.items())
    assert of_products == pytest.approx(work.flops)


def test_epochs_of_appo_are_counted() -> None:
    """Values and policy once per batch of rollouts, of T + 1 and of T observations; then 3 epochs in 4 parts."""
    learner = make_learner(AlgoConfig(name="appo", hidden_dims=(WIDTH,), epochs=3, num_minibatches=4), SPEC, CPU, 0)
    obs, action, column = torch.zeros(9, 4, 3), torch.zeros(8, 4, 2), torch.zeros(8, 4)
    rollouts = Rollouts(obs, action, column, column, column, column, torch.ones_like(column), progress=0.0)
    once = 4 * 9 * forward(3, 1) + 4 * 8 * forward(3, 2)
    epoch = 4 * 8 * (forward(3, 2) + gradients(3, 2) + forward(3, 1) + gradients(3, 1))
    assert work_of(learner, rollouts).flops == pytest.approx((once + 3 * epoch) / 12)


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN for float32")
def test_products_of_onednn_are_counted_as_those_of_the_blas() -> None:
    works = {name: small_work("sac", hidden_dims=(128, 128), products=name) for name in ("blas", "onednn")}
    assert works["blas"].flops == works["onednn"].flops
    assert {product.is_onednn for product in works["blas"].products} == {False}
    inner = {(p.rows, p.inner, p.columns) for p in works["onednn"].products if p.is_onednn}
    assert inner == {(ROWS, 128, 128), (2 * ROWS, 128, 128), (128, ROWS, 128)}


@pytest.mark.parametrize("kernels", ["fast", "textbook"])
def test_counted_updates_have_the_bits_of_others(kernels: str) -> None:
    algo = AlgoConfig(name="sac", hidden_dims=(WIDTH,), batch_size=ROWS, policy_delay=2, kernels=kernels)
    plain, watched = (make_learner(algo, SPEC, CPU, 0) for _ in range(2))
    batches = batches_of(SPEC, ROWS)
    work_of(watched, batches, batches)
    for _ in range(2):
        plain.update(batches)
    ours, theirs = plain.state().tensors, watched.state().tensors
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


FENCE = StreamSync(CPU)
PRODUCTS = {Product(8, 3, 5): 6.0, Product(5, 8, 3): 2.0, Product(8, 4, 5): 1.5}


class Machine:
    """Stands in for `torch.mm`: each call takes its operations by a speed, and waits for a core before."""

    def __init__(self, waits_ns: Iterator[int], slow_side: int | None = None) -> None:
        self.clock, self._waits_ns, self._slow_side = FakeClock(), waits_ns, slow_side

    def mm(self, left: Tensor, right: Tensor, *, out: Tensor) -> None:
        size = left.shape[0], left.shape[1], right.shape[1]
        assert out.shape == (size[0], size[2])
        ns = 100 * 2 * size[0] * size[1] * size[2]  # 0.01 operations per ns
        self.clock.advance(next(self._waits_ns) + ns * (2 if self._slow_side in size else 1))

    def attained(self) -> float:
        return attainable_flops_per_sec(PRODUCTS, torch.float32, FENCE, self.clock.now_ns)


@pytest.fixture
def make_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def make(waits_ns: Iterator[int] | None = None, slow_side: int | None = None) -> Machine:
        machine = Machine(waits_ns or repeat(0), slow_side)
        monkeypatch.setattr(torch, "mm", machine.mm)
        return machine

    return make


def test_a_machine_of_known_speed_is_measured_exactly_and_in_time(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine()
    assert machine.attained() == pytest.approx(1e7, rel=1e-3)
    assert machine.clock.now_ns() < 1.1 * BUDGET_NS


def test_other_programs_that_take_the_core_now_and_then_change_nothing(make_machine: Callable[..., Machine]) -> None:
    assert make_machine(cycle((*repeat(0, 40), *repeat(70_000, 100)))).attained() == pytest.approx(1e7, rel=0.02)


def test_a_real_measurement_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert attainable_flops_per_sec(PRODUCTS, torch.float32, FENCE) > 0
    assert torch.equal(torch.get_rng_state(), before)
