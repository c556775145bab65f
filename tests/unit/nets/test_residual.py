"""Residual networks: which statistics they use, which they move, and that they travel with the weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from offpolicy.algos.registry import make_policy
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.policy import Policy, adopt_flat, adopt_statistics, flat_size, flat_view, flatten_into, load_flat
from offpolicy.nets.residual import BatchNorm, ResidualNet
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(obs_dim=5, action_dim=2, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)


def test_batch_norm_is_torchs() -> None:
    own, theirs = BatchNorm(4), nn.BatchNorm1d(4, momentum=0.01)
    for _ in range(3):
        rows = torch.randn(8, 4) * 3.0 + 1.0
        torch.testing.assert_close(own(rows, of_batch=True), theirs(rows))
    torch.testing.assert_close(own.running_var, theirs.running_var)
    torch.testing.assert_close(own(rows), theirs.eval()(rows))


def test_a_net_is_its_equations_and_begins_orthogonal() -> None:
    torch.manual_seed(1)
    net, rows = ResidualNet(5, 8, 1, 3), torch.randn(16, 5)
    _, first, block, _, head = net

    def normalised(rows: torch.Tensor) -> torch.Tensor:
        return (rows - rows.mean(dim=0)) / (rows.var(dim=0, correction=0) + 1e-5).sqrt()

    x = normalised(rows) @ first.weight.T
    inner = normalised(x @ block.expand.weight.T).relu()
    x = x + normalised(inner @ block.contract.weight.T).relu()
    x = x * (x.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt()
    torch.testing.assert_close(net(rows, of_batch=True), x @ head.weight.T)
    for layer in (first, block.expand, block.contract, head):
        outputs, inputs = layer.weight.shape
        tall = layer.weight if outputs >= inputs else layer.weight.T
        torch.testing.assert_close(tall.T @ tall, torch.eye(min(outputs, inputs)), atol=1e-5, rtol=0.0)
    assert not head.bias.any()


def test_the_running_statistics_move_only_where_the_batchs_are_used() -> None:
    net = ResidualNet(5, 8, 2, 3)
    before = [tensor.clone() for tensor in net.buffers()]
    net.forward(torch.randn(16, 5))
    assert all(torch.equal(one, other) for one, other in zip(before, net.buffers(), strict=True))
    net.forward(torch.randn(16, 5), of_batch=True)
    assert not any(torch.equal(one, other) for one, other in zip(before, net.buffers(), strict=True))


def policy_of(seed: int, *, normalize_obs: bool) -> Policy:
    torch.manual_seed(seed)
    policy = make_policy(AlgoConfig(name="flashsac", actor_width=8, normalize_obs=normalize_obs), SPEC)
    for tensor in policy.actor.buffers():
        tensor.add_(torch.rand_like(tensor))
    return policy


def test_a_policy_from_the_block_acts_bit_for_bit_alike() -> None:
    obs = torch.randn(3, 5)
    for normalize_obs in (False, True):
        sender, receiver, mapped = (policy_of(seed, normalize_obs=normalize_obs) for seed in (1, 2, 3))
        flat = np.zeros(flat_size(sender), np.float32)
        flatten_into(sender, flat)
        load_flat(receiver, flat)
        own = np.zeros_like(flat)
        adopt_flat(mapped, own)
        own[:] = flat
        adopt_statistics(mapped, own)
        assert torch.equal(sender.act(obs), receiver.act(obs))
        assert torch.equal(sender.act(obs), mapped.act(obs))
        assert flat_view(sender) is None  # the statistics lie elsewhere


def test_log_stds_are_bounded() -> None:
    policy = policy_of(4, normalize_obs=False)
    with torch.no_grad():
        log_std = policy.actor.body(torch.randn(50, 5) * 100.0).chunk(2, dim=1)[1]  # type: ignore[union-attr, operator]
    assert -10.0 <= float(log_std.min()) <= float(log_std.max()) <= 2.0
