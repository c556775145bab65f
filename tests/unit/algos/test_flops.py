"""The work counted from a few rows is what the real learners and policies do, as torch's own counter sees it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.flops import count_work
from offpolicy.algos.registry import make_learner
from offpolicy.config.schema import RunConfig
from offpolicy.nets.policy import make_policy
from offpolicy.onednn import has_onednn
from offpolicy.types import MIN_FRAMES, Batch, Batches, Direction, Rollouts, SpaceSpec

CPU = torch.device("cpu")
REPLAY_ALGOS = ("sac", "td3")
NETS = {"hidden_dims": [24, 16]}
LESSON = {**NETS, "epochs": 3, "num_minibatches": 4}
HORA = {**LESSON, "encoder_dims": [12, 9], "latent_dim": 5}
STAGES = ("teach", "adapt")
COUNTING = """
import sys
from offpolicy.algos.flops import count_work
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec
count_work(RunConfig(), SpaceSpec(3, 2, (-1.0, -1.0), (1.0, 1.0)))
print("torch._dynamo" in sys.modules)
"""


def spec_of(obs_dim: int = 11, action_dim: int = 3, num_actions: int = 0) -> SpaceSpec:
    dim = 1 if num_actions else action_dim
    return SpaceSpec(obs_dim, dim, (-1.0,) * dim, (1.0,) * dim, num_actions=num_actions)


def hora_spec(num_frames: int = 30, obs_dim: int = 7, privileged_dim: int = 4, num_actions: int = 0) -> SpaceSpec:
    dim = 1 if num_actions else 3
    return SpaceSpec(
        obs_dim=num_frames * 2 + obs_dim + privileged_dim,
        action_dim=dim,
        action_low=(-1.0,) * dim,
        action_high=(1.0,) * dim,
        obs_keys=("proprio_hist", "obs", "privileged"),
        obs_shapes=((num_frames, 2), (obs_dim,), (privileged_dim,)),
        num_actions=num_actions,
    )


def replay_run(name: str, **algo: Any) -> RunConfig:
    return RunConfig.from_mapping({"algo": {"name": name, **NETS, "batch_size": 32, **algo}})


def rollout_run(name: str = "appo", length: int = 8, num_envs: int = 4, **algo: Any) -> RunConfig:
    """A run with the defaults above; every batch of rollouts has length * num_envs rows."""
    return RunConfig.from_mapping(
        {
            "algo": {"name": name, **(HORA if name == "hora" else LESSON), **algo},
            "runner": {"name": "appo"},
            "env": {"num_envs": num_envs},
            "rollout": {"length": length},
            "teacher": "runs/teacher" if algo.get("stage") == "adapt" else None,
        }
    )


def batches_of(cfg: RunConfig, spec: SpaceSpec, rows: int) -> Batches:
    """Two rounds of policy_delay updates, of `rows` rows each."""
    obs, column = torch.randn(rows, spec.obs_dim), torch.zeros(rows)
    batch = Batch(obs, torch.zeros(rows, spec.action_dim), column, obs, column, torch.ones(rows))
    return Batches((batch,) * (2 * cfg.algo.policy_delay), obs if cfg.algo.normalize_obs else None)


def rollouts_of(cfg: RunConfig, spec: SpaceSpec, num_envs: int) -> Rollouts:
    steps = cfg.rollout.length
    plain, actions = torch.zeros(steps, num_envs), torch.zeros(steps, num_envs, spec.action_dim)
    obs = torch.randn(steps + 1, num_envs, spec.obs_dim)
    return Rollouts(obs, actions, plain, plain, plain, plain, torch.ones(steps, num_envs), progress=0.5)


class Peers:
    """The exchange of one of two ranks, both of which always have the same numbers."""

    num_ranks = 2

    def average(self, tensors: Sequence[Tensor]) -> None:
        pass

    def gather(self, vector: Tensor) -> Tensor:
        return torch.stack((vector, vector))


def counted(learner: BaseLearner, material: Batches | Rollouts) -> float:
    """Operations per gradient update, by torch's counter."""
    with FlopCounterMode(display=False) as counter:
        learner.update(material)
    return counter.get_total_flops() / learner.num_updates


def counted_update(cfg: RunConfig, spec: SpaceSpec) -> float:
    """The same, of a run with one rank. It knows the products of the BLAS alone."""
    learner = make_learner(replace(cfg.algo, products="blas"), spec, CPU, seed=1)
    if cfg.algo.learns_from_rollouts:
        return counted(learner, rollouts_of(cfg, spec, cfg.env.num_envs))
    return counted(learner, batches_of(cfg, spec, cfg.algo.batch_size))


