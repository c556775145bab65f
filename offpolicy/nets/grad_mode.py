"""`torch.no_grad` for functions that most often run where there is no graph anyway."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def no_grad(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """As `@torch.no_grad()`, which costs as much as a small operation also where autograd is off."""
    guarded: Callable[Arguments, Result] = torch.no_grad()(function)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return guarded(*args, **kwargs) if torch.is_grad_enabled() else function(*args, **kwargs)

    return call
