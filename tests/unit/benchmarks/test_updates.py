from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.parts import updates

WIDTH = 256


class WideProducts(TorchDispatchMode):
    """Counts the products [256, 256] x [256, 256]."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = args[-2:]
            shapes = Counter([*left.shape[-2:], *right.shape[-2:]])
            self.count += (len(left) if left.ndim == 3 else 1) * (shapes == {WIDTH: 4})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("algo", updates.ALGOS)
def test_the_floor_is_made_of_the_products_that_an_update_makes(algo: str) -> None:
    case = updates.Case.of(algo)
    with WideProducts() as products:
        for _ in range(2):  # TD3's policy delay
            case.learner.update(case.batches)
    assert products.count / 2 == case.products.total
