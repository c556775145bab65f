"""Activations in place against those of torch's modules."""

from __future__ import annotations

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
def test_what_is_no_number_stays_so_and_infinity_stays_too_large_to_be_squared(width: int) -> None:
    """A guard looks at losses and norms: it must find what went wrong below."""
    zeros = torch.zeros(2, 1, width)
    assert add_relu(torch.full((2, 5, width), float("nan")), zeros).isnan().all()
    assert add_relu(zeros.expand(-1, 5, -1).clone(), torch.full((2, 1, width), float("nan"))).isnan().all()
    assert add_relu(torch.full((2, 5, width), float("inf")), zeros).square().isinf().all()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_without_the_kernel_the_same_is_made_of_two(monkeypatch: pytest.MonkeyPatch, is_compiled: bool) -> None:  # noqa: FBT001
    products, bias = torch.randn(2, 5, 17), torch.randn(2, 1, 17)
    expected = RELU.add_and_apply(products.clone(), bias)
    if is_compiled:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    else:
        monkeypatch.setattr(activations, "_ADD_RELU", None)
    assert torch.equal(RELU.add_and_apply(products, bias), expected)
