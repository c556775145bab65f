"""Targets against known answers and independent sums; the checks catch seeded bugs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.algos.vtrace import RatioBounds, Targets, gae, vtrace
from offpolicy.algos.vtrace import Steps as PlainSteps

GAMMA, LAM = 0.9, 0.8
Rule = Callable[..., Targets]


class Steps(PlainSteps):
    """The inputs of `vtrace`."""

    def targets(self, rule: Rule = vtrace, lam: float = LAM, bounds: RatioBounds | None = None) -> Targets:
        return rule(self, GAMMA, lam, bounds or RatioBounds())


def steps(
    value: Sequence[float],
    reward: Sequence[float],
    ratio: Sequence[float] = (),
    *,
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    autoreset: Sequence[int] = (),
) -> Steps:
    """Steps of one environment, in float64; the last three list the steps whose flag is set."""

    def column(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)[:, None]

    def flags(listed: Sequence[int]) -> Tensor:
        return column([float(t in listed) for t in range(len(reward))])

    log_ratio = column(ratio or [1.0] * len(reward)).log()
    values = column(value)
    ends = (flags(terminated), flags(truncated), 1.0 - flags(autoreset))
    return Steps(values[:-1], values[1:], column(reward), *ends, log_ratio)


class Known(NamedTuple):
    """An answer of the literature: of the transitions alone, the advantage times min(ratio, 1)."""

    steps: Steps
    lam: float
    value: list[float]
    advantage: list[float]

    def error(self, rule: Rule) -> float:
        """By how much a rule misses it."""
        is_valid, targets = self.steps.is_valid.bool(), self.steps.targets(rule, self.lam)
        weighted = targets.advantage * self.steps.log_ratio.exp().clamp(max=1.0)
        answer = torch.tensor([self.value, self.advantage], dtype=torch.float64)
        return float((torch.stack((targets.value[is_valid], weighted[is_valid])) - answer).abs().max())


REWARD, VALUE, RATIO = (1.0, 2.0, 3.0), (0.5, 1.0, 1.5, 2.0), (0.5, 2.0, 1.0)
VS_ENDED, ADVANTAGE_ENDED = [1.65, 2.0, 4.8], [1.15, 1.0, 3.3]
KNOWN = {
    "off-policy": Known(steps(VALUE, REWARD, RATIO), 1.0, [3.594, 6.32, 4.8], [3.094, 5.32, 3.3]),
    "on-policy": Known(steps(VALUE, REWARD), 1.0, [6.688, 6.32, 4.8], [6.188, 5.32, 3.3]),
    "lambda": Known(steps(VALUE, REWARD), 0.95, [6.3216325, 6.1715, 4.8], [5.8216325, 5.1715, 3.3]),
    "terminated": Known(steps(VALUE, REWARD, RATIO, terminated=[1]), 1.0, VS_ENDED, ADVANTAGE_ENDED),
    "terminated, autoreset": Known(
        steps((0.5, 1.0, 4.0, 1.5, 2.0), (1.0, 2.0, 0.0, 3.0), (0.5, 2.0, 1.0, 1.0), terminated=[1], autoreset=[2]),
        1.0, VS_ENDED, ADVANTAGE_ENDED,
    ),
    "both, autoreset": Known(
        steps(
            (0.5, 1.0, 4.0, 1.5, 2.0), (1.0, 2.0, 0.0, 3.0), (0.5, 2.0, 1.0, 1.0),
            terminated=[1], truncated=[1], autoreset=[2],
        ),
        1.0, VS_ENDED, ADVANTAGE_ENDED,
    ),
    "truncated, autoreset": Known(  # the value of the autoreset row is that of the final observation
        steps((0.5, 1.0, 4.0, 1.5, 2.0), (1.0, 2.0, 0.0, 3.0), (0.5, 2.0, 1.0, 1.0), truncated=[1], autoreset=[2]),
        1.0, [3.27, 5.6, 4.8], [2.77, 4.6, 3.3],
    ),
}  # fmt: skip


@pytest.mark.promise("bootstrap")
@pytest.mark.parametrize("case", KNOWN)
def test_known_answers(case: str) -> None:
    assert KNOWN[case].error(vtrace) < 1e-9


def random_steps(seed: int, num_steps: int = 40, num_envs: int = 6, *, is_on_policy: bool = False) -> Steps:
    """Rollouts in which one step in five ends an episode, some with both flags; the first row may be a reset."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    terminated, truncated = rng.random(shape) < 0.1, rng.random(shape) < 0.1
    is_valid = np.ones(shape, dtype=np.bool_)
    is_reset = rng.random(num_envs) < 0.3
    for t in range(num_steps):
        is_valid[t] = ~is_reset
        terminated[t] &= is_valid[t]
        truncated[t] &= is_valid[t]
        is_reset = terminated[t] | truncated[t]
    value, reward = rng.normal(size=(num_steps + 1, num_envs)), rng.normal(size=shape) * is_valid
    log_ratio = np.zeros(shape) if is_on_policy else rng.normal(size=shape)
    arrays = (value[:-1], value[1:], reward, terminated, truncated, is_valid, log_ratio)
    return Steps(*(torch.from_numpy(x * 1.0) for x in arrays))


