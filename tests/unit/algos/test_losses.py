from __future__ import annotations

import math

import pytest
import torch

from offpolicy.algos import losses

B = torch.tensor


@pytest.mark.promise("bootstrap")
def test_td_target_bootstraps_unless_terminated_and_uses_the_discount_of_the_row() -> None:
    target = losses.td_target(
        reward=B([1.0, 1.0, 1.0]),
        discount=B([0.9, 0.9, 0.81]),
        terminated=B([0.0, 1.0, 0.0]),  # a truncated row is a row that is not terminated
        next_value=B([10.0, 10.0, 10.0]),
    )
    assert target.tolist() == pytest.approx([10.0, 1.0, 9.1])


def alpha_gradient(log_prob: float) -> float:
    log_alpha = B(math.log(0.5), requires_grad=True)
    losses.alpha_loss(log_alpha.exp(), B(-log_prob), target_entropy=B(-2.0)).backward()
    assert log_alpha.grad is not None
    return float(log_alpha.grad)


def test_a_row_of_no_weight_may_hold_any_action() -> None:
    log_ratio = torch.tensor([0.1, 200.0], requires_grad=True)
    loss = losses.clipped_surrogate(log_ratio, torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0]), 0.2)
    (gradient,) = torch.autograd.grad(loss, log_ratio)
    assert gradient.tolist() == pytest.approx([-2.0 * math.exp(0.1), 0.0], rel=1e-4)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_projected_distribution_of_nan_is_nan_in_its_row_alone(poison: float) -> None:
    log_probs, reward = torch.full((2, 3), 1 / 3).log(), torch.tensor([0.0, poison])
    factor = torch.tensor([0.5, -math.inf if poison == math.inf else 0.5])  # inf - inf
    result = losses.projected(log_probs, torch.tensor([-1.0, 0.0, 1.0]), reward, factor, torch.zeros(2))
    assert result[0].sum() == pytest.approx(1.0)
    assert bool(result[1].isnan().any())


@pytest.mark.promise("temperature-loss")
def test_too_little_entropy_raises_the_temperature() -> None:
    assert alpha_gradient(log_prob=3.0) == pytest.approx(-0.5)  # entropy -3 < -2: descent raises log_alpha


@pytest.mark.promise("td3-smoothing")
def test_smoothed_target_action_clips_the_noise_and_then_the_action() -> None:
    action = losses.smoothed_target_action(
        B([[0.0, 0.9], [0.0, -0.9]]), B([[1.0, 1.0], [9.0, -9.0]]), noise_std=0.2, noise_clip=0.5
    )
    assert torch.allclose(action, B([[0.2, 1.0], [0.5, -1.0]]))


COLUMN, ROW = torch.zeros(4, 1), torch.zeros(4)


ONE, BOTH = B([1.0]), B([1.0, 1.0])


def test_masked_mean_is_over_rows_of_weight_one() -> None:
    assert float(losses.masked_mean(B([1.0, 100.0, 3.0]), B([1.0, 0.0, 1.0]))) == 2.0


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


def test_bounds_loss_is_the_squared_excess_of_rows_of_weight_one() -> None:
    mean = B([[2.1, -3.1], [0.5, -0.5], [99.0, 0.0]])
    assert float(losses.bounds_loss(mean, B([1.0, 1.0, 0.0]))) == pytest.approx((1.0 + 4.0) / 2)


BINS = torch.linspace(-2.0, 2.0, 5)


def project(index: int, reward: float, factor: float, bonus: float = 0.0) -> list[float]:
    """What becomes of a distribution that is all on a bin."""
    log_probs = torch.full((1, 5), -200.0).index_fill(1, torch.tensor([index]), 0.0)
    rest = (torch.tensor([number]) for number in (reward, factor, bonus))
    return [round(p, 5) for p in losses.projected(log_probs, BINS, *rest)[0].tolist()]


def test_a_return_on_a_bin_is_all_of_it_and_others_are_shared() -> None:
    assert project(3, 0.0, 1.0) == [0, 0, 0, 1, 0]
    assert project(3, 0.25, 1.0) == [0, 0, 0, 0.75, 0.25]
    assert project(3, 0.0, 0.5, bonus=-0.5) == [0, 0, 0.75, 0.25, 0]
    assert project(3, -0.5, 0.0) == [0, 0.5, 0.5, 0, 0]  # terminated: the reward alone


def test_returns_beyond_the_bins_are_the_outermost() -> None:
    assert project(4, 0.0, 1.0) == [0, 0, 0, 0, 1]
    assert project(4, 7.0, 1.0) == [0, 0, 0, 0, 1]
    assert project(0, -7.0, 1.0) == [1, 0, 0, 0, 0]


def test_the_projection_keeps_mass_and_mean_inside_the_bins() -> None:
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn((64, 5), generator=generator).log_softmax(dim=1)
    reward, factor = (torch.rand(64, generator=generator) * 0.5 for _ in range(2))
    bonus = torch.randn(64, generator=generator) * 0.1
    result = losses.projected(log_probs, BINS, reward, factor, bonus)
    mean = reward + factor * ((log_probs.exp() * BINS).sum(dim=1) + bonus)
    torch.testing.assert_close(result.sum(dim=1), torch.ones(64))
    torch.testing.assert_close((result * BINS).sum(dim=1), mean)
