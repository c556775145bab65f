"""Combinations that cannot run are refused with the key to change; options that nothing reads are named."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Any

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.config.parsing import merge, nested
from offpolicy.config.schema import RunConfig, unread_options
from offpolicy.errors import ConfigError

TWO_RANKS = {"name": "multi_gpu", "world_size": 2}
APPO = {"algo": {"name": "appo"}, "runner": {"name": "appo"}, "rollout": {"length": 8}, "env": {"num_envs": 4}}


def appo(**sections: Any) -> dict[str, Any]:
    return merge(APPO, sections)


def adapting(**sections: Any) -> dict[str, Any]:
    return merge(appo(algo={"name": "hora", "stage": "adapt"}, teacher="runs/teacher"), sections)


def problems(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(raw)
    return caught.value.problems


def test_what_lies_in_a_module_is_named_with_it() -> None:
    for key in ("callbacks", "env.wrappers"):
        for name in ("", "module", "module:", ":function", "a b:c", "module:function()"):
            (problem,) = problems(nested({key: [name]}))
            assert problem == f"{key}: got {name!r}, allowed module:name, such as mine:Squashed"


def test_a_run_that_ends_before_its_first_update_is_refused() -> None:
    """It would complete, with networks that have learnt nothing."""
    for raw, first in (
        ({"total_timesteps": 1000}, 1001),
        ({"total_timesteps": 1100, "algo": {"utd": 0.001}}, 2000),
        ({"total_timesteps": 1048, "algo": {"utd": 1 / 49}}, 1049),
        (
            nested({"total_timesteps": 10_000, "algo.n_step": 5, "env.num_envs": 256, "collect.num_collectors": 8}),
            10_241,
        ),
        (appo(total_timesteps=31), 32),
        (appo(total_timesteps=127, collect={"num_collectors": 4}, runner={"world_size": 2}), 128),
    ):
        (problem,) = problems(raw)
        assert problem.startswith(f"total_timesteps: got {raw['total_timesteps']}, allowed at least {first}, ")
        RunConfig.from_mapping({**raw, "total_timesteps": first})


def test_an_empty_path_or_one_of_a_home_directory_is_refused() -> None:
    """`run_dir=$OUT` with no OUT was taken for the default directory, and `~` for a directory of that name."""
    for key in ("run_dir", "init_from", "replay.demos"):
        for path in ("", "~/runs"):
            (problem,) = problems(nested({key: path}))
            assert problem.startswith(f"{key}: got {path!r}, allowed a whole path or null; ")


def test_the_names_of_devices() -> None:
    for device in ("auto", "cpu", "cuda", "cuda:0", "cuda:12"):
        assert RunConfig.from_mapping({"device": device}).device == device
    for device in ("gpu", "cuda:", "cuda:x", "cuda:0:1", "cpu:1", "auto:0", "cuda:²", "", "CUDA"):
        assert problems({"device": device}) == (f"device: got {device!r}, allowed auto, cpu, cuda or cuda:<index>",)


def test_an_impossible_combination_is_refused_with_the_key_to_change() -> None:
    for raw, key in (
        ({"replay": {"capacity": 999}}, "replay.capacity"),
        ({"algo": {"batch_size": 5000}, "replay": {"capacity": 4999}}, "replay.capacity"),
        ({"env": {"num_envs": 600}, "replay": {"capacity": 1199}}, "replay.capacity"),
        ({"runner": {"world_size": 2}}, "runner.world_size"),
        ({"runner": {"name": "multi_gpu", "world_size": 3}}, "algo.batch_size"),
        ({"runner": {"name": "multi_gpu", "backend": "nccl"}, "device": "cpu"}, "runner.backend"),
        ({"runner": {"name": "multi_gpu", "backend": "nccl", "world_size": 2}, "device": "cuda:0"}, "runner.backend"),
        ({"runner": {"name": "double_buffer"}, "replay": {"source": "resident"}}, "replay.source"),
        ({"runner": {"name": "multi_gpu"}, "collect": {"mode": "auto"}}, "collect.mode"),
        ({"collect": {"num_collectors": 300}, "replay": {"capacity": 2000}}, "collect.num_collectors"),
        ({"env": {"id": ""}}, "env.id"),
        ({"env": {"wrappers": ["mine:f"], "vectorization": "mujoco"}}, "env.vectorization"),
        (appo(algo={"actor_input": "obs", "network": {"name": "fourier"}}), "algo.network.name"),
        ({"algo": {"name": "flashsac", "n_step": 3}}, "algo.n_step"),
        ({"algo": {"precision": "bf16"}, "device": "cpu"}, "algo.precision"),
        ({"algo": {"kernels": "fast", "activation": "silu"}}, "algo.kernels"),
        ({"algo": {"kernels": "fast", "critic_layer_norm": True}}, "algo.kernels"),
        ({"algo": {"kernels": "fast"}, "device": "cuda"}, "algo.kernels"),
        ({"algo": {"compile": "graph"}, "device": "cpu"}, "algo.compile"),
        ({"algo": {"compile": "graph"}, "runner": TWO_RANKS}, "algo.compile"),
        ({"replay": {"demos": "a.npz", "demo_share": 0.01}, "algo": {"batch_size": 16}}, "replay.demo_share"),
        ({"replay": {"demos": "a.npz", "demo_share": 0.99}, "algo": {"batch_size": 16}}, "replay.demo_share"),
        (appo(algo={"num_minibatches": 5}), "algo.num_minibatches"),
        (appo(algo={"num_minibatches": 64}, collect={"num_collectors": 3}), "algo.num_minibatches"),
        (appo(algo={"trace_clip": 2}), "algo.trace_clip"),
        (appo(collect={"remote_hosts": 1}, rollout={"when_full": "drop"}), "rollout.when_full"),
        ({"runner": {"ray": "auto"}, "collect": {"remote_hosts": 1}}, "runner.ray"),
        ({"runner": {"ray": "ray://head:10001"}, "collect": {"remote_hosts": 1}}, "runner.ray"),
        (appo(collect={"num_collectors": 3}, runner={"world_size": 2}), "collect.num_collectors"),
        (appo(runner={"name": "multi_gpu"}), "runner"),
        ({"runner": {"name": "appo"}}, "runner"),
        (adapting(teacher=None), "teacher"),
        (adapting(algo={"lr_schedule": "kl_adaptive"}), "algo.lr_schedule"),
        (adapting(init_from="b"), "init_from"),
    ):
        (problem,) = problems(raw)
        assert problem.startswith(f"{key}: got "), raw


class Gait(StrEnum):
    TROT = "trot"


def test_keys_and_values_below_env_kwargs_are_those_of_json() -> None:
    """Others were texts in training and not in `eval`, or the start of the run failed."""
    for value in (b"x", [{"b": {1}}], date(2026, 1, 2), Gait.TROT, {0: 1.5}, [{"x": {True: 1}}]):
        (problem,) = problems({"env": {"kwargs": {"a": value}}})
        assert problem.startswith(f"env.kwargs.a: got {value!r}, allowed what JSON has")
    fine = {"a": [1, 2.5, True, None, "x", {"b": (3, 4)}]}
    assert RunConfig.from_mapping({"env": {"kwargs": fine}}).env.kwargs == fine


def test_an_option_that_nothing_reads_is_named_with_what_it_needs() -> None:
    for raw, key, needs in (
        ({"algo": {"clip": 0.3}}, "algo.clip", "algo=appo,hora"),
        ({"algo": {"name": "td3", "auto_alpha": False}}, "algo.auto_alpha", "algo=sac,flashsac"),
        ({"rollout": {"length": 8}}, "rollout.length", "algo=appo,hora"),
        ({"teacher": "runs/a"}, "teacher", "algo=hora algo.stage=adapt"),
        ({"algo": {"auto_alpha": False, "alpha_lr": 0.001}}, "algo.alpha_lr", "algo.auto_alpha=true"),
        ({"collect": {"band": 3, "mode": "alternate"}}, "collect.band", "collect.mode=free"),
        ({"replay": {"slots": 3, "source": "direct"}}, "replay.slots", "replay.source=auto,prefetch"),
        ({"replay": {"demo_share": 0.5}}, "replay.demo_share", "replay.demos!=null"),
        ({"eval": {"video": True, "episodes": 0}}, "eval.video", "eval.episodes!=0"),
        ({"stop": {"patience": 3}, "eval": {"every": 0}}, "stop.patience", "eval.every!=0"),
        ({"stop": {"reward": 1.5}, "eval": {"every": 20_000}}, "stop.reward", "eval.every<total_timesteps"),
        ({"timing": {"trace": True, "enabled": False}}, "timing.trace", "timing.enabled=true"),
        ({"sinks": {"mine": {"path": "x"}}}, "sinks.mine", "log.sinks=[mine]"),
        (appo(algo={"tau": 0.01}), "algo.tau", "algo=sac,td3,flashsac"),
        (appo(replay={"capacity": 5000}), "replay.capacity", "algo=sac,td3,flashsac"),
        (appo(algo={"target_kl": 7}), "algo.target_kl", "algo.lr_schedule=kl_adaptive"),
        (appo(algo={"advantage": "gae", "rho_clip": 2}), "algo.rho_clip", "algo.advantage=vtrace"),
        (adapting(algo={"clip": 0.3}), "algo.clip", "algo.stage=teach"),
    ):
        assert unread_options(RunConfig.from_mapping(raw)) == {key: needs}, raw


def test_an_option_at_its_default_needs_no_reader() -> None:
    assert unread_options(RunConfig.from_mapping(appo(algo={"tau": 0.005, "target_entropy": None}))) == {}
    assert unread_options(load_config(["eval.episodes=0", "timing.enabled=false", "collect.mode=alternate"])) == {}
