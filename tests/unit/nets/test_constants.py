"""Numbers as tensors that are made once."""

from __future__ import annotations

import pytest
import torch

from offpolicy.nets.constants import constant, mean

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@dtypes
def test_a_constant_is_made_once_in_the_dtype_of_its_partner(dtype: torch.dtype) -> None:
    like = torch.ones(3, dtype=dtype)
    assert constant(0.25, like) is constant(0.25, like)
    assert (constant(0.25, like) * like).tolist() == [0.25] * 3
    assert (constant(0.25, like).shape, constant(0.25, like).dtype) == ((), dtype)
    assert float(constant(0.5, like)) == 0.5


@dtypes
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 256), (3, 5, 2)])
@pytest.mark.parametrize("factor", [1.0, -1.0])
def test_a_mean_is_that_of_torch(shape: tuple[int, ...], factor: float, dtype: torch.dtype) -> None:
    values = torch.randn(shape, dtype=dtype)
    assert mean(values, factor).shape == ()
    assert torch.allclose(mean(values, factor), factor * values.mean(), atol=1e-6)
    assert torch.allclose(mean(values.mT if values.ndim > 1 else values), values.mean(), atol=1e-6)


def test_a_mean_with_nan_is_nan() -> None:
    assert mean(torch.tensor([1.0, float("nan")])).isnan()
    assert mean(torch.tensor([1.0, float("inf")])).isinf()


def test_one_made_for_an_update_without_graphs_may_be_part_of_a_graph() -> None:
    with torch.inference_mode():
        number = constant(1.0 / 977, torch.ones(()))
        mean(torch.ones(977))
    weights = torch.ones(977, requires_grad=True)
    (number * mean(weights * weights)).backward()  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    assert torch.allclose(weights.grad, torch.full((977,), 2.0 / 977 / 977))
