"""The equations of SAC, TD3, FlashSAC and APPO as pure functions.

Shapes: B batch rows, C critics, A action dimensions, K actions of a discrete space. Every function checks its shapes: a
reward [B, 1] beside a value [B] would broadcast to [B, B] and train on nonsense without an error.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def check_shapes(legends: str, **tensors: Tensor) -> None:
    """`check_shapes("CB B", q=q, target_q=target_q)`: one word per tensor, the same letter is the same size.

    Raises `ValueError` naming the first tensor of another rank or size.
    """
    _check(legends, tuple(tensors), tuple(tensor.shape for tensor in tensors.values()))


@functools.lru_cache(maxsize=256)  # shapes repeat in every update
def _check(legends: str, names: tuple[str, ...], shapes: tuple[torch.Size, ...]) -> None:
    sizes: dict[str, int] = {}
    for legend, name, shape in zip(legends.split(), names, shapes, strict=True):
        if len(shape) != len(legend) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(legend, shape, strict=True)
        ):
            known = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
            raise ValueError(f"{name} has shape {tuple(shape)}, expected [{', '.join(legend)}] with {known}")


def td_target(reward: Tensor, discount: Tensor, terminated: Tensor, next_value: Tensor) -> Tensor:
    """Bellman target r + gamma^k (1 - terminated) V(s'), all [B]; truncated rows bootstrap; discount is gamma^k."""
    check_shapes("B B B B", reward=reward, discount=discount, terminated=terminated, next_value=next_value)
    return reward + discount * (1.0 - terminated) * next_value


def critic_loss(q: Tensor, target_q: Tensor) -> Tensor:
    """sum_i mean_B (Q_i - y)^2, TD3 (arXiv:1802.09477) algorithm 1; SAC (arXiv:1812.05905) eq. 5 without its 1/2.

    [C, B], [B] -> [].
    """
    check_shapes("CB B", q=q, target_q=target_q)
    return (q - target_q).square().mean(dim=1).sum()


def soft_value(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """V(s) = min_i Q_i(s, a) - alpha log pi(a|s), SAC (arXiv:1812.05905) eq. 3 with clipped double Q.

    [C, B], [B], [] -> [B].
    """
    check_shapes("CB B", q=q, log_prob=log_prob)
    return q.amin(dim=0) - alpha * log_prob


def sac_actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """mean_B (alpha log pi(a|s) - Q(s, a)), a reparameterised, Q the minimum of both, SAC (arXiv:1812.05905) eq. 9.

    [B], [B], [] -> [].
    """
    check_shapes("B B", q=q, log_prob=log_prob)
    return (alpha * log_prob - q).mean()


def expected_soft_value(q: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """V(s) = sum_a pi(a|s) (min_i Q_i(s, a) - alpha log pi(a|s)) of K actions, discrete SAC (arXiv:1910.07207) eq. 10.

    [C, B, K], [B, K], [] -> [B]. Its mean is what the actor maximises (eq. 12): an expectation, so nothing is sampled.
    """
    check_shapes("CBK BK", q=q, log_probs=log_probs)
    return (log_probs.exp() * (q.amin(dim=0) - alpha * log_probs)).sum(dim=1)


def alpha_loss(alpha: Tensor, entropy: Tensor, target_entropy: Tensor) -> Tensor:
    """Temperature loss in its exp form, SAC (arXiv:1812.05905) eq. 18, by the policy's mean entropy; all []."""
    if entropy.shape:
        raise ValueError(f"entropy has shape {tuple(entropy.shape)}, expected []")
    return alpha * (entropy.detach() - target_entropy)


def projected(log_probs: Tensor, bins: Tensor, reward: Tensor, factor: Tensor, bonus: Tensor) -> Tensor:
    """The distribution of r + factor (z + bonus) on the bins [K], for z of log_probs [B, K]; the rest [B]. -> [B, K].

    C51 (arXiv:1707.06887) algorithm 1: returns beyond the bins count as the outermost, others are shared by both
    neighbours. `bonus` is FlashSAC's of entropy (arXiv:2604.04539).
    """
    check_shapes("BK K B B B", log_probs=log_probs, bins=bins, reward=reward, factor=factor, bonus=bonus)
    last = len(bins) - 1
    returns = reward[:, None] + factor[:, None] * (bins + bonus[:, None])
    place = (returns - bins[0]).mul_(last / (bins[-1] - bins[0])).clamp_(0.0, float(last))
    lower = place.floor().clamp_(max=last - 1.0)
    probs, upper_share = log_probs.exp(), place - lower
    index = lower.nan_to_num(0.0).long()  # NaN gets index 0, and its shares stay NaN, which trips the guard
    result = torch.zeros_like(probs).scatter_add_(1, index, probs * (1.0 - upper_share))
    return result.scatter_add_(1, index + 1, probs * upper_share)


def cross_entropy(target: Tensor, log_probs: Tensor) -> Tensor:
    """-mean_CB sum_K target log p_i of distributions [B, K] and [C, B, K], FlashSAC (arXiv:2604.04539). -> []."""
    check_shapes("BK CBK", target=target, log_probs=log_probs)
    return -(target * log_probs).sum(dim=-1).mean()


def smoothed_target_action(action: Tensor, unit_noise: Tensor, noise_std: float, noise_clip: float) -> Tensor:
    """clip(a + clip(std * noise, -c, c), -1, 1), TD3 (arXiv:1802.09477) section 5.3; unit_noise ~ N(0, 1): [B, A]."""
    check_shapes("BA BA", action=action, unit_noise=unit_noise)
    return (action + (noise_std * unit_noise).clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


@torch.no_grad()
def polyak_update(target: Tensor, source: Tensor, tau: float) -> None:
    """Averages in place: target <- (1 - tau) target + tau source. Both [P]."""
    target.lerp_(source, tau)


def masked_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Returns the mean of the values [B] whose weight [B] is 1; 0 if all weights are 0."""
    return (values * weight).sum() / weight.sum().clamp(min=1.0)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, weight: Tensor, clip: float) -> Tensor:
    """-mean_B min(r A, clip(r, 1 - c, 1 + c) A), r = pi / mu, PPO (arXiv:1707.06347) eq. 7; all [B].

    The ratio is against the policy that acted, of any age: it is the importance weight too, so `advantage` has none.
    """
    check_shapes("B B B", log_ratio=log_ratio, advantage=advantage, weight=weight)
    ratio = torch.where(weight > 0.0, log_ratio, 0.0).exp()  # a row of no weight may hold any action
    gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    return -masked_mean(gain, weight)


def value_loss(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """mean_B (V - target)^2 / 2; all [B]."""
    check_shapes("B B B", value=value, target=target, weight=weight)
    return 0.5 * masked_mean((value - target).square(), weight)


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, weight: Tensor, clip: float) -> Tensor:
    """As `value_loss`, with no gain from moving V further than `clip` from its old value; all [B].

    PPO's reference implementation (openai/baselines, ppo2); the greater of both errors counts.
    """
    check_shapes("B B B B", value=value, old_value=old_value, target=target, weight=weight)
    near = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * masked_mean(torch.maximum((value - target).square(), (near - target).square()), weight)


def bounds_loss(mean: Tensor, weight: Tensor, soft_bound: float = 1.1) -> Tensor:
    """mean_B sum_A max(|mean| - soft_bound, 0)^2 of a Gaussian's means [B, A].

    HORA (arXiv:2210.04887) and rl_games; not their formula of before 2022, which pulled every mean to +1.1.
    """
    check_shapes("BA B", mean=mean, weight=weight)
    outside = (mean.abs() - soft_bound).clamp(min=0.0)
    return masked_mean(outside.square().sum(dim=-1), weight)
