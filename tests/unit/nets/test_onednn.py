"""Which library makes the products of float32, and products by oneDNN."""

from __future__ import annotations

import pytest
import torch

from offpolicy.nets.onednn import has_onednn, multiply


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("turned_left", [False, True])
@pytest.mark.parametrize("turned_right", [False, True])
@pytest.mark.parametrize("gap", [0, 2])
def test_a_product_of_any_layout_is_that_of_the_blas(turned_left: bool, turned_right: bool, gap: int) -> None:
    def matrix(rows: int, columns: int, *, turned: bool) -> torch.Tensor:
        shape = (columns, rows + gap) if turned else (rows, columns + gap)
        block = torch.randn(shape)
        return block[:, : shape[1] - gap].t() if turned else block[:, :columns]

    left, right = matrix(40, 64, turned=turned_left), matrix(64, 24, turned=turned_right)
    bias = torch.randn(24)
    assert torch.allclose(multiply(left, right), left @ right, rtol=1e-5, atol=1e-4)
    assert torch.allclose(multiply(left, right, bias), torch.addmm(bias, left, right), rtol=1e-5, atol=1e-4)
