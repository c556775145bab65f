"""Divergence and desync are found on all ranks at once, and name the rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.config.schema import RunConfig
from offpolicy.errors import DesyncError, NumericsError
from offpolicy.training.health import HealthCheck
from tests.unit.training.conftest import FakeWorld


def learner(*, has_diverged: bool = False, is_origin: bool = True) -> Any:
    tensors = {"actor": torch.arange(3.0)}
    return SimpleNamespace(has_diverged=lambda: has_diverged, is_origin=lambda: is_origin, tensors=lambda: tensors)


def check(num_ranks: int, *, algo: str = "sac", **state: bool) -> HealthCheck:
    runner = {"runner": {"name": "appo"}} if algo == "appo" else {}
    cfg = RunConfig.from_mapping({"algo": {"name": algo}, **runner})
    return HealthCheck(cfg, learner(**state), FakeWorld(num_ranks))


def test_healthy_ranks_pass() -> None:
    own = check(2).facts()
    check(2).require(np.array([own, own]))


@pytest.mark.promise("nan-never-trained", "ranks-together")
def test_a_diverged_loss_names_the_rank_it_began_on_and_the_step_sizes_to_lower() -> None:
    table = np.array([(1.0, 0.0, 7.0), (1.0, 1.0, 7.0)])
    with pytest.raises(NumericsError, match=r"NaN or Inf on rank 1 before .*algo\.actor_lr or algo\.critic_lr"):
        check(2).require(table)
    with pytest.raises(NumericsError, match=r"became NaN or Inf before .*Lower algo\.lr,"):
        check(1, algo="appo").require(table[1:])


def test_ranks_that_differ_from_rank_0_are_named() -> None:
    table = np.array([(0.0, 0.0, 7.0), (0.0, 0.0, 8.0), (0.0, 0.0, 9.0)])
    with pytest.raises(DesyncError, match="ranks 1, 2 no longer held"):
        check(3).require(table)


def test_a_rank_alone_makes_no_checksum() -> None:
    assert check(1).facts()[2] == 0.0
    assert check(2).facts()[2] != 0.0


def test_a_rank_reports_whether_the_loss_was_its_own() -> None:
    assert check(2, has_diverged=True, is_origin=False).facts()[:2] == (1.0, 0.0)
    assert check(2, has_diverged=True).facts()[:2] == (1.0, 1.0)
