from __future__ import annotations

import pytest
import torch
from torch import Tensor

from offpolicy.algos import losses

B = torch.tensor
ONE, BOTH = B([1.0]), B([1.0, 1.0])


def test_a_masked_mean_is_that_of_the_rows_that_count() -> None:
    assert float(losses.masked_mean(B([1.0, 100.0, 3.0]), B([1.0, 0.0, 1.0]))) == 2.0


def test_a_masked_mean_of_no_row_is_zero() -> None:
    assert float(losses.masked_mean(B([5.0, 7.0]), B([0.0, 0.0]))) == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 1.0, -1.2, 0.0),  # good and likelier than that already: no more to gain
        (0.5, 1.0, -0.5, -0.5),  # good and less likely: pulled back without a bound
        (1.5, -1.0, 1.5, 1.5),  # bad and likelier: pushed down without a bound
        (0.5, -1.0, 0.8, 0.0),  # bad and less likely than that already
    ],
)
def test_the_surrogate_is_clipped_on_the_side_of_the_gain(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    log_ratio = B([ratio]).log().requires_grad_()
    surrogate = losses.clipped_surrogate(log_ratio, B([advantage]), ONE, clip=0.2)
    (gradient,) = torch.autograd.grad(surrogate, [log_ratio])
    assert float(surrogate.detach()) == pytest.approx(loss)
    assert float(gradient) == pytest.approx(slope)


def test_the_surrogate_is_the_mean_of_the_rows_that_count() -> None:
    log_ratio = B([1.0, 1.0, 9.0]).log()
    assert float(losses.clipped_surrogate(log_ratio, B([1.0, 3.0, 99.0]), B([1.0, 1.0, 0.0]), 0.2)) == -2.0


def test_value_loss_is_half_the_squared_error_of_the_rows_that_count() -> None:
    loss = losses.value_loss(B([1.0, 2.0, 50.0]), B([0.0, 4.0, 0.0]), B([1.0, 1.0, 0.0]))
    assert float(loss) == 0.5 * (1.0 + 4.0) / 2


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"),
    [
        (3.0, 3.0, 0.5 * 1.5**2, 0.0),  # too far up from 1: the error of 1.5 counts, and pulls no further
        (3.0, 0.0, 0.5 * 3.0**2, 3.0),  # too far and on the wrong side: its own error counts
        (-1.0, -1.0, 0.5 * 1.5**2, 0.0),  # and downwards
        (-1.0, 2.0, 0.5 * 3.0**2, -3.0),
        (1.25, 2.0, 0.5 * 0.75**2, -0.75),  # near enough: the plain loss
    ],
)
def test_clipped_value_loss_takes_the_greater_error(value: float, target: float, loss: float, slope: float) -> None:
    prediction = B([value]).requires_grad_()
    got = losses.clipped_value_loss(prediction, B([1.0]), B([target]), ONE, clip=0.5)
    (gradient,) = torch.autograd.grad(got, [prediction])
    assert float(got.detach()) == pytest.approx(loss)
    assert float(gradient) == pytest.approx(slope)


def test_clipped_value_loss_is_the_mean_of_the_rows_that_count() -> None:
    loss = losses.clipped_value_loss(B([3.0, 70.0]), B([1.0, 1.0]), B([0.0, 0.0]), B([1.0, 0.0]), 0.5)
    assert float(loss) == 4.5


def test_bounds_loss_is_the_squared_excess_summed_over_dimensions_of_the_rows_that_count() -> None:
    mean = B([[2.1, -3.1], [0.5, -0.5], [99.0, 0.0]])
    assert float(losses.bounds_loss(mean, B([1.0, 1.0, 0.0]))) == pytest.approx((1.0 + 4.0) / 2)


def slopes(means: Tensor) -> list[float]:
    """By mean, what the bounds loss does to it."""
    mean = means[:, None].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses.bounds_loss(mean, torch.ones(len(means))), [mean])
    return (gradient.squeeze(-1) * len(means)).tolist()


def test_bounds_loss_pulls_at_no_mean_inside_the_bounds() -> None:
    assert slopes(B([-1.1, -1.0, 0.0, 1.0, 1.1])) == [0.0] * 5  # HORA's of 2022 had its minimum at +1.1 alone


def test_bounds_loss_pulls_both_sides_inwards_alike() -> None:
    assert slopes(B([-2.1, -1.6, 1.6, 2.1])) == pytest.approx([-2.0, -1.0, 1.0, 2.0])


def test_columns_are_refused() -> None:
    column = torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"advantage has shape \(2, 1\)"):
        losses.clipped_surrogate(BOTH, column, BOTH, 0.2)
    with pytest.raises(ValueError, match=r"value has shape \(2, 1\)"):
        losses.value_loss(column, BOTH, BOTH)
    with pytest.raises(ValueError, match=r"target has shape \(2, 1\)"):
        losses.clipped_value_loss(BOTH, BOTH, column, BOTH, 0.2)
    with pytest.raises(ValueError, match=r"mean has shape \(2,\)"):
        losses.bounds_loss(BOTH, BOTH)
