"""Which library makes the products of float32, and products by oneDNN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpolicy import machine, onednn
from offpolicy.onednn import AUTO, BLAS, INTEL, ONEDNN, chosen_library, has_onednn, missing_library, multiply

AMD = "AuthenticAMD"


@pytest.mark.parametrize(
    ("choice", "has_library", "has_mkl", "has_avx512", "vendor", "expected"),
    [
        (AUTO, True, True, True, AMD, ONEDNN),
        (AUTO, True, True, True, INTEL, BLAS),  # MKL uses what there is
        (AUTO, True, True, False, AMD, BLAS),
        (AUTO, True, False, True, AMD, BLAS),  # another BLAS may use it as well
        (AUTO, False, True, True, AMD, BLAS),
        (BLAS, True, True, True, AMD, BLAS),
        (ONEDNN, True, False, False, INTEL, ONEDNN),
        (ONEDNN, False, True, True, AMD, BLAS),
    ],
)
def test_the_processor_decides_unless_the_library_is_named(
    choice: str,
    has_library: bool,
    has_mkl: bool,
    has_avx512: bool,
    vendor: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: a\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(onednn, "has_onednn", lambda: has_library)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: has_avx512)
    assert chosen_library(choice) == expected
    assert bool(missing_library(choice)) == (choice == ONEDNN and not has_library)


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
