from __future__ import annotations

import pytest

from benchmarks.gemm import Products, floor_ms, hidden_products, product_calls
from benchmarks.parts import halfcheetah
from offpolicy.algos.flops import count_work
from offpolicy.types import Direction


def test_sac_makes_16_products_and_td3_11_and_a_half() -> None:
    assert hidden_products("sac", policy_delay=1) == Products(8.0, 5.0, 3.0)
    assert hidden_products("td3", policy_delay=2) == Products(6.0, 3.0, 2.5)
    assert hidden_products("sac", policy_delay=1).total == 16.0


@pytest.mark.parametrize("algo", ["sac", "td3"])
@pytest.mark.parametrize("overrides", [(), ("algo.policy_delay=3",), ("algo.hidden_dims=[256,256,256]",)])
def test_the_formula_agrees_with_a_count_of_the_update(algo: str, overrides: tuple[str, ...]) -> None:
    cfg = halfcheetah.config(algo, *overrides)
    found = dict.fromkeys(Direction, 0.0)
    for product in count_work(cfg, halfcheetah.SPEC).products:
        if product.inputs == product.outputs == 256:
            found[product.direction] += product.per_update * product.rows / cfg.algo.batch_size
    expected = hidden_products(algo, cfg.algo.policy_delay, len(cfg.algo.hidden_dims))
    assert tuple(found[one] for one in (Direction.FORWARD, Direction.INPUTS, Direction.WEIGHTS)) == pytest.approx(
        tuple(expected)
    )


def test_the_products_have_the_shapes_of_the_layer() -> None:
    across, back = product_calls(rows=3, width=5)
    shapes = [tuple(getattr(call(), "shape", ())) for call in (across, back)]
    assert shapes == [(3, 5), (5, 5)]


def test_the_floor_grows_with_the_number_of_products() -> None:
    few = min(floor_ms(Products(1, 0, 0), 64, 64, 200) for _ in range(5))
    many = min(floor_ms(Products(16, 16, 0), 64, 64, 200) for _ in range(5))
    assert many > 8 * few
