"""The equations of SAC and TD3 as pure functions. Shapes: B batch rows, C critics, A action dimensions.

Every door checks its shapes: a reward of shape [B, 1] beside a value of shape [B] would broadcast to [B, B] and
train on nonsense without an error.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_shapes(legends: str, **tensors: Tensor) -> None:
    """`check_shapes("CB B", q=q, target_q=target_q)`: one word per tensor, the same letter is the same size.

    Raises `ValueError` naming the first tensor of another rank or size.
    """
    sizes: dict[str, int] = {}
    for legend, (name, tensor) in zip(legends.split(), tensors.items(), strict=True):
        shape = tensor.shape
        if len(shape) != len(legend) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(legend, shape, strict=True)
        ):
            known = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
            raise ValueError(f"{name} has shape {tuple(shape)}, expected [{', '.join(legend)}] with {known}")


def td_target(reward: Tensor, discount: Tensor, terminated: Tensor, next_value: Tensor) -> Tensor:
    """Bellman target r + gamma^k (1 - terminated) V(s'), all [B]; truncated rows bootstrap, discount is gamma^k."""
    check_shapes("B B B B", reward=reward, discount=discount, terminated=terminated, next_value=next_value)
    return reward + discount * (1.0 - terminated) * next_value


def soft_value(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """V(s) = min_i Q_i(s, a) - alpha log pi(a|s), SAC (arXiv:1812.05905) eq. 3 with clipped double Q. -> [B]."""
    check_shapes("CB B", q=q, log_prob=log_prob)
    return q.amin(dim=0) - alpha * log_prob


def critic_loss(q: Tensor, target_q: Tensor) -> Tensor:
    """The sum of mean_B (Q_i - y)^2, TD3 (arXiv:1802.09477) algorithm 1; SAC (arXiv:1812.05905) eq. 5 times 2."""
    check_shapes("CB B", q=q, target_q=target_q)
    return (q - target_q).square().mean(dim=1).sum()


def sac_actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """mean_B (alpha log pi(a|s) - min_i Q_i(s, a)), a reparameterised, SAC (arXiv:1812.05905) eq. 9."""
    return -soft_value(q, log_prob, alpha).mean()


def alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Temperature loss in its exp form, SAC (arXiv:1812.05905) eq. 18; log_alpha: [], log_prob: [B] (no gradient)."""
    check_shapes("B", log_prob=log_prob)
    return -log_alpha.exp() * (log_prob.detach().mean() + target_entropy)


def smoothed_target_action(action: Tensor, unit_noise: Tensor, noise_std: float, noise_clip: float) -> Tensor:
    """clip(a + clip(std * noise, -c, c), -1, 1), TD3 (arXiv:1802.09477) section 5.3; unit_noise ~ N(0, 1): [B, A]."""
    check_shapes("BA BA", action=action, unit_noise=unit_noise)
    return (action + (noise_std * unit_noise).clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def td3_actor_loss(q1: Tensor) -> Tensor:
    """-mean_B Q_1(s, pi(s)), TD3 (arXiv:1802.09477) algorithm 1. q1: [B]."""
    check_shapes("B", q1=q1)
    return -q1.mean()


def polyak_update(targets: tuple[Tensor, ...], sources: tuple[Tensor, ...], tau: float) -> None:
    """Average in place: target <- (1 - tau) target + tau source."""
    with torch.no_grad():
        torch._foreach_lerp_(targets, sources, tau)