def counted_inference(cfg: RunConfig, spec: SpaceSpec, num_envs: int) -> float:
    """Operations per row of the policy, by torch's counter."""
    policy, obs = make_policy(cfg.algo, spec), torch.zeros(num_envs, spec.obs_dim)
    with FlopCounterMode(display=False) as counter:
        policy.act(obs)
    return counter.get_total_flops() / num_envs


def assert_exact(cfg: RunConfig, spec: SpaceSpec) -> None:
    measured = counted_update(cfg, spec)
    assert measured > 0
    assert count_work(cfg, spec).update == pytest.approx(measured, rel=1e-9)


@pytest.mark.parametrize("actor_input", ["obs", "history"])
def test_updates_and_decisions_of_an_actor_that_reads_one_group_are_counted(actor_input: str) -> None:
    algo = {"name": "appo", **LESSON, "actor_input": actor_input}
    cfg = RunConfig.from_mapping({"algo": algo, "runner": {"name": "appo"}, "env": {"num_envs": 8}})
    assert_exact(cfg, hora_spec())
    assert count_work(cfg, hora_spec()).decision == counted_inference(cfg, hora_spec(), 4)


@pytest.mark.parametrize("name", REPLAY_ALGOS)
@pytest.mark.parametrize("obs_dim", [3, 27, 400])
@pytest.mark.parametrize("policy_delay", [1, 2])
def test_updates_from_a_replay_are_counted(name: str, obs_dim: int, policy_delay: int) -> None:
    assert_exact(replay_run(name, policy_delay=policy_delay), spec_of(obs_dim, action_dim=6))


@pytest.mark.parametrize("obs_dim", [3, 400])
@pytest.mark.parametrize("options", [{}, {"policy_delay": 2}, {"normalize_obs": True}, {"activation": "silu"}], ids=str)
def test_updates_with_discrete_actions_are_counted(obs_dim: int, options: dict[str, Any]) -> None:
    assert_exact(replay_run("sac", **options), spec_of(obs_dim, num_actions=5))


@pytest.mark.parametrize("name", REPLAY_ALGOS)
@pytest.mark.parametrize("batch_size", [1, 7, 256])
@pytest.mark.parametrize("hidden_dims", [[5], [16, 16], [9, 24, 7, 3]])
def test_depth_and_batch_size_are_counted(name: str, batch_size: int, hidden_dims: list[int]) -> None:
    assert_exact(replay_run(name, batch_size=batch_size, hidden_dims=hidden_dims), spec_of())


@pytest.mark.parametrize("name", REPLAY_ALGOS)
@pytest.mark.parametrize(
    "options",
    [
        {"normalize_obs": True},
        {"max_grad_norm": 1.0},
        {"activation": "elu"},
        {"n_step": 3},
    ],
    ids=str,
)
def test_norms_clipping_and_activations_are_free(name: str, options: dict[str, Any]) -> None:
    cfg, plain = replay_run(name, **options), replay_run(name)
    assert_exact(cfg, spec_of())
    assert count_work(cfg, spec_of()) == count_work(plain, spec_of())


@pytest.mark.parametrize(("name", "num_critics"), [("sac", 2), ("td3", 1)])
def test_layer_norm_is_free_but_plain_modules_differentiate_critics_by_observations_too(
    name: str, num_critics: int
) -> None:
    cfg, fused = replay_run(name, critic_layer_norm=True, policy_delay=1), replay_run(name, policy_delay=1)
    assert_exact(cfg, spec_of())
    by_observations = num_critics * 2 * 32 * 11 * 24  # rows, observations, units of the first layer
    assert count_work(cfg, spec_of()).update == count_work(fused, spec_of()).update + by_observations


def test_a_fixed_temperature_is_no_cheaper() -> None:
    assert_exact(replay_run("sac", auto_alpha=False), spec_of())


@pytest.mark.parametrize("obs_dim", [3, 27, 400])
@pytest.mark.parametrize("num_actions", [0, 5], ids=["box", "discrete"])
@pytest.mark.parametrize("hidden_dims", [[5], [9, 24, 7]], ids=str)
def test_updates_from_rollouts_are_counted(obs_dim: int, num_actions: int, hidden_dims: list[int]) -> None:
    assert_exact(rollout_run(hidden_dims=hidden_dims), spec_of(obs_dim, num_actions=num_actions))


@pytest.mark.parametrize(
    ("length", "num_envs", "epochs", "num_minibatches"), [(1, 6, 1, 1), (2, 8, 2, 16), (40, 1, 5, 2)]
)
def test_the_preparation_is_spread_over_the_updates(
    length: int, num_envs: int, epochs: int, num_minibatches: int
) -> None:
    assert_exact(rollout_run("appo", length, num_envs, epochs=epochs, num_minibatches=num_minibatches), spec_of())


