"""float32 matrix products by oneDNN, where the BLAS of torch does not use the widest instructions of a CPU.

MKL, with which the CPU builds of torch multiply, takes its AVX-512 kernels on Intel's processors alone: an AMD EPYC of
family 26 (Zen 5) runs at half its speed. oneDNN chooses by the instructions that there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offpolicy.machine import cpu_fact

AUTO, BLAS, ONEDNN = "auto", "blas", "onednn"  # values of `algo.products`
AMD, FIRST_FAMILY = "AuthenticAMD", 26  # measured; family 25 (Zen 4) computes AVX-512 in two halves
# The operator that torch's compiler uses for linear layers; private, so a torch may be without it.
OPERATOR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # Any: torch declares no type


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns the product, with a bias for each column. [a, b], [b, c], [c] -> [a, c], fresh memory."""
    turned = right.t()
    if not (right.is_contiguous() or turned.is_contiguous()):
        turned = turned.contiguous()  # with gaps between its rows it would be 2,000 times as slow
    product: Tensor = OPERATOR.default(left, turned, bias, "none", [], "")
    return product


def chosen_library(choice: str) -> str:
    """Returns the library for products of float32 on this CPU by `algo.products`: the choice, or the processor's.

    By the kind of processor and not by a measurement, so that a run that goes on has the bits that it would have had.
    """
    if choice == BLAS or not has_onednn():
        return BLAS
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]  # of torch
    # MKL takes its AVX2 kernels there, although the processor has all of AVX-512.
    leaves_avx512_unused = (
        torch.cpu._is_avx512_supported()
        and cpu_fact("vendor_id") == AMD
        and int(cpu_fact("cpu family")) >= FIRST_FAMILY
    )
    return ONEDNN if choice == ONEDNN or (has_mkl and leaves_avx512_unused) else BLAS


def has_onednn() -> bool:
    """True if this torch has oneDNN, with the operator that takes float32 factors as they are."""
    is_built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # of torch
    return is_built_in and OPERATOR is not None
