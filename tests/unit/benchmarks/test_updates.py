from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.parts import halfcheetah, updates


class WideProducts(TorchDispatchMode):
    """Counts the products [256, 256] x [256, 256]."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = args[-2:]
            shapes = Counter([*left.shape[-2:], *right.shape[-2:]])
            self.count += (len(left) if left.ndim == 3 else 1) * (shapes == {updates.WIDTH: 4})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("algo", updates.PRODUCTS)
def test_the_floor_is_made_of_the_products_of_an_update(algo: str) -> None:
    learner, batches = halfcheetah.learner(algo), halfcheetah.batches()
    with WideProducts() as products:
        for _ in range(2):
            learner.update(batches)
    assert products.count / 2 == updates.PRODUCTS[algo]


def test_each_case_is_measured_beside_its_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "CALLS", 2)
    monkeypatch.setattr(updates, "THREADS", (torch.get_num_threads(),))
    measured = list(updates.measure(1))
    assert [one.unit for one in measured] == ["ms", "ms", ""] * 2
    for update, floor, ratio in zip(measured[::3], measured[1::3], measured[2::3], strict=True):
        pairs = zip(update.samples, floor.samples, strict=True)
        assert list(ratio.samples) == pytest.approx([ours / theirs for ours, theirs in pairs])
