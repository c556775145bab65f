"""The update rule of examples/tqc reads the options that it has in common with SAC."""

from __future__ import annotations

import importlib

import pytest
import torch

from offpolicy.algos.optim import SoloExchange
from offpolicy.config import sections
from offpolicy.types import Batch, SpaceSpec
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("bound", [None, 1e-3])
def test_gradients_are_clipped_as_asked(monkeypatch: pytest.MonkeyPatch, bound: float | None) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples/tqc"))
    package = importlib.import_module("offpolicy_tqc")
    monkeypatch.setattr(sections, "ALGORITHMS", (*sections.ALGORITHMS, package.TQC))  # it is not installed here
    options = package.TqcConfig(hidden_dims=(8,), max_grad_norm=bound)
    spec, rows = SpaceSpec(3, 2, (-1.0, -1.0), (1.0, 1.0)), torch.Generator().manual_seed(0)
    tqc = importlib.import_module("offpolicy_tqc.update").Tqc(options, spec, torch.device("cpu"), 0, SoloExchange())

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rows)

    flags = torch.zeros(16)
    batch = Batch(drawn(16, 3), drawn(16, 2).tanh(), drawn(16), drawn(16, 3), flags, flags + 0.99)
    tqc.update_once(batch, has_actor_step=True)
    for optimizer in (tqc._critic.optimizer, tqc._actor_optimizer):
        norm = float(optimizer.gradient.norm())
        assert norm == pytest.approx(bound, rel=1e-3) if bound else norm > 0.01
