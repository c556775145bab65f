"""The single file without autograd: its gradients are those of autograd, and it does the work that it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.by_hand import Learner, Nets, Sac, Td3
from benchmarks.peers.control import Batch
from benchmarks.peers.settings import Settings

OBS, ACTION, ROWS = 5, 2, 32
SMALL = Settings("sac", 1, batch_size=4, hidden_dims=(8, 8), learning_starts=40, capacity=200)
Weights = list[Tensor]  # by layer, a weight and a bias each


def test_sac_descends_its_losses() -> None:
    sac = Sac(settings("sac"), OBS, ACTION)
    with torch.no_grad():
        sac.targets.block.add_(0.1)
        sac.actor.biases[-1][..., -2] = 3.0  # a log-std at its bound, where nothing flows back
        sac.actor.biases[-1][..., -1] = -1.0
        sac.log_alpha.fill_(-1.0)
    obs, action, next_obs, reward, terminated = batch = batch_of()
    actor, critics, targets = leaves(sac.actor), leaves(sac.critics), leaves(sac.targets)
    alpha = sac.log_alpha.exp()

    def sample(rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = evaluate(actor, rows)[0].chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + noise * normal.scale
        log_prob = normal.log_prob(raw) - 2 * (np.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), log_prob.sum(1)

    update(sac, batch)
    next_action, next_log_prob = sample(next_obs, sac.noise[:ROWS])
    next_q = evaluate(targets, torch.cat([next_obs, next_action], 1)).amin(0)[:, 0] - alpha * next_log_prob
    target_q = (reward + 0.9 * (1 - terminated) * next_q).detach()
    (evaluate(critics, torch.cat([obs, action], 1))[..., 0] - target_q).square().mean(1).sum().backward()
    check_gradient(sac.critics, critics)
    new, log_prob = sample(obs, sac.noise[ROWS:])
    stepped = leaves(sac.critics)
    loss = (alpha * log_prob - evaluate(stepped, torch.cat([obs, new], 1)).amin(0)[:, 0]).mean()
    for weight in actor:
        weight.grad = None
    loss.backward()
    check_gradient(sac.actor, actor)
    assert sac.log_alpha.item() == pytest.approx(-1.0 + 1e-3 * np.sign(log_prob.mean().item() - ACTION), abs=1e-6)
    check_target(sac)


def test_td3_descends_its_losses_and_delays_its_actor() -> None:
    td3 = Td3(settings("td3"), OBS, ACTION)
    with torch.no_grad():
        td3.targets.block.add_(0.1)
    obs, action, next_obs, reward, terminated = batch = batch_of()
    target_actor, actor, critics, targets = (
        leaves(nets) for nets in (td3.target_actor, td3.actor, td3.critics, td3.targets)
    )
    first = td3.actor.block.clone()
    update(td3, batch)
    next_action = (evaluate(target_actor, next_obs)[0].tanh() + td3.noise).clamp(-1, 1)
    next_q = evaluate(targets, torch.cat([next_obs, next_action], 1)).amin(0)[:, 0]
    target_q = (reward + 0.9 * (1 - terminated) * next_q).detach()
    (evaluate(critics, torch.cat([obs, action], 1))[..., 0] - target_q).square().mean(1).sum().backward()
    check_gradient(td3.critics, critics)
    assert torch.equal(td3.actor.block, first)
    update(td3, batch, 2)
    stepped = leaves(td3.critics)
    (-evaluate(stepped, torch.cat([obs, evaluate(actor, obs)[0].tanh()], 1))[0].mean()).backward()
    check_gradient(td3.actor, actor)
    assert not torch.equal(td3.actor.block, first)
    check_target(td3)


def settings(algo: str) -> dict[str, object]:
    own = {"actor_lr": 1e-3, "critic_lr": 1e-3, "gamma": 0.9, "tau": 0.1}
    return replace(SMALL, algo=algo, policy_delay=2 if algo == "td3" else 1).to_mapping() | own


def batch_of() -> Batch:
    torch.manual_seed(2)
    obs, next_obs, reward = torch.randn(ROWS, OBS), torch.randn(ROWS, OBS), torch.randn(ROWS)
    return obs, torch.randn(ROWS, ACTION).tanh(), next_obs, reward, (torch.rand(ROWS) < 0.3).float()


def leaves(nets: Nets) -> Weights:
    """The parameters as they are now, for autograd."""
    pairs = zip(nets.weights, nets.biases, strict=True)
    return [tensor.detach().clone().requires_grad_() for pair in pairs for tensor in pair]


def evaluate(weights: Weights, rows: Tensor) -> Tensor:
    """[B, I] -> [C, B, O]."""
    below = rows.expand(len(weights[0]), -1, -1)
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        below = (below @ weight.mT + bias).relu()
    return below @ weights[-2].mT + weights[-1]


def check_gradient(nets: Nets, weights: Weights) -> None:
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    assert len(gradients) == len(weights)
    wanted = torch.cat([gradient.flatten() for gradient in gradients])
    assert wanted.abs().max() > 1e-3
    assert torch.allclose(nets.gradient, wanted, atol=1e-6)


def check_target(learner: Learner) -> None:
    """The targets have moved a tenth of the way from where they were, 0.1 above the critics of then, to the critics."""
    apart = (learner.targets.block - learner.critics.block).abs()
    assert 0.08 < apart.median() < 0.095


update: Callable[..., None] = torch.no_grad()(lambda learner, batch, number=1: learner.update(batch, number))
