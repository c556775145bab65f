"""Which library makes the products of float32, and products by oneDNN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpolicy import machine, onednn
from offpolicy.algos.flops import count_work
from offpolicy.config.schema import RunConfig
from offpolicy.onednn import AMD, AUTO, BLAS, ONEDNN, chosen_library, has_onednn, missing_library, multiply
from offpolicy.types import SpaceSpec


@pytest.mark.parametrize(
    ("choice", "has_library", "has_mkl", "has_avx512", "vendor", "family", "expected"),
    [
        (AUTO, True, True, True, AMD, 26, ONEDNN),
        (AUTO, True, True, True, AMD, 27, ONEDNN),
        (AUTO, True, True, True, AMD, 25, BLAS),  # not measured
        (AUTO, True, True, True, "GenuineIntel", 26, BLAS),  # MKL uses what there is
        (AUTO, True, True, True, "", 26, BLAS),  # who knows
        (AUTO, True, True, False, AMD, 26, BLAS),
        (AUTO, True, False, True, AMD, 26, BLAS),  # another BLAS may use it as well
        (AUTO, False, True, True, AMD, 26, BLAS),
        (BLAS, True, True, True, AMD, 26, BLAS),
        (ONEDNN, True, False, False, "GenuineIntel", 6, ONEDNN),
        (ONEDNN, False, True, True, AMD, 26, BLAS),
    ],
)
def test_the_processor_decides_unless_the_library_is_named(
    choice: str,
    has_library: bool,
    has_mkl: bool,
    has_avx512: bool,
    vendor: str,
    family: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(onednn, "has_onednn", lambda: has_library)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: has_avx512)
    assert chosen_library(choice) == expected
    assert bool(missing_library(choice)) == (choice == ONEDNN and not has_library)


def test_a_torch_without_the_operator_has_its_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_OPERATOR", None)
    assert not has_onednn()
    assert chosen_library(AUTO) == chosen_library(ONEDNN) == BLAS
    assert count_work(RunConfig(), SpaceSpec(3, 2, (-1.0, -1.0), (1.0, 1.0))).update > 0


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
def test_torch_keeps_the_private_operator() -> None:
    found = str(onednn._OPERATOR.default._schema)
    signature = "(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y"
    assert found.endswith(signature), f"torch {torch.__version__} changed mkldnn::_linear_pointwise: {found}"


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
