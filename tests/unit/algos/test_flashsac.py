"""FlashSAC's update: the order of its parts, what ranks share, what a checkpoint holds, and what an update asks for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos.flashsac import FlashSac
from offpolicy.algos.learner import Learner
from offpolicy.algos.losses import cross_entropy, projected
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.residual import categorical_critic
from offpolicy.types import Batch, Batches, SpaceSpec

SPEC = SpaceSpec(obs_dim=7, action_dim=3, action_low=(-1.0,) * 3, action_high=(1.0,) * 3)
SMALL: dict[str, Any] = {"actor_width": 8, "critic_width": 16, "num_bins": 11, "policy_delay": 2, "init_alpha": 0.01}


def algo_of(**algo: Any) -> AlgoConfig:
    return AlgoConfig(**{"name": "flashsac", **SMALL, **algo})


def learner_of(exchange: Any = None, **algo: Any) -> Learner:
    return make_learner(algo_of(**algo), SPEC, torch.device("cpu"), seed=3, exchange=exchange)


def batch_of(seed: int, rows: int = 32) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs, action, next_obs = (torch.randn((rows, n), generator=generator) for n in (7, 3, 7))
    reward = torch.randn(rows, generator=generator)
    return Batch(obs, action.tanh(), reward, next_obs, torch.zeros(rows), torch.full((rows,), 0.99))


def moments(count: float, mean: float, square_sum: float, largest: float) -> Tensor:
    return torch.tensor([count, mean, square_sum, largest], dtype=torch.float64)


def test_rewards_are_divided_by_the_scale() -> None:
    """Std 2 and a greatest return of 20: 20 / 5 = 4 is the greater divisor."""
    scaled, plain = learner_of(), learner_of()
    scaled.update(Batches((batch_of(0),), None, 0, moments(100, 0.0, 400.0, 20.0)))
    batch = batch_of(0)
    plain.update(Batches((batch._replace(reward=batch.reward / 4.0),), None))
    one, other = scaled.state().tensors, plain.state().tensors
    assert torch.equal(one["critic.first.1.weight"], other["critic.first.1.weight"])
    totals = scaled.read_metrics()
    assert totals.sums[totals.names.index("reward_scale")] == pytest.approx(4.0)


def test_the_target_entropy_is_that_of_the_gaussian() -> None:
    gaussian = torch.distributions.Normal(0.0, 0.15).entropy().item()
    rule = learner_of(target_sigma=0.15).rule
    assert isinstance(rule, FlashSac)
    assert rule.default_target_entropy(SPEC) == pytest.approx(3 * gaussian, rel=1e-6)
    assert gaussian == pytest.approx(-0.478, abs=1e-3)


def networks_of(learner: Learner, **algo: Any) -> tuple[Any, ...]:
    """Copies of the actor, the critics and their targets."""
    tensors, networks = learner.state().tensors, [categorical_critic(algo_of(**algo), SPEC) for _ in range(2)]
    for prefix, critic in zip(("critic.", "target_critic."), networks, strict=True):
        critic.load_state_dict({name: tensors[prefix + name] for name in critic.state_dict()})
    return copy.deepcopy(learner.policy.actor), *networks


@pytest.mark.promise("published-algorithms")
def test_an_update_is_that_of_the_paper() -> None:
    """Actor, then critics and their targets, from the losses of arXiv:2604.04539 and torch's Adam."""
    learner = learner_of(policy_delay=1, init_alpha=0.3, alpha_lr=0.1, tau=0.1, actor_lr=0.01)
    rows = torch.arange(32)
    batch = batch_of(0)._replace(terminated=(rows % 2).float(), discount=torch.linspace(0.3, 1.0, 32))
    start = learner.state()
    for name, tensor in start.tensors.items():
        if name.startswith("target_") and name.endswith("weight"):  # else it is the critic
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5)))
    learner.load_state(start)
    actor, critic, target = networks_of(learner)
    generator = torch.Generator().set_state(learner.generator.get_state())
    output = actor.body(torch.cat((batch.obs, batch.next_obs)), of_batch=True)[:32]
    action, log_prob = actor.sample_from(output, generator)
    actor_loss = (0.3 * log_prob - critic(batch.obs, action).amin(dim=0)).mean()
    actor_loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.Adam(actor.parameters(), lr=0.01).step()
    action, log_prob = actor.sample(batch.next_obs, generator)  # of the actor that has learnt
    pairs = torch.cat((torch.cat((batch.obs, batch.action), 1), torch.cat((batch.next_obs, action), 1)))
    log_probs = target.log_probs(pairs, of_batch=True)[:, 32:]
    smaller, factor = log_probs[target.means(log_probs).argmin(dim=0), rows], batch.discount * (1.0 - batch.terminated)
    learner.update(Batches((batch,), None))
    alpha = learner.state().tensors["log_alpha"].exp()  # it has learnt, too
    y = projected(smaller, critic.bins, batch.reward, factor, -alpha * log_prob)
    critic_loss = cross_entropy(y, critic.log_probs(pairs, of_batch=True)[:, :32])
    totals = learner.read_metrics()
    measured = dict(zip(totals.names, totals.sums.tolist(), strict=True))
    assert measured["actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-4)
    assert measured["critic_loss"] == pytest.approx(critic_loss.item(), rel=1e-4)
    assert measured["target_q_mean"] == pytest.approx((y * critic.bins).sum(dim=1).mean().item(), rel=1e-4)
    _, online, followed = networks_of(learner)
    for old, source, new in zip(*(net.parameters() for net in (target, online, followed)), strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * source)


def test_bins_and_scale_are_those_of_value_max() -> None:
    learner = learner_of(value_max=2.0)
    learner.update(Batches((batch_of(0),), None, 0, moments(100, 0.0, 400.0, 20.0)))
    totals = learner.read_metrics()
    assert totals.sums[totals.names.index("reward_scale")] == pytest.approx(20.0 / 2.0)
    assert learner.state().tensors["critic.bins"][[0, -1]].tolist() == [-2.0, 2.0]


@pytest.mark.promise("nan-never-trained")
@pytest.mark.parametrize("field", ["obs", "action", "reward", "next_obs", "discount"])
def test_a_bad_number_trips_the_guard_and_moves_no_critic(field: str) -> None:
    """It ended in an index out of bounds where it fell into no bin. The actor has learnt before, from what is sound."""
    learner, bad = learner_of(), getattr(batch_of(3), field).clone()
    learner.update(Batches((batch_of(0), batch_of(1), batch_of(2)), None))
    before, bad[2] = learner.state().tensors, float("nan")
    learner.update(Batches((batch_of(3)._replace(**{field: bad}), batch_of(4)), None))
    after = learner.state().tensors
    assert learner.has_diverged()
    assert all(bool(after[name].isfinite().all()) for name in after if name.endswith("weight"))
    kept = [name for name in before if name.startswith("critic.") and "running" not in name]
    assert [name for name in kept if not torch.equal(before[name], after[name])] == []


class RoundingExchange(SoloExchange):
    """Ranks that are equal, and whose mean is a little more than each of them."""

    num_ranks = 2

    def average(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.add_(1e-4)


def test_ranks_average_the_statistics_of_batch_norms_and_never_the_bins() -> None:
    learners = [learner_of(exchange) for exchange in (None, RoundingExchange())]
    for learner in learners:
        learner.update(Batches((batch_of(0), batch_of(1)), None))
    alone, ranks = (learner.tensors() for learner in learners)
    assert not torch.equal(alone["policy.actor.body.0.running_mean"], ranks["policy.actor.body.0.running_mean"])
    for name in ("critic.bins", "target_critic.bins"):
        assert torch.equal(alone[name], ranks[name]), name
