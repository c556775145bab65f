"""Learners and policies with kernels of their own do what plain modules of torch do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from offpolicy.algos.base_learner import BaseLearner
from offpolicy.nets.explorer import MAX_ROWS, Explorer
from torch import nn

from offpolicy.algos.registry import make_learner, make_policy
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets import fusing
from offpolicy.nets.critics import TwinCritic
from offpolicy.nets.mlp import Mlp
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import Policy
from offpolicy.onednn import BLAS, ONEDNN, has_onednn
from offpolicy.types import Batch, Batches, Rollouts, SpaceSpec

SPEC = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
TEACHER = SpaceSpec(5, 2, (-1.0,) * 2, (1.0,) * 2, obs_keys=("obs", "privileged"), obs_shapes=((3,), (2,)))
OPTIONS: list[dict[str, Any]] = [
    {"name": "sac"},
    {"name": "td3"},
    {"name": "sac", "activation": "tanh", "policy_delay": 2, "max_grad_norm": 0.5},
    {"name": "td3", "activation": "elu", "normalize_obs": True},
    {"name": "td3", "critic_layer_norm": True},  # the actors are fused
]
ROLLOUTS: list[dict[str, Any]] = [
    {"name": "appo", "num_minibatches": 1},
    {"name": "appo", "num_minibatches": 4, "activation": "tanh"},
    {"name": "hora", "encoder_dims": (12,), "latent_dim": 4},
]


def networks_of(learner: BaseLearner) -> list[nn.Module]:
    """Every network of SAC and TD3 that a learner evaluates."""
    algorithm: Any = learner._algorithm
    networks = [algorithm.policy, algorithm._critic.online, algorithm._critic.target.module]
    return [*networks, algorithm._target_actor.module] if hasattr(algorithm, "_target_actor") else networks


def fused_in(network: nn.Module) -> list[bool]:
    return [part.fused is not None for part in network.modules() if isinstance(part, Mlp | TwinCritic)]


def batches(seed: int) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn((16, n), generator=generator) for n in (3, 2, 1, 3)]
    flags = torch.zeros(16), torch.full((16,), 0.99)
    return Batches((Batch(rows[0], rows[1].tanh(), rows[2][:, 0], rows[3], *flags),), rows[0])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fused_and_plain_networks_learn_the_same(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    algo = AlgoConfig(**{"hidden_dims": (16, 24), "actor_lr": 1e-3, "critic_lr": 1e-3, **options})
    fused = make_learner(algo, SPEC, torch.device("cpu"), seed=3)
    monkeypatch.setattr(fusing, "can_fuse", lambda net: False)
    plain = make_learner(algo, SPEC, torch.device("cpu"), seed=3)
    assert not any(is_fused for network in networks_of(plain) for is_fused in fused_in(network))
    for seed in range(20):
        for learner in (fused, plain):
            learner.update(batches(seed))
    left, right = fused.state().tensors, plain.state().tensors
    assert left.keys() == right.keys()
    for name in left.keys() - {"generator"}:
        assert torch.allclose(left[name], right[name], rtol=1e-4, atol=2e-5), name
    assert torch.equal(left["generator"], right["generator"])


def rollouts(seed: int, spec: SpaceSpec) -> Rollouts:
    generator = torch.Generator().manual_seed(seed)
    obs, action, reward, log_prob = (
        torch.randn(shape, generator=generator)
        for shape in ((9, 4, spec.obs_dim), (8, 4, spec.action_dim), (8, 4), (8, 4))
    )
    none, all_rows = torch.zeros(8, 4), torch.ones(8, 4)
    return Rollouts(obs, action, reward, none, none, -log_prob.abs(), all_rows, progress=0.1)


@pytest.mark.parametrize("options", ROLLOUTS, ids=str)
def test_fused_and_plain_networks_learn_the_same_from_rollouts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, spec = AlgoConfig(**{"hidden_dims": (16, 24), **options}), TEACHER if options["name"] == "hora" else SPEC
    fused = make_learner(algo, spec, torch.device("cpu"), seed=3)
    assert any(fused_in(fused.policy))
    monkeypatch.setattr(fusing, "can_fuse", lambda net: False)
    plain = make_learner(algo, spec, torch.device("cpu"), seed=3)
    assert not any(fused_in(plain.policy))
    start = fused.state().tensors
    start = {name: tensor.clone() for name, tensor in start.items()}
    for seed in range(3):
        for learner in (fused, plain):
            learner.update(rollouts(seed, spec))
    left, right = fused.state().tensors, plain.state().tensors
    for name in left.keys() - {"generator"}:
        assert torch.allclose(left[name], right[name], rtol=1e-3, atol=1e-4), name
    assert any(not torch.allclose(left[name], start[name], atol=1e-3) for name in start if name.startswith("policy"))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_learners_in_bfloat16_stay_near_those_in_float32(name: str) -> None:
    """Losses of 20 updates from one start: 2 %, some roundings of 2^-8."""
    losses = []
    for precision in ("fp32", "bf16"):
        algo = AlgoConfig(name=name, precision=precision, hidden_dims=(64, 64))
        learner = make_learner(algo, SPEC, torch.device("cpu"), seed=3)
        for seed in range(20):
            learner.update(batches(seed))
        totals = learner.read_metrics()
        losses.append(dict(zip(totals.names, totals.sums, strict=True)))
    exact, rounded = losses
    for metric in ("critic_loss", "actor_loss"):
        assert rounded[metric] == pytest.approx(exact[metric], rel=0.02)
        assert rounded[metric] != exact[metric]


WIDE = SpaceSpec(obs_dim=150, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
FLASHSAC: dict[str, Any] = {"name": "flashsac", "policy_delay": 2, "init_alpha": 0.01}


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(
    "options",
    [{"name": "sac"}, {"name": "td3", "activation": "tanh"}, {"name": "sac", "precision": "bf16"}, FLASHSAC],
    ids=str,
)
def test_learners_learn_the_same_with_both(options: dict[str, Any]) -> None:
    """Over ten updates; Adam makes a step of full length of a gradient that is a rounding error."""
    sizes = {} if options["name"] == "flashsac" else {"hidden_dims": (160, 128)}
    learners = [
        make_learner(AlgoConfig(**options, **sizes, products=library), WIDE, torch.device("cpu"), seed=3)
        for library in (ONEDNN, BLAS)
    ]
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        obs, action, reward, next_obs = (torch.randn((32, n), generator=generator) for n in (150, 2, 1, 150))
        batch = Batch(obs, action.tanh(), reward[:, 0], next_obs, torch.zeros(32), torch.full((32,), 0.99))
        for learner in learners:
            learner.update(Batches((batch,), None))
    left, right = (learner.state().tensors for learner in learners)
    for name in left.keys() - {"generator"}:
        assert torch.allclose(left[name], right[name], rtol=1e-3, atol=1e-3), name


def policy_of(
    name: str = "sac", *, normalize_obs: bool = False, activation: str = "relu", width: int | None = None
) -> Policy:
    torch.manual_seed(1)
    algo = AlgoConfig(
        name=name, hidden_dims=(width, width) if width else (32, 24), normalize_obs=normalize_obs, activation=activation
    )
    policy = make_policy(algo, SPEC)
    if policy.normalizer is not None:
        policy.normalizer.absorb(block_moments(1.0 + 2.0 * torch.randn(50, 3)))
    return policy


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize(("activation", "normalize_obs"), [("relu", True), ("tanh", False), ("silu", True)])
@pytest.mark.parametrize("rows", [1, MAX_ROWS, MAX_ROWS + 1])
def test_exploratory_actions_are_those_of_torch(name: str, activation: str, normalize_obs: bool, rows: int) -> None:  # noqa: FBT001
    policy = policy_of(name, normalize_obs=normalize_obs, activation=activation)
    explorer, generators = Explorer(policy, rows, 2), [torch.Generator().manual_seed(5) for _ in range(2)]
    for seed in range(5):
        obs = 3.0 * np.random.default_rng(seed).standard_normal((rows, 3), np.float32)
        ours = explorer.explore(obs, generators[0])
        theirs, _ = policy.sample(torch.from_numpy(obs), generators[1])
        assert (ours.dtype, ours.shape) == (np.float32, (rows, 2))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0.0, atol=2e-6)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
