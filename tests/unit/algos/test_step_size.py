from __future__ import annotations

import pytest
import torch

from offpolicy.algos.step_size import StepSize
from offpolicy.config.schema import AlgoConfig

LR = 1e-3


def step_size(schedule: str, lr: float = LR) -> StepSize:
    algo = AlgoConfig(name="appo", lr=lr, lr_schedule=schedule, target_kl=0.01)
    return StepSize(algo, torch.device("cpu"))


def after_kl(schedule: str, *kls: float, lr: float = LR) -> float:
    """The step size after epochs of these KLs."""
    size = step_size(schedule, lr)
    for kl in kls:
        size.follow_kl(torch.tensor(kl))
    return float(size.value)


def after_progress(schedule: str, progress: float) -> float:
    size = step_size(schedule)
    size.follow_progress(progress)
    return float(size.value)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.0, 1.5), (0.0049, 1.5), (0.0051, 1.0), (0.01, 1.0), (0.0199, 1.0), (0.0201, 1 / 1.5), (float("inf"), 1 / 1.5)],
)
def test_the_adaptive_step_size_shrinks_above_twice_the_target_and_grows_below_half(kl: float, factor: float) -> None:
    assert after_kl("kl_adaptive", kl) == pytest.approx(factor * LR)


def test_a_kl_that_is_not_a_number_changes_nothing() -> None:
    assert after_kl("kl_adaptive", float("nan")) == pytest.approx(LR)


def test_changes_add_up_over_epochs() -> None:
    assert after_kl("kl_adaptive", 1.0, 1.0, 0.0) == pytest.approx(LR / 1.5)


@pytest.mark.parametrize(("kl", "limit"), [(1.0, 1e-6), (0.0, 1e-2)])
def test_the_adaptive_step_size_has_limits(kl: float, limit: float) -> None:
    assert after_kl("kl_adaptive", *[kl] * 40) == pytest.approx(limit)


@pytest.mark.parametrize(("progress", "share"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.1, 0.0)])
def test_the_linear_step_size_falls_to_zero_at_the_end_of_the_run(progress: float, share: float) -> None:
    assert after_progress("linear", progress) == pytest.approx(share * LR)


@pytest.mark.parametrize("schedule", ["constant", "kl_adaptive"])
def test_only_the_linear_step_size_follows_progress(schedule: str) -> None:
    assert after_progress(schedule, 0.5) == pytest.approx(LR)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_only_the_adaptive_step_size_follows_the_kl(schedule: str) -> None:
    assert after_kl(schedule, 1.0) == pytest.approx(LR)
    assert step_size(schedule).is_adaptive is False


@pytest.mark.parametrize("schedule", ["linear", "kl_adaptive"])
def test_the_tensor_that_the_optimiser_reads_stays_the_same_one(schedule: str) -> None:
    size = step_size(schedule)
    value = size.value
    size.follow_progress(0.5)
    size.follow_kl(torch.tensor(1.0))
    assert size.value is value
    assert float(value) < LR
