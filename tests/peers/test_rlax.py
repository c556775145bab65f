"""V-trace is rlax's: its recursion and its estimate of Q, written out from `rlax.vtrace_td_error_and_advantage`.

The source is https://github.com/google-deepmind/rlax, rlax/_src/vtrace.py. With c_t = lambda min(1, rho_t) and errors
e_t = min(clip, rho_t) (r_t + d_t v_{t+1} - v_t) + d_t c_t e_{t+1}, the targets are v_t + e_t, and Q of the last step
bootstraps from v, of others from lambda target_{t+1} + (1 - lambda) v_{t+1}. It knows discounts d_t alone: an episode's
end is d_t = 0, and there are neither truncations nor autoreset rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from offpolicy.algos.vtrace import RatioBounds, Steps, vtrace
from offpolicy.types import Float64

T = 12


class Path(NamedTuple):
    """One environment's steps."""

    value: Float64  # [T + 1]
    reward: Float64  # [T]
    discount: Float64  # [T] 0 where an episode ended
    rho: Float64  # [T]


def rlax(path: Path, lam: float, clip_rho: float) -> tuple[Float64, Float64]:
    """The targets and Q - V, each [T]: the advantage before rlax weighs it by min(1, rho)."""
    value, next_value = path.value[:-1], path.value[1:]
    delta = np.minimum(clip_rho, path.rho) * (path.reward + path.discount * next_value - value)
    error = np.zeros(T + 1)
    for t in range(T - 1, -1, -1):
        error[t] = delta[t] + path.discount[t] * lam * min(1.0, path.rho[t]) * error[t + 1]
    target = value + error[:-1]
    bootstrap = np.append(lam * target[1:] + (1.0 - lam) * value[1:], next_value[-1])
    return target, path.reward + path.discount * bootstrap - value


@pytest.mark.promise("published-algorithms")
@pytest.mark.parametrize(("lam", "clip_rho"), [(0.0, 1.0), (0.7, 2.5), (1.0, 1.0)])
def test_targets_and_advantages_are_those_of_rlax(lam: float, clip_rho: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        terminated = (rng.random(T) < 0.15).astype(float)
        reward, rho = rng.normal(size=T), np.exp(0.7 * rng.normal(size=T))
        path = Path(rng.normal(size=T + 1), reward, 0.97 * (1.0 - terminated), rho)
        columns = (path.value[:-1], path.value[1:], reward, terminated, np.zeros(T), np.ones(T), np.log(rho))
        steps = Steps(*(torch.from_numpy(column)[:, None] for column in columns))
        ours = vtrace(steps, 0.97, lam, RatioBounds(rho=clip_rho))
        target, advantage = rlax(path, lam, clip_rho)
        np.testing.assert_allclose(ours.value[:, 0].numpy(), target, rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(ours.advantage[:, 0].numpy(), advantage, rtol=0.0, atol=1e-12)
