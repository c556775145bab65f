"""Targets from rollouts: V-trace, and GAE as its case without correction.

Time runs along the first dimension. Shapes: T steps, N environments. Beside the value of a row stands that of its true
successor: of the next row, or of the final observation where the next row belongs to another episode.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from offpolicy.algos.losses import check_shapes


class Steps(NamedTuple):
    """T steps of N environments, with the values and ratios of critic and policy; flags are 0.0 or 1.0."""

    value: Tensor  # [T, N] of every observation, as a return
    next_value: Tensor  # [T, N] of its true successor
    reward: Tensor  # [T, N]
    terminated: Tensor  # [T, N]
    truncated: Tensor  # [T, N]
    is_valid: Tensor  # [T, N] 0.0 for an autoreset row
    log_ratio: Tensor  # [T, N] log pi(a|s) - log mu(a|s), mu the policy that acted


class Targets(NamedTuple):
    """The targets of actor and critic; autoreset rows hold zeros."""

    value: Tensor  # [T, N] target of the critic
    advantage: Tensor  # [T, N] not weighted by the importance ratio, which the surrogate applies


class RatioBounds(NamedTuple):
    """V-trace's truncation of importance ratios: `rho` biases the fixed point, `c` only slows convergence."""

    rho: float = 1.0
    c: float = 1.0


@torch.no_grad()
def vtrace(steps: Steps, gamma: float, lam: float, bounds: RatioBounds) -> Targets:
    """V-trace (arXiv:1802.01561, eq. 1 and section 4.2) with lambda, and with episodes that end inside the rollout.

        delta_t = rho_t (r_t + gamma (1 - terminated_t) V_{t+1} - V_t)
        vs_t - V_t = delta_t + gamma lambda c_t (1 - cut_t) (vs_{t+1} - V_{t+1})
        advantage_t = r_t + gamma (1 - terminated_t) (V_{t+1} + lambda (1 - cut_t) (vs_{t+1} - V_{t+1})) - V_t

    cut = terminated or truncated: no error passes an episode's end backwards, but a truncated one bootstraps from the
    value of its final observation. With pi = mu both are GAE(lambda) (arXiv:1506.02438): advantage_t = vs_t - V_t.
    Raises ValueError on tensors of other shapes than `Steps` says.
    """
    value, next_value, reward, terminated, truncated, is_valid, log_ratio = steps
    check_shapes("TN TN TN TN TN", r=reward, terminated=terminated, truncated=truncated, v=is_valid, ratio=log_ratio)
    check_shapes("TN TN TN", value=value, value_tp1=next_value, r=reward)
    ratio = log_ratio.exp()
    rho, trace = ratio.clamp(max=bounds.rho), lam * ratio.clamp(max=bounds.c)
    discount = gamma * (1.0 - terminated)
    not_cut = 1.0 - torch.maximum(terminated, truncated)
    error = reward + discount * next_value - value
    delta, passed_on = rho * error * is_valid, gamma * trace * not_cut * is_valid
    excess = value.new_zeros(len(value) + 1, *value.shape[1:])  # vs - V; zero behind the end of the rollout
    for t in reversed(range(len(reward))):
        excess[t] = delta[t] + passed_on[t] * excess[t + 1]
    advantage = (error + gamma * lam * not_cut * excess[1:]) * is_valid
    return Targets((value + excess[:-1]) * is_valid, advantage)


def gae(steps: Steps, gamma: float, lam: float) -> Targets:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16): takes the policy that acted for the present one."""
    return vtrace(steps._replace(log_ratio=torch.zeros_like(steps.log_ratio)), gamma, lam, RatioBounds())
