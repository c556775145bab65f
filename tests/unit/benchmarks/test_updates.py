from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.parts import updates
from offpolicy.onednn import is_product

WIDTH = 256


class WideProducts(TorchDispatchMode):
    """Counts the products [256, 256] x [256, 256]; one of twice the rows, of both observations, as two."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm") or is_product(func.overloadpacket):
            left, right = args[:2] if is_product(func.overloadpacket) else args[-2:]
            shapes = Counter([*left.shape[-2:], *right.shape[-2:]])
            number = 2 * (shapes == {2 * WIDTH: 1, WIDTH: 3}) + (shapes == {WIDTH: 4})
            self.count += number * (len(left) if left.ndim == 3 else 1)
        return func(*args, **(kwargs or {}))


def test_torch_is_afterwards_as_it_was_before() -> None:
    denormal, threads = torch.tensor(1e-39), torch.get_num_threads()
    with contextlib.suppress(KeyError), updates.as_in_a_learner():
        torch.set_num_threads(threads + 1)
        assert float(denormal * 0.5) == 0.0
        raise KeyError
    assert float(denormal * 0.5) > 0.0
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("algo", updates.ALGOS)
def test_the_floor_is_made_of_the_products_that_an_update_makes(algo: str) -> None:
    case = updates.Case.of(algo)
    with WideProducts() as products:
        for _ in range(2):  # TD3's policy delay
            case.learner.update(case.batches)
    assert products.count / 2 == case.products.total


def test_flashsac_is_measured_without_a_floor_with_every_library_and_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(updates, "SAMPLES", 1)
    monkeypatch.setattr(updates, "CALLS", 1)
    monkeypatch.setattr(updates, "chosen_library", lambda choice: "onednn")
    monkeypatch.setattr(updates, "measure_beside_floors", lambda rounds: iter(()))
    measured = list(updates.measure(2))
    assert [one.name for one in measured] == [
        *("FLASHSAC, 1 thread", "FLASHSAC, 2 threads"),
        *("FLASHSAC with the BLAS, 1 thread", "FLASHSAC with the BLAS, 2 threads"),
    ]
    assert all(one.unit == "ms" and len(one.samples) == 2 for one in measured)
