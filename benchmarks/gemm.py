"""The floor of a gradient update: the time of nothing but its matrix products between hidden layers.

Of an MLP with two hidden layers of W units and a batch of B rows, each network that is applied makes one product
[B, W] x [W, W], its backward pass one of the same shape for the inputs and one [W, B] x [B, W] for the weights. SAC
makes 16 of them per update (arXiv:1812.05905, two critics), TD3 11.5 on average with a policy delay of 2
(arXiv:1802.09477). Two of SAC's are made as one of 2 B rows. The narrow products of the first and the last layer are
not in the floor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.parts.measurement import call_us


class Products(NamedTuple):
    """Products between hidden layers per gradient update, by their part of the update."""

    forward: float
    inputs: float  # backward, for the inputs
    weights: float  # backward, for the weights

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


# (target action, target critics, critics; their backward passes), and of one actor update, which is every `delay`-th.
CRITIC_UPDATE = Products(forward=1 + 2 + 2, inputs=2, weights=2)
ACTOR_UPDATE = {
    "sac": Products(forward=1 + 2, inputs=2 + 1, weights=1),  # through both critics
    "td3": Products(forward=1 + 1, inputs=1 + 1, weights=1),  # through the first
}


def hidden_products(algo: str, policy_delay: int, hidden_layers: int = 2) -> Products:
    """The products of an update of SAC or TD3, on average over an actor's update and those before it."""
    pairs = zip(CRITIC_UPDATE, ACTOR_UPDATE[algo], strict=True)
    return Products(*((hidden_layers - 1) * (critic + actor / policy_delay) for critic, actor in pairs))


def product_calls(rows: int, width: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The two products of the floor, into kept memory: [B, W] x [W, W] and [W, B] x [B, W]."""
    generator = torch.Generator().manual_seed(1)
    hidden, weights = torch.randn(rows, width, generator=generator), torch.randn(width, width, generator=generator)
    turned = torch.randn(width, rows, generator=generator)
    into_hidden, into_weights = torch.empty(rows, width), torch.empty(width, width)
    return partial(torch.mm, hidden, weights, out=into_hidden), partial(torch.mm, turned, hidden, out=into_weights)


def floor_ms(products: Products, rows: int, width: int, calls: int) -> float:
    """Milliseconds of an update's products, on the threads that torch has now, from the mean of `calls` of each."""
    across, back = product_calls(rows, width)
    across_us, back_us = call_us(across, calls), call_us(back, calls)
    return ((products.forward + products.inputs) * across_us + products.weights * back_us) / 1000