@pytest.mark.parametrize(
    "options",
    [
        {"advantage": "gae"},
        {"normalize_obs": True},
        {"lr_schedule": "kl_adaptive", "max_grad_norm": 1.0},
        {"value_clip": 0.2, "ent_coef": 0.01, "bounds_coef": 0.01},
        {"value_coef": 0.0},
    ],
    ids=str,
)
def test_advantages_schedules_and_losses_are_free(options: dict[str, Any]) -> None:
    assert_exact(rollout_run(**options), spec_of())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("num_frames", [MIN_FRAMES, 29, 30])
@pytest.mark.parametrize("num_actions", [0, 5], ids=["box", "discrete"])
def test_both_stages_of_hora_are_counted(stage: str, num_frames: int, num_actions: int) -> None:
    assert_exact(rollout_run("hora", stage=stage), hora_spec(num_frames, num_actions=num_actions))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("obs_dim", "privileged_dim"), [(3, 40), (400, 1)])
@pytest.mark.parametrize(
    "options", [{"encoder_dims": [8]}, {"latent_dim": 1, "epochs": 1}, {"normalize_obs": True}], ids=str
)
def test_latents_of_any_size_are_counted(
    stage: str, obs_dim: int, privileged_dim: int, options: dict[str, Any]
) -> None:
    assert_exact(rollout_run("hora", stage=stage, **options), hora_spec(30, obs_dim, privileged_dim))


@pytest.mark.parametrize("name", REPLAY_ALGOS)
def test_a_rank_of_two_hosts_learns_from_its_share_of_the_batch(name: str) -> None:
    raw = {"algo": {"name": name, **NETS, "batch_size": 48}, "runner": {"name": "multi_gpu", "world_size": 3}}
    cfg = RunConfig.from_mapping({**raw, "collect": {"num_collectors": 3}})
    learner = make_learner(cfg.algo, spec_of(), CPU, seed=1, exchange=Peers())
    assert count_work(cfg, spec_of()).update == counted(learner, batches_of(cfg, spec_of(), rows=16))
    assert count_work(cfg, spec_of(), num_hosts=2).update == counted_update(replay_run(name, batch_size=8), spec_of())


def test_a_rank_learns_from_the_rollouts_of_its_own_collectors() -> None:
    raw = {"algo": {"name": "appo", **LESSON}, "runner": {"name": "appo", "world_size": 2}, "rollout": {"length": 8}}
    cfg = RunConfig.from_mapping({**raw, "env": {"num_envs": 4}, "collect": {"num_collectors": 6}})
    learner = make_learner(cfg.algo, spec_of(), CPU, seed=1, exchange=Peers())
    measured = counted(learner, rollouts_of(cfg, spec_of(), num_envs=4 * 3))
    assert count_work(cfg, spec_of()).update == pytest.approx(measured, rel=1e-9)
    assert count_work(cfg, spec_of(), num_hosts=2) == count_work(cfg, spec_of())


@pytest.mark.parametrize("num_envs", [1, 5])
@pytest.mark.parametrize(
    ("cfg", "spec"),
    [
        (replay_run("sac"), spec_of()),
        (replay_run("td3", normalize_obs=True), spec_of(400)),
        (rollout_run("appo"), spec_of()),
        (rollout_run("appo", hidden_dims=[8]), spec_of(num_actions=5)),
        (rollout_run("hora", stage="teach"), hora_spec()),
        (rollout_run("hora", stage="adapt"), hora_spec(29)),
        (rollout_run("hora", stage="adapt"), hora_spec(30, num_actions=5)),
    ],
    ids=["sac", "td3", "appo", "appo-discrete", "teach", "adapt", "adapt-discrete"],
)
def test_a_decision_is_counted_per_environment(cfg: RunConfig, spec: SpaceSpec, num_envs: int) -> None:
    assert count_work(cfg, spec).decision == counted_inference(cfg, spec, num_envs)


@pytest.mark.parametrize(
    ("obs_dim", "action_dim", "width", "missed_by"),
    [(17, 6, 256, -0.420), (27, 8, 256, -0.414), (348, 17, 256, -0.313), (98, 29, 512, -0.402)],
)
def test_three_forwards_of_all_parameters_would_miss_by_a_third(
    obs_dim: int, action_dim: int, width: int, missed_by: float
) -> None:
    """ColossalAI's rule: (N_actor + N_critic) * B * 2 * 3. What it misses by was worked out by hand for these sizes."""
    cfg, spec = replay_run("sac", hidden_dims=[width, width], batch_size=4), spec_of(obs_dim, action_dim)
    tensors = make_learner(cfg.algo, spec, CPU, seed=1).state().tensors
    sizes = {name: math.prod(tensor.shape) for name, tensor in tensors.items()}
    num_parameters = sum(size for name, size in sizes.items() if name.startswith(("policy.actor.", "critic.")))
    rule = num_parameters * cfg.algo.batch_size * 2 * 3
    assert rule / counted_update(cfg, spec) - 1 == pytest.approx(missed_by, abs=0.005)
    assert rule / count_work(cfg, spec).update - 1 < -0.1