def reference(path: Steps, lam: float) -> Targets:
    """V-trace as a sum over all later steps of the same episode (arXiv:1802.01561, eq. 1), in plain numbers."""
    value, next_value, reward, terminated, _, is_valid, log_ratio = (tensor.tolist() for tensor in path)
    targets = Targets(torch.zeros_like(path.reward), torch.zeros_like(path.reward))
    for t, n in path.is_valid.nonzero().tolist():
        later = next((k for k in range(t, len(reward)) if not is_valid[k][n]), len(reward))
        discount = [0.0 if terminated[k][n] else GAMMA for k in range(t, later)]
        errors = [reward[k][n] + discount[k - t] * next_value[k][n] - value[k][n] for k in range(t, later)]
        ratio = [min(float(np.exp(log_ratio[k][n])), 1.0) for k in range(t, later)]
        traces = np.cumprod([1.0, *(GAMMA * lam * c for c in ratio[:-1])])  # [k - t]
        targets.value[t, n] = value[t][n] + sum(traces * ratio * errors)
        rest = sum(traces[1:] * ratio[1:] * errors[1:]) / ratio[0]  # the own ratio weighs the surrogate, not this
        targets.advantage[t, n] = errors[0] + rest
    return targets


def error_on_random_steps(rule: Rule, *, is_on_policy: bool = False) -> float:
    """By how much a rule misses the sum over later steps."""
    worst = 0.0
    for seed in range(3):
        path = random_steps(seed, is_on_policy=is_on_policy)
        pairs = zip(path.targets(rule), reference(path, LAM), strict=True)
        worst = max(worst, *(float((got - expected).abs().max()) for got, expected in pairs))
    return worst


@pytest.mark.promise("published-algorithms")
def test_off_policy_targets_are_the_sum_over_the_episode() -> None:
    assert error_on_random_steps(vtrace) < 1e-6


@pytest.mark.promise("vtrace-gae")
def test_at_zero_lag_vtrace_is_gae() -> None:
    path = random_steps(7, is_on_policy=True)
    assert error_on_random_steps(vtrace, is_on_policy=True) < 1e-6
    targets, plain = path.targets(), gae(path, GAMMA, LAM)
    assert torch.allclose(targets.value, plain.value, atol=1e-6)
    assert torch.allclose(targets.advantage, plain.advantage, atol=1e-6)
    assert torch.allclose(targets.value - path.value * path.is_valid, targets.advantage, atol=1e-6)


def advantage_at_truncation(rule: Rule) -> float:
    """pytorch/rl #4209: V = 1 up to the truncation, 100 in the next episode; no reward, no discount."""
    path = steps([1.0, 1.0, 100.0, 100.0], [0.0, 0.0, 0.0], truncated=[0], autoreset=[1])
    return float(rule(path, 1.0, 1.0, RatioBounds()).advantage[0])


@pytest.mark.promise("appo-truncation")
def test_the_next_episode_s_value_is_no_gain_of_a_truncated_one() -> None:
    assert advantage_at_truncation(vtrace) == 0.0


def test_autoreset_rows_pass_nothing_back() -> None:
    path = steps([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 50.0], autoreset=[1])  # no flag: the end was in another rollout
    assert path.targets(lam=1.0).value.squeeze(-1).tolist() == pytest.approx([0.9, 0.0, 50.9])


# Bounds of the ratios.


def test_ratios_count_no_more_than_the_bounds() -> None:
    path = random_steps(11)
    clamped = path._replace(log_ratio=path.log_ratio.clamp(max=0.0))
    assert torch.equal(path.targets().value, clamped.targets().value)
    assert not torch.allclose(path.targets(bounds=RatioBounds(2.0, 1.0)).value, clamped.targets().value)
    assert not torch.allclose(path.targets(bounds=RatioBounds(1.0, 2.0)).value, clamped.targets().value)


def test_rho_weighs_the_error_of_a_step_and_c_later_errors() -> None:
    path = steps([0.0, 0.0, 0.0], [1.0, 10.0], [4.0, 1.0])
    target = [float(path.targets(lam=1.0, bounds=RatioBounds(rho, c)).value[0]) for rho, c in ((1, 1), (3, 1), (1, 3))]
    assert target == pytest.approx([1.0 + 9.0, 3.0 + 9.0, 1.0 + 27.0])


# The same transitions, however Gymnasium begins the next episode.


@pytest.mark.promise("bootstrap")
def test_targets_are_the_same_where_the_next_episode_begins_in_the_step_that_ends_one() -> None:
    """Without rows of autoreset the successor's value comes from beside the row, not from the next row."""
    path = random_steps(3, num_envs=1)
    kept = path.is_valid[:, 0].bool()
    in_step = Steps(*(column[kept] for column in path))
    assert len(in_step.reward) < len(path.reward)
    for ours, expected in zip(in_step.targets(), path.targets(), strict=True):
        torch.testing.assert_close(ours, expected[kept], rtol=0.0, atol=1e-12)
