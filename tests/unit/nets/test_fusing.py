"""Learners with fused networks and with plain modules learn the same; options without a kernel keep plain modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.optim import Loss, OptimizerStep
from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets import fusing
from offpolicy.nets.critics import TwinCritic
from offpolicy.nets.flat import join, views
from offpolicy.nets.fused import FusedMlp
from offpolicy.nets.fusing import differentiable, fuse
from offpolicy.nets.mixed import MixedMlp
from offpolicy.nets.mlp import Mlp, mlp
from offpolicy.nets.plain import PlainMlp
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
    for seed in range(5):
        for learner in (fused, plain):
            learner.update(rollouts(seed, spec))
    left, right = fused.state().tensors, plain.state().tensors
    for name in left.keys() - {"generator"}:
        assert torch.allclose(left[name], right[name], rtol=1e-3, atol=1e-4), name
    assert any(not torch.allclose(left[name], start[name], atol=1e-3) for name in start if name.startswith("policy"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "sac"}, [True] * 4),  # the twin and its first network, online and target
        ({"name": "sac", "activation": "silu"}, [False] * 4),
        ({"name": "td3", "critic_layer_norm": True}, [False] * 4),
    ],
    ids=str,
)
def test_one_place_chooses_what_is_fused(options: dict[str, Any], expected: list[bool]) -> None:
    learner = make_learner(AlgoConfig(**options), SPEC, torch.device("cpu"), seed=3)
    critics = networks_of(learner)[1:3]
    found = [is_fused for critic in critics for is_fused in fused_in(critic)]
    assert [found[i] for i in (0, 1, 3, 4)] == expected
    assert fused_in(learner.policy) == [options.get("activation") != "silu"]


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize(("precision", "expected"), [("fp32", FusedMlp), ("bf16", MixedMlp)])
def test_the_precision_is_that_of_all_networks(name: str, precision: str, expected: type[FusedMlp]) -> None:
    learner = make_learner(AlgoConfig(name=name, precision=precision), SPEC, torch.device("cpu"), seed=3)
    parts = [part for network in networks_of(learner) for part in network.modules() if isinstance(part, Mlp)]
    found = [part.fused for part in parts] + [critic.fused for critic in networks_of(learner)[1:3]]  # type: ignore[misc]
    assert {type(net) for net in found} - {type(None)} == {expected}


@pytest.mark.parametrize(("precision", "may_round"), [("fp32", True), ("bf16", False)])
def test_sums_of_rounded_products_are_float32_on_cuda_too(precision: str, may_round: bool) -> None:
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_bf16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction, True
    try:
        make_learner(AlgoConfig(precision=precision), SPEC, torch.device("cpu"), seed=3)
        assert matmul.allow_bf16_reduced_precision_reduction is may_round
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


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


def test_networks_that_do_not_learn_keep_plain_modules() -> None:
    net, other = mlp(3, (8,), 1, "relu"), mlp(3, (8,), 1, "relu")
    fuse(nn.ModuleList([net, other]), {parameter: torch.zeros_like(parameter) for parameter in net.parameters()})
    assert (net.fused is None, other.fused is None) == (False, True)


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, torch.inference_mode),
        ({"precision": "bf16"}, torch.inference_mode),
        ({"critic_layer_norm": True}, torch.no_grad),  # autograd differentiates the critics
        ({"activation": "silu"}, torch.no_grad),
        ({"compile": "graph"}, torch.no_grad),
    ],
    ids=str,
)
def test_updates_know_nothing_of_autograd_where_all_is_fused(
    name: str, options: dict[str, Any], expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner: Any = make_learner(AlgoConfig(name=name, **options), SPEC, torch.device("cpu"), seed=1)
    assert learner._algorithm._graphless is expected
    modes, minimize = list[bool](), OptimizerStep.minimize

    def noted(step: OptimizerStep, *losses: Loss) -> None:
        modes.append(torch.is_inference_mode_enabled())
        minimize(step, *losses)

    monkeypatch.setattr(OptimizerStep, "minimize", noted)
    learner.update(batches(1))
    learner.update(batches(2))
    assert set(modes) == {expected is torch.inference_mode}


def test_what_is_not_fused_is_differentiated_by_autograd() -> None:
    net = mlp(3, (8,), 1, "relu")
    gradients = {parameter: torch.zeros_like(parameter) for parameter in net.parameters()}
    assert isinstance(differentiable((net,), gradients, net.fused), PlainMlp)
    fuse(net, gradients)
    assert differentiable((net,), gradients, net.fused) is net.fused


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_target_is_evaluated_where_its_source_keeps_its_activations(precision: str) -> None:
    source = mlp(4, (8, 8), 1, "relu")
    target = copy.deepcopy(source)
    block = join(tuple(source.parameters()))
    gradients = views(torch.zeros_like(block), [parameter.shape for parameter in source.parameters()])
    fuse(source, dict(zip(source.parameters(), gradients, strict=True)), target, precision=precision)
    assert source.fused is not None
    rows, other_rows = torch.randn(5, 4), torch.randn(5, 4)
    with torch.no_grad():
        before = target(rows).clone()  # before the source has evaluated as many
        output = source.fused.evaluate(rows)
        memory = source.fused.memory(5)
        of_source = [activations.clone() for activations in memory.hidden]
        assert torch.equal(target(rows), before)
        assert torch.equal(output[0], before)
        source.fused.evaluate(other_rows)
        target(rows)
        assert all(torch.equal(*both) for both in zip(memory.hidden, of_source, strict=True))
        with pytest.raises(RuntimeError, match="overwritten by another pass"):
            source.fused.pull_back(output)
