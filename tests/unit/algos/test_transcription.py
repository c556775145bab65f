"""One update of SAC and of TD3 against the papers written out in plain torch, with torch's own Adam and densities."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution
from torch.nn.functional import linear, mse_loss, relu

from offpolicy.algos.learner import Learner, LearnerState
from offpolicy.types import Batch, Batches, SpaceSpec

LearnerOf = Callable[..., Learner]
BatchOf = Callable[..., Batch]
Weights = dict[str, Tensor]


def weights(state: LearnerState, prefix: str) -> Weights:
    """Trainable copies of a network's parameters, by the last part of their names."""
    named = state.tensors.items()
    return {key[len(prefix) :]: t.clone().requires_grad_() for key, t in named if key.startswith(prefix)}


def net(w: Weights, prefix: str, x: Tensor) -> Tensor:
    hidden = relu(linear(x, w[f"{prefix}0.weight"], w[f"{prefix}0.bias"]))
    return linear(hidden, w[f"{prefix}2.weight"], w[f"{prefix}2.bias"])


def twin(w: Weights, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.cat([obs, action], 1)
    return net(w, "first.", x)[:, 0], net(w, "second.", x)[:, 0]


def descend(loss: Tensor, w: Weights, lr: float) -> None:
    """One Adam step; leaves the gradients in place for comparison."""
    adam = torch.optim.Adam(w.values(), lr=lr)
    adam.zero_grad()
    loss.backward()
    adam.step()


def polyak(target: Weights, source: Weights, tau: float) -> Weights:
    return {key: tau * source[key] + (1 - tau) * target[key] for key in target}


def assert_same_gradients(state: LearnerState, optimizer: str, w: Weights) -> None:
    """Adam's first moment after its first step is a tenth of the gradient."""
    for key, tensor in w.items():
        assert tensor.grad is not None
        first_moment = state.tensors[f"{optimizer}.exp_avg.{key}"]
        assert torch.allclose(first_moment, 0.1 * tensor.grad, rtol=1e-4, atol=1e-7), key


def assert_same_weights(state: LearnerState, prefix: str, w: Weights) -> None:
    for key, tensor in w.items():
        assert torch.allclose(state.tensors[prefix + key], tensor, rtol=0.0, atol=2e-6), prefix + key


def assert_learnt(state: LearnerState, actor: Weights, critic: Weights) -> None:
    """Gradients and weights of both."""
    assert_same_gradients(state, "critic_optimizer", critic)
    assert_same_gradients(state, "actor_optimizer", {f"body.{key}": tensor for key, tensor in actor.items()})
    assert_same_weights(state, "critic.", critic)
    assert_same_weights(state, "policy.actor.body.", actor)


def move_targets_away(learner: Learner) -> LearnerState:
    """Give the targets weights of their own: at the start they are copies, and could be mistaken for their sources."""
    state, generator = learner.state(), torch.Generator().manual_seed(11)
    for key, tensor in state.tensors.items():
        if key.startswith("target_"):
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    learner.load_state(state)
    return state


def draws(state: LearnerState, count: int) -> list[Tensor]:
    """The next noises [8, 2] of the learner's generator."""
    generator = torch.Generator()
    generator.set_state(state.tensors["generator"])
    return [torch.randn(8, 2, generator=generator) for _ in range(count)]


def squashed(w: Weights, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = net(w, "", obs).split(2, dim=1)
    std = log_std.clamp(-20, 2).exp()
    policy = TransformedDistribution(Independent(Normal(mean, std), 1), [TanhTransform(cache_size=1)])
    action = torch.tanh(mean + std * noise)
    return action, policy.log_prob(action)


@pytest.mark.promise("published-algorithms", "temperature-loss")
def test_sac_is_the_paper(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("sac", init_alpha=0.3, actor_lr=1e-3, critic_lr=2e-3, alpha_lr=3e-3, tau=0.1)
    batch = batch_of(terminated=torch.tensor([0.0, 1.0] * 4))
    start = move_targets_away(learner)
    actor, critic = weights(start, "policy.actor.body."), weights(start, "critic.")
    target, temperature = weights(start, "target_critic."), {"log_alpha": start.tensors["log_alpha"].clone()}
    alpha = temperature["log_alpha"].requires_grad_().exp().detach()
    next_noise, noise = draws(start, 2)

    with torch.no_grad():
        next_action, next_log_prob = squashed(actor, batch.next_obs, next_noise)
        next_q = torch.min(*twin(target, batch.next_obs, next_action)) - alpha * next_log_prob
        y = batch.reward + batch.discount * (1 - batch.terminated) * next_q
    q1, q2 = twin(critic, batch.obs, batch.action)
    critic_loss = mse_loss(q1, y) + mse_loss(q2, y)
    descend(critic_loss, critic, 2e-3)
    critic_gradients = {key: tensor.grad.clone() for key, tensor in critic.items() if tensor.grad is not None}
    action, log_prob = squashed(actor, batch.obs, noise)
    actor_loss = (alpha * log_prob - torch.min(*twin(critic, batch.obs, action))).mean()
    descend(actor_loss, actor, 1e-3)
    alpha_loss = (-temperature["log_alpha"].exp() * (log_prob.detach() - 2.0)).mean()
    descend(alpha_loss, temperature, 3e-3)

    learner.update(Batches((batch,), None))
    end, metrics = learner.state(), learner.read_metrics()
    expected = [critic_loss, (q1.mean() + q2.mean()) / 2, y.mean(), actor_loss, alpha, -log_prob.mean(), alpha_loss]
    assert metrics.sums == pytest.approx([value.item() for value in expected], rel=1e-5)
    for key, gradient in critic_gradients.items():
        critic[key].grad = gradient
    assert_learnt(end, actor, critic)
    assert_same_gradients(end, "alpha_optimizer", temperature)
    assert_same_weights(end, "", temperature)
    assert_same_weights(end, "target_critic.", polyak(target, critic, 0.1))


@pytest.mark.promise("published-algorithms")
def test_discrete_sac_is_the_paper(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    """arXiv:1910.07207, eqs. 4, 10, 11 and 12, with networks of 5 actions; its target entropy is 0.98 log 5."""
    spec = SpaceSpec(obs_dim=3, action_dim=1, action_low=(0.0,), action_high=(4.0,), num_actions=5)
    learner = learner_of("sac", spec=spec, init_alpha=0.3, actor_lr=1e-3, critic_lr=2e-3, alpha_lr=3e-3, tau=0.1)
    index = torch.tensor([0, 1, 2, 3, 4, 4, 2, 0])
    batch = batch_of(terminated=torch.tensor([0.0, 1.0] * 4), action=index[:, None].float())
    start = move_targets_away(learner)
    actor, critic = weights(start, "policy.actor.body."), weights(start, "critic.")
    target, temperature = weights(start, "target_critic."), {"log_alpha": start.tensors["log_alpha"].clone()}
    alpha = temperature["log_alpha"].requires_grad_().exp().detach()
    rows = torch.arange(8)

    with torch.no_grad():
        probs = net(actor, "", batch.next_obs).softmax(1)
        q = torch.min(net(target, "first.", batch.next_obs), net(target, "second.", batch.next_obs))
        next_value = (probs * (q - alpha * probs.log())).sum(1)
        y = batch.reward + batch.discount * (1 - batch.terminated) * next_value
    q1, q2 = (net(critic, f"{name}.", batch.obs)[rows, index] for name in ("first", "second"))
    critic_loss = mse_loss(q1, y) + mse_loss(q2, y)
    descend(critic_loss, critic, 2e-3)
    critic_gradients = {key: tensor.grad.clone() for key, tensor in critic.items() if tensor.grad is not None}
    probs = net(actor, "", batch.obs).softmax(1)
    with torch.no_grad():
        q = torch.min(net(critic, "first.", batch.obs), net(critic, "second.", batch.obs))
    actor_loss = (probs * (alpha * probs.log() - q)).sum(1).mean()
    descend(actor_loss, actor, 1e-3)
    probs = probs.detach()
    entropy = -(probs * probs.log()).sum(1).mean()
    terms = probs * (-temperature["log_alpha"].exp() * (probs.log() + 0.98 * math.log(5.0)))
    alpha_loss = terms.sum(1).mean()
    descend(alpha_loss, temperature, 3e-3)

    learner.update(Batches((batch,), None))
    end, metrics = learner.state(), learner.read_metrics()
    expected = [critic_loss, (q1.mean() + q2.mean()) / 2, y.mean(), actor_loss, alpha, entropy, alpha_loss]
    assert metrics.sums == pytest.approx([value.item() for value in expected], rel=1e-5)
    for key, gradient in critic_gradients.items():
        critic[key].grad = gradient
    assert_learnt(end, actor, critic)
    assert_same_gradients(end, "alpha_optimizer", temperature)
    assert_same_weights(end, "", temperature)
    assert_same_weights(end, "target_critic.", polyak(target, critic, 0.1))


@pytest.mark.promise("published-algorithms", "td3-smoothing")
def test_td3_is_the_paper(learner_of: LearnerOf, batch_of: BatchOf) -> None:
    learner = learner_of("td3", actor_lr=1e-3, critic_lr=2e-3, tau=0.1, target_noise=0.4, target_noise_clip=0.5)
    batch = batch_of(terminated=torch.tensor([0.0, 1.0] * 4))
    start = move_targets_away(learner)
    actor, critic = weights(start, "policy.actor.body."), weights(start, "critic.")
    target_actor, target = weights(start, "target_actor.body."), weights(start, "target_critic.")
    (unit_noise,) = draws(start, 1)

    with torch.no_grad():
        noise = (0.4 * unit_noise).clamp(-0.5, 0.5)
        next_action = (net(target_actor, "", batch.next_obs).tanh() + noise).clamp(-1.0, 1.0)
        y = batch.reward + batch.discount * (1 - batch.terminated) * torch.min(
            *twin(target, batch.next_obs, next_action)
        )
    q1, q2 = twin(critic, batch.obs, batch.action)
    critic_loss = mse_loss(q1, y) + mse_loss(q2, y)
    descend(critic_loss, critic, 2e-3)
    critic_gradients = {key: tensor.grad.clone() for key, tensor in critic.items() if tensor.grad is not None}
    actor_loss = -twin(critic, batch.obs, net(actor, "", batch.obs).tanh())[0].mean()
    descend(actor_loss, actor, 1e-3)

    learner.update(Batches((batch,), None))
    end, metrics = learner.state(), learner.read_metrics()
    expected = [critic_loss, (q1.mean() + q2.mean()) / 2, y.mean(), actor_loss]
    assert metrics.sums == pytest.approx([value.item() for value in expected], rel=1e-5)
    for key, gradient in critic_gradients.items():
        critic[key].grad = gradient
    assert_learnt(end, actor, critic)
    assert_same_weights(end, "target_critic.", polyak(target, critic, 0.1))
    assert_same_weights(end, "target_actor.body.", polyak(target_actor, actor, 0.1))
