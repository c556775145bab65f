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
from benchmarks.peers.workloads import Settings

OBS, ACTION, ROWS = 5, 2, 32
SMALL = Settings("sac", 1, batch_size=4, hidden_dims=(8, 8), learning_starts=40, capacity=200)
Weights = list[Tensor]  # by layer, a weight and a bias each


def test_sac_descends_its_losses() -> None:
    sac = learner_of(Sac)
    sac.actor.biases[-1][..., -2] = 3.0  # a log-std at its bound, where nothing flows back
    sac.actor.biases[-1][..., -1] = -1.0
    sac.log_alpha.fill_(-1.0)
    batch = batch_of()
    actor, critics, targets = leaves(sac.actor), leaves(sac.critics), leaves(sac.targets)
    alpha = sac.log_alpha.exp()
    update(sac, batch)

    def sample(rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = evaluate(actor, rows)[0].chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + noise * normal.scale
        log_prob = normal.log_prob(raw) - 2 * (np.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), log_prob.sum(1)

    next_action, next_log_prob = sample(batch[2], sac.noise[:ROWS])
    check_gradient(sac.critics, critics, td_error(critics, targets, batch, next_action, -alpha * next_log_prob))
    new, log_prob = sample(batch[0], sac.noise[ROWS:])
    q = evaluate(leaves(sac.critics), torch.cat([batch[0], new], 1)).amin(0)[:, 0]
    check_gradient(sac.actor, actor, (alpha * log_prob - q).mean())
    assert sac.log_alpha.item() == pytest.approx(-1.0 + 1e-3 * np.sign(log_prob.mean().item() - ACTION), abs=1e-6)
    assert 0.08 < (sac.targets.block - sac.critics.block).abs().median() < 0.095  # a tenth of the way


def test_td3_descends_its_losses_and_delays_its_actor() -> None:
    td3 = learner_of(Td3)
    batch, first = batch_of(), td3.actor.block.clone()
    target_actor, actor, critics, targets = map(leaves, (td3.target_actor, td3.actor, td3.critics, td3.targets))
    update(td3, batch)
    next_action = (evaluate(target_actor, batch[2])[0].tanh() + td3.noise).clamp(-1, 1)
    check_gradient(td3.critics, critics, td_error(critics, targets, batch, next_action, 0.0))
    assert torch.equal(td3.actor.block, first)
    update(td3, batch, 2)
    q = evaluate(leaves(td3.critics), torch.cat([batch[0], evaluate(actor, batch[0])[0].tanh()], 1))[0]
    check_gradient(td3.actor, actor, -q.mean())
    assert not torch.equal(td3.actor.block, first)
    assert 0.08 < (td3.targets.block - td3.critics.block).abs().median() < 0.095


def learner_of(kind: Callable[..., Learner]) -> Learner:
    """A learner whose targets are 0.1 above its critics."""
    own = {"actor_lr": 1e-3, "critic_lr": 1e-3, "gamma": 0.9, "tau": 0.1}
    learner = kind(replace(SMALL, policy_delay=2 if kind is Td3 else 1).to_mapping() | own, OBS, ACTION)
    learner.targets.block.add_(0.1)
    return learner


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


def td_error(critics: Weights, targets: Weights, batch: Batch, action: Tensor, bonus: Tensor | float) -> Tensor:
    """The loss of both critics, for the next action [B, A] and what is added to its value."""
    obs, taken, next_obs, reward, terminated = batch
    next_q = evaluate(targets, torch.cat([next_obs, action], 1)).amin(0)[:, 0] + bonus
    target_q = (reward + 0.9 * (1 - terminated) * next_q).detach()
    return (evaluate(critics, torch.cat([obs, taken], 1))[..., 0] - target_q).square().mean(1).sum()


def check_gradient(nets: Nets, weights: Weights, loss: Tensor) -> None:
    wanted = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, weights)])
    assert wanted.abs().max() > 1e-3
    assert torch.allclose(nets.gradient, wanted, atol=1e-6)


update: Callable[..., None] = torch.no_grad()(lambda learner, batch, number=1: learner.update(batch, number))