def test_an_update_is_what_a_pencil_says() -> None:
    """TD3 of 3 observations and 1 action, one hidden layer of 5, one row, every second update one of the actor."""
    cfg = replay_run("td3", batch_size=1, hidden_dims=[5], policy_delay=2)
    pi, q = 2 * 3 * 5 + 2 * 5 * 1, 2 * 4 * 5 + 2 * 5 * 1  # forward
    target, critics = pi + 2 * q, 2 * (q + q + 2 * 5 * 1)
    actor = pi + pi + 2 * 5 * 1 + q + 2 * 1 * 5 + 2 * 5 * 1  # the critic is differentiated by the action alone
    assert count_work(cfg, spec_of(3, 1))[:2] == (target + critics + actor / 2, pi)


@pytest.mark.parametrize(
    ("cfg", "spec"),
    [
        (replay_run("sac"), spec_of()),
        (replay_run("td3", policy_delay=3), spec_of(400)),
        (rollout_run("appo"), spec_of()),
        (rollout_run("hora", stage="teach"), hora_spec()),
        (rollout_run("hora", stage="adapt"), hora_spec(29)),
    ],
    ids=["sac", "td3", "appo", "teach", "adapt"],
)
def test_the_products_of_an_update_are_all_its_work(cfg: RunConfig, spec: SpaceSpec) -> None:
    update, _, products = count_work(cfg, spec)
    assert sum(product.per_update * product.flops for product in products) == pytest.approx(update)
    assert len({product[:4] for product in products}) == len(products)


def test_products_are_told_apart_by_size_and_direction() -> None:
    """As above, 7 rows: both critics learn, the actor past the first one, every second update."""
    products = count_work(replay_run("td3", batch_size=7, hidden_dims=[5], policy_delay=2), spec_of(3, 1)).products
    assert {product[:4]: product.per_update for product in products} == {
        (Direction.FORWARD, 7, 3, 5): 1.5, (Direction.FORWARD, 7, 4, 5): 4.5, (Direction.FORWARD, 7, 5, 1): 6.0,
        (Direction.WEIGHTS, 7, 3, 5): 0.5, (Direction.WEIGHTS, 7, 4, 5): 2.0, (Direction.WEIGHTS, 7, 5, 1): 2.5,
        (Direction.INPUTS, 7, 1, 5): 0.5, (Direction.INPUTS, 7, 5, 1): 3.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", REPLAY_ALGOS)
@pytest.mark.parametrize("hidden_dims", [[24, 16], [9, 24, 7, 3], [5, 30, 2, 1]], ids=str)
def test_products_of_rounded_factors_are_those_of_exact_ones(name: str, hidden_dims: list[int]) -> None:
    exact, rounded = (
        count_work(replay_run(name, hidden_dims=hidden_dims, precision=precision), spec_of()).products
        for precision in ("fp32", "bf16")
    )
    between = {*zip(hidden_dims[:-1], hidden_dims[1:], strict=True)}
    assert {(one.inputs, one.outputs) for one in rounded if one.is_rounded} == between
    assert sorted(one._replace(is_rounded=False) for one in rounded) == sorted(exact)
    assert not any(one.is_rounded for one in exact)


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("name", [*REPLAY_ALGOS, "appo"])
def test_products_by_onednn_are_those_by_the_blas(name: str) -> None:
    cfg = (rollout_run if name == "appo" else replay_run)(name, hidden_dims=[130, 128])
    blas, onednn = (
        count_work(replace(cfg, algo=replace(cfg.algo, products=library)), spec_of()) for library in ("blas", "onednn")
    )
    assert {(one.inputs, one.outputs) for one in onednn.products if one.is_onednn} == {(130, 128)}
    assert not any(one.is_onednn for one in blas.products)
    assert sorted(one._replace(is_onednn=False) for one in onednn.products) == sorted(blas.products)
    assert onednn.update == blas.update


def test_counting_never_imports_the_compiler_of_torch() -> None:
    """Its import takes 2 s, more than everything else before the first update."""
    done = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("cfg", [replay_run("sac"), rollout_run("appo")], ids=["sac", "appo"])
def test_counting_draws_no_random_number(cfg: RunConfig) -> None:
    before = torch.get_rng_state()
    count_work(cfg, spec_of())
    assert torch.equal(before, torch.get_rng_state())
