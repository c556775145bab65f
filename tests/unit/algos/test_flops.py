"""The work counted from a few rows is what the real learners and policies do, as torch's own counter sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from offpolicy.algos.base_learner import BaseLearner
from torch.utils.flop_counter import FlopCounterMode

from offpolicy.algos.flops import count_work
from offpolicy.algos.registry import make_learner, make_policy
from offpolicy.config.schema import RunConfig
from offpolicy.types import MIN_FRAMES, Batch, Batches, Rollouts, SpaceSpec

CPU = torch.device("cpu")
REPLAY_ALGOS = ("sac", "td3")
NETS = {"hidden_dims": [24, 16]}
LESSON = {**NETS, "epochs": 3, "num_minibatches": 4}
HORA = {**LESSON, "encoder_dims": [12, 9], "latent_dim": 5}
STAGES = ("teach", "adapt")


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


@pytest.mark.parametrize("name", REPLAY_ALGOS)
@pytest.mark.parametrize(("obs_dim", "policy_delay"), [(3, 1), (400, 2)])
def test_updates_from_a_replay_are_counted(name: str, obs_dim: int, policy_delay: int) -> None:
    assert_exact(replay_run(name, policy_delay=policy_delay), spec_of(obs_dim, action_dim=6))


@pytest.mark.parametrize(("obs_dim", "num_actions", "hidden_dims"), [(3, 0, [9, 24, 7]), (400, 5, [5])])
def test_updates_from_rollouts_are_counted(obs_dim: int, num_actions: int, hidden_dims: list[int]) -> None:
    assert_exact(rollout_run(hidden_dims=hidden_dims), spec_of(obs_dim, num_actions=num_actions))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("num_frames", "num_actions"), [(MIN_FRAMES, 5), (30, 0)])
def test_both_stages_of_hora_are_counted(stage: str, num_frames: int, num_actions: int) -> None:
    assert_exact(rollout_run("hora", stage=stage), hora_spec(num_frames, num_actions=num_actions))


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
def test_a_decision_is_counted_per_environment(cfg: RunConfig, spec: SpaceSpec) -> None:
    assert count_work(cfg, spec).decision == counted_inference(cfg, spec, num_envs=5)


def test_an_update_is_what_a_pencil_says() -> None:
    """TD3 of 3 observations and 1 action, one hidden layer of 5, one row, every second update one of the actor."""
    cfg = replay_run("td3", batch_size=1, hidden_dims=[5], policy_delay=2)
    pi, q = 2 * 3 * 5 + 2 * 5 * 1, 2 * 4 * 5 + 2 * 5 * 1  # forward
    target, critics = pi + 2 * q, 2 * (q + q + 2 * 5 * 1)
    actor = pi + pi + 2 * 5 * 1 + q + 2 * 1 * 5 + 2 * 5 * 1  # the critic is differentiated by the action alone
    assert count_work(cfg, spec_of(3, 1))[:2] == (target + critics + actor / 2, pi)


@pytest.mark.parametrize("cfg", [replay_run("sac"), rollout_run("appo")], ids=["sac", "appo"])
def test_counting_draws_no_random_number(cfg: RunConfig) -> None:
    before = torch.get_rng_state()
    count_work(cfg, spec_of())
    assert torch.equal(before, torch.get_rng_state())
