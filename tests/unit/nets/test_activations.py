"""Activations in place against those of torch's modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from offpolicy.nets import activations
from offpolicy.nets.activations import FUSED_ACTIVATIONS, RELU, add_relu

WIDTHS = (1, 3, 8, 16, 17, 31, 32, 64, 100, 256)  # of whole vectors of a processor, of a part of one, and of both
kinds = pytest.mark.parametrize("kind", FUSED_ACTIVATIONS, ids=lambda kind: kind.__name__)
widths = pytest.mark.parametrize("width", WIDTHS)


@widths
@kinds
def test_products_with_biases_are_activated_in_place(kind: type[nn.Module], width: int) -> None:
    products, bias = 2.0 * torch.randn(2, 5, width), torch.randn(2, 1, width)
    expected = kind()(products + bias)
    result = FUSED_ACTIVATIONS[kind].add_and_apply(products, bias)
    assert result.data_ptr() == products.data_ptr()
    assert torch.allclose(result, expected, atol=1e-6)


@kinds
def test_the_derivative_is_that_of_autograd(kind: type[nn.Module]) -> None:
    inputs, slope = torch.randn(2, 5, 17, requires_grad=True), torch.randn(2, 5, 17)
    output = kind()(inputs)
    (expected,) = torch.autograd.grad(output, inputs, slope)
    found = FUSED_ACTIVATIONS[kind].differentiate(slope, output.detach())
    assert found.data_ptr() == slope.data_ptr()
    assert torch.allclose(found, expected, atol=1e-6)


@widths
def test_nan_stays_and_infinity_stays_too_large_to_be_squared(width: int) -> None:
    """A guard looks at losses and norms: it must find what went wrong below."""
    zeros = torch.zeros(2, 1, width)
    assert add_relu(torch.full((2, 5, width), float("nan")), zeros).isnan().all()
    assert add_relu(zeros.expand(-1, 5, -1).clone(), torch.full((2, 1, width), float("nan"))).isnan().all()
    assert add_relu(torch.full((2, 5, width), float("inf")), zeros).square().isinf().all()


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 1025, 64), (1, 2051, 32), (2, 256, 256), (2, 400, 96), (3, 341, 128)], ids=str)
def test_nan_stays_where_threads_share_a_row(shape: tuple[int, int, int], num_threads: int) -> None:
    """More numbers than one thread takes: a share may end anywhere."""
    torch.set_num_threads(num_threads)
    num_nets, _, width = shape
    assert add_relu(torch.full(shape, float("nan")), torch.zeros(num_nets, 1, width)).isnan().all()
    assert add_relu(torch.zeros(shape), torch.full((num_nets, 1, width), float("nan"))).isnan().all()


class Refusing:
    """The kernel, which must not be called."""

    def __call__(self, *_: object) -> None:
        raise AssertionError


@pytest.mark.parametrize("reason", ["no kernel", "compiled"])
def test_without_the_kernel_the_same_is_made_of_two(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    products, bias = torch.randn(2, 5, 64), torch.randn(2, 1, 64)
    expected = RELU.add_and_apply(products.clone(), bias)
    if reason == "no kernel":
        monkeypatch.setattr(activations, "_ADD_RELU", None)
        activations._is_one_pass.cache_clear()
    else:
        monkeypatch.setattr(activations, "_ADD_RELU", Refusing())
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(RELU.add_and_apply(products, bias), expected)
    activations._is_one_pass.cache_clear()
