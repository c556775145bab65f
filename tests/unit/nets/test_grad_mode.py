"""Functions without a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.nets.grad_mode import no_grad


@no_grad
def doubled(values: Tensor, *, and_one: bool = False) -> Tensor:
    """Doubles."""
    assert not torch.is_grad_enabled()
    return 2.0 * values + float(and_one)


def test_a_function_makes_no_graph_wherever_it_is_called() -> None:
    weight = torch.ones(3, requires_grad=True)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            result = doubled(weight, and_one=True)
        assert result.tolist() == [3.0] * 3
        assert not result.requires_grad
    assert torch.is_grad_enabled()


def test_a_function_stays_what_it_was_called() -> None:
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Doubles.")
