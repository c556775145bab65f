from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from offpolicy.algos.registry import make_policy
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actor_critic import make_actor_critic
from offpolicy.nets.actors import DeterministicActor, SoftmaxActor, SquashedGaussianActor, squashed_gaussian_log_prob
from offpolicy.types import SpaceSpec


def log_prob(u: float, mean: float, std: float) -> float:
    """The log-density at one pre-tanh sample of one dimension, in float32 as in training."""
    pre_tanh = torch.tensor([[u]])
    return float(squashed_gaussian_log_prob(pre_tanh, (pre_tanh - mean) / std, torch.tensor([[math.log(std)]])))


@pytest.mark.promise("log-prob")
@pytest.mark.parametrize(
    ("u", "mean", "std", "expected"),
    [
        (0.0, 0.0, 1.0, -0.918939),
        (1.2, 0.3, 0.5, -0.658413),
        (3.0, 2.5, 0.2, 2.184156),
        (7.0, 7.0, 0.1, 13.997354),  # log(1 - a^2 + 1e-6) would say 13.734489
        (12.0, 10.0, 1.0, 19.694767),  # and here 10.896421
        (-12.0, -10.0, 1.0, 19.694767),
    ],
)
def test_log_prob_has_the_known_values(u: float, mean: float, std: float, expected: float) -> None:
    assert log_prob(u, mean, std) == pytest.approx(expected, abs=2e-5)


@pytest.mark.promise("log-prob")
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.8, 0.4), (-1.5, 0.7)])
def test_density_integrates_to_one_over_the_action_space(mean: float, std: float) -> None:
    edges = torch.linspace(-1.0, 1.0, 400_001, dtype=torch.float64)
    action = (edges[1:] + edges[:-1]) / 2
    pre_tanh = action.atanh().unsqueeze(-1)
    log_std = torch.full_like(pre_tanh, math.log(std))
    density = squashed_gaussian_log_prob(pre_tanh, (pre_tanh - mean) / std, log_std).exp()
    assert float(density.sum() * (2.0 / 400_000)) == pytest.approx(1.0, abs=1e-4)


def test_a_softmax_actor_explores_by_its_probabilities_and_acts_by_the_greatest() -> None:
    actor = SoftmaxActor(3, (4,), (8,), "relu")
    with torch.no_grad():
        actor.body[-1].weight.zero_()  # type: ignore[operator,union-attr]  # of the last linear layer
        actor.body[-1].bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]).log())  # type: ignore[operator,union-attr]
    action, log_prob = actor.explore(torch.zeros(20_000, 3), torch.Generator().manual_seed(0))
    frequencies = [float((action == number).float().mean()) for number in range(4)]
    assert frequencies == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)
    assert (action.shape, log_prob) == ((20_000, 1), None)
    assert actor.act(torch.zeros(2, 3)).tolist() == [[3.0], [3.0]]


def test_log_std_is_clamped() -> None:
    actor = SquashedGaussianActor(3, 1, (8,), "relu")
    for raw, clamped in ((-50.0, -20.0), (0.5, 0.5), (9.0, 2.0)):
        torch.nn.init.zeros_(actor.body[-1].weight)  # type: ignore[arg-type]  # of the last linear layer
        torch.nn.init.constant_(actor.body[-1].bias, raw)  # type: ignore[arg-type]
        assert actor(torch.zeros(1, 3))[1].tolist() == [[clamped]]


def td3_noise(exploration_noise: float, num_rows: int) -> Tensor:
    actor, obs = DeterministicActor(3, 2, (8,), "relu", exploration_noise), torch.zeros(num_rows, 3)
    with torch.no_grad():
        return actor.explore(obs, torch.Generator().manual_seed(3))[0] - actor.act(obs)


def test_td3_explores_with_its_own_noise_per_environment_and_dimension() -> None:
    noise = td3_noise(0.1, 20_000)
    assert float(noise.std()) == pytest.approx(0.1, abs=0.002)
    assert abs(float(torch.corrcoef(noise.T)[0, 1])) < 0.02
    assert noise[:100].unique().numel() == 200


@pytest.mark.promise("action-space")
def test_td3_exploration_stays_inside_the_action_space() -> None:
    actor = DeterministicActor(3, 2, (8,), "relu", 5.0)
    action = actor.explore(torch.zeros(1000, 3), torch.Generator())[0].detach()
    assert float(action.abs().max()) == 1.0


GROUPS = SpaceSpec(
    *(9, 2, (-1.0,) * 2, (1.0,) * 2, ("obs", "privileged", "proprio_hist")), obs_shapes=((3,), (2,), (2, 2))
)


@pytest.mark.parametrize(("given", "read"), [("obs", slice(0, 3)), ("history", slice(5, 9)), ("all", slice(0, 9))])
def test_the_actor_reads_its_group_alone_and_the_critic_everything(given: str, read: slice) -> None:
    algo = AlgoConfig(name="appo", actor_input=given, hidden_dims=(8,), activation="tanh")
    torch.manual_seed(0)
    policy = make_policy(algo, GROUPS)
    net = make_actor_critic(algo, GROUPS, policy.actor)
    obs = torch.randn(9, generator=torch.Generator().manual_seed(1)).requires_grad_()
    distribution, value = net(obs)
    (of_actor,) = torch.autograd.grad(distribution.mean.sum(), obs)
    (of_critic,) = torch.autograd.grad(value, obs)
    assert of_actor.nonzero().flatten().tolist() == list(range(9))[read]
    assert (of_critic != 0).all()
