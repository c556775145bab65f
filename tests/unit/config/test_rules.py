"""Combinations that cannot run are refused with the key to change."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Any

import pytest

from offpolicy.config.parsing import flatten, merge, nested
from offpolicy.config.rules import unread_options
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError

TWO_RANKS = {"name": "multi_gpu", "world_size": 2}


def problems(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(raw)
    return caught.value.problems


@pytest.mark.parametrize("section", ["eval", "collect"])
@pytest.mark.parametrize("hook", ["", "module", "module:", ":function", "a b:c", "module:function()"])
def test_a_hook_is_a_module_and_a_function(section: str, hook: str) -> None:
    (problem,) = problems({section: {"hook": hook}})
    assert problem == f"{section}.hook: got {hook!r}, allowed module:function, such as hooks:draw, or null"


@pytest.mark.parametrize(
    ("raw", "first", "because"),
    [
        (
            {"total_timesteps": 1100, "algo": {"utd": 0.001}},
            2000,
            "algo.learning_starts = 1000 and 1",
        ),
        ({"total_timesteps": 1048, "algo": {"utd": 1 / 49}}, 1049, "and 1 / algo.utd = 49"),
        ({"algo": {"utd": 5e-5}}, 21_000, "and 1 / algo.utd = 20000"),
        (
            {"total_timesteps": 10_000, "algo": {"n_step": 5}, "env.num_envs": 256, "collect.num_collectors": 8},
            10_241,
            "algo.n_step * env.num_envs * collect.num_collectors = 10240 and 1 / algo.utd = 1",
        ),
    ],
)
def test_a_run_that_ends_before_its_first_update_is_refused(raw: dict[str, Any], first: int, because: str) -> None:
    """It would complete, with networks that have learnt nothing."""
    raw = nested(raw)
    (problem,) = problems(raw)
    assert problem.startswith(f"total_timesteps: got {raw.get('total_timesteps', 20_000)}, allowed at least {first}, ")
    assert because in problem
    RunConfig.from_mapping({**raw, "total_timesteps": first})


@pytest.mark.parametrize("key", ["run_dir", "teacher", "init_from", "replay.demos"])
def test_a_path_with_a_name_that_is_too_long_is_refused(key: str) -> None:
    found = problems(nested({key: f"runs/{256 * 'x'}/y"}))
    assert any(problem.startswith(f"{key}: got a name of 256 bytes, ") for problem in found)


@pytest.mark.parametrize("key", ["run_dir", "teacher", "init_from", "replay.demos"])
def test_an_empty_path_is_refused(key: str) -> None:
    """`run_dir=$OUT` with no OUT was taken for the default directory, and for one that somebody had named."""
    assert problems(nested({key: ""})) == (f"{key}: got '', allowed a path or null; is a variable of the shell unset?",)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_a_known_device_is_accepted(device: str) -> None:
    assert RunConfig.from_mapping({"device": device}).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:0:1", "cpu:1", "auto:0", "cuda:²", "", "CUDA"])
def test_an_unknown_device_is_refused(device: str) -> None:
    assert problems({"device": device}) == (f"device: got {device!r}, allowed auto, cpu, cuda or cuda:<index>",)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"algo": {"learning_starts": 20_000}}, "algo.learning_starts"),
        ({"replay": {"capacity": 999}}, "replay.capacity"),
        ({"algo": {"batch_size": 5000}, "replay": {"capacity": 4999}}, "replay.capacity"),
        ({"env": {"num_envs": 600}, "replay": {"capacity": 1199}}, "replay.capacity"),
        ({"runner": {"world_size": 2}}, "runner.world_size"),
        ({"runner": {"name": "multi_gpu", "world_size": 3}}, "algo.batch_size"),
        ({"runner": {"name": "multi_gpu", "backend": "nccl"}, "device": "cpu"}, "runner.backend"),
        ({"runner": {"name": "multi_gpu", "backend": "nccl", "world_size": 2}, "device": "cuda:0"}, "runner.backend"),
        ({"runner": {"name": "double_buffer"}, "replay": {"source": "resident"}}, "replay.source"),
        ({"collect": {"num_collectors": 300}, "replay": {"capacity": 2000}}, "collect.num_collectors"),
        (
            {"collect": {"num_collectors": 200}, "env": {"num_envs": 10}, "replay": {"capacity": 3000}},
            "replay.capacity",
        ),
        ({"env": {"id": ""}}, "env.id"),
        (
            {
                "algo": {"name": "appo", "actor_input": "obs", "network": {"name": "fourier"}},
                "runner": {"name": "appo"},
            },
            "algo.network.name",
        ),
        ({"algo": {"precision": "bf16"}, "device": "cpu"}, "algo.precision"),
        ({"algo": {"kernels": "fast", "activation": "silu"}}, "algo.kernels"),
        ({"algo": {"kernels": "fast", "critic_layer_norm": True}}, "algo.kernels"),
        ({"algo": {"kernels": "fast"}, "device": "cuda"}, "algo.kernels"),
        ({"algo": {"compile": "graph"}, "device": "cpu"}, "algo.compile"),
        ({"algo": {"compile": "graph"}, "runner": TWO_RANKS}, "algo.compile"),
    ],
)
def test_an_impossible_combination_is_refused(raw: dict[str, Any], key: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(f"{key}: got ")


APPO = {"algo": {"name": "appo"}, "runner": {"name": "appo"}, "rollout": {"length": 8}, "env": {"num_envs": 4}}


def appo(**sections: Any) -> dict[str, Any]:
    return merge(APPO, sections)


def adapting(**sections: Any) -> dict[str, Any]:
    return merge(appo(algo={"name": "hora", "stage": "adapt"}, teacher="runs/teacher"), sections)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            {"algo": {"clip": 0.3}},
            "algo.clip: got 0.3, allowed nothing with algo=sac: it is for appo, hora stage=teach",
        ),
        (
            {"algo": {"name": "td3", "auto_alpha": False}},
            "algo.auto_alpha: got False, allowed nothing with algo=td3: it is for sac, flashsac",
        ),
        ({"algo": {"target_noise": 0.1}}, "algo.target_noise: got 0.1, allowed nothing with algo=sac: it is for td3"),
        (appo(algo={"tau": 0.01}), "algo.tau: got 0.01, allowed nothing with algo=appo: it is for sac, td3, flashsac"),
        ({"rollout": {"length": 8}}, "rollout.length: got 8, allowed nothing with algo=sac: it is for appo, hora"),
        (
            appo(replay={"capacity": 5000}),
            "replay.capacity: got 5000, allowed nothing with algo=appo: it is for sac, td3, flashsac",
        ),
        (
            appo(replay={"demos": "a.npz"}),
            "replay.demos: got 'a.npz', allowed nothing with algo=appo: it is for sac, td3, flashsac",
        ),
        (appo(algo={"utd": 2}), "algo.utd: got 2.0, allowed nothing with algo=appo: it is for sac, td3, flashsac"),
        (appo(algo={"latent_dim": 4}), "algo.latent_dim: got 4, allowed nothing with algo=appo: it is for hora"),
        (
            adapting(algo={"clip": 0.3}),
            "algo.clip: got 0.3, allowed nothing with algo=hora stage=adapt: it is for appo, hora stage=teach",
        ),
        (
            adapting(algo={"lr_schedule": "kl_adaptive"}),
            "algo.lr_schedule: got kl_adaptive, allowed constant or linear with stage=adapt: it has no KL",
        ),
        (
            adapting(teacher=None),
            "teacher: got null, allowed a run directory of algo=hora stage=teach, to begin with",
        ),
        (adapting(teacher=""), "teacher: got '', allowed a path or null; is a variable of the shell unset?"),
        (appo(teacher="runs/a"), "teacher: got 'runs/a', allowed nothing without algo=hora stage=adapt"),
    ],
)
def test_an_option_of_another_algorithm_is_refused_by_name(raw: dict[str, Any], problem: str) -> None:
    assert problems(raw) == (problem,)


def test_an_option_of_another_algorithm_may_stand_at_its_default() -> None:
    assert RunConfig.from_mapping(appo(algo={"tau": 0.005, "target_entropy": None})).algo.tau == 0.005


@pytest.mark.parametrize(
    ("sections", "start"),
    [
        (
            {"algo": {"num_minibatches": 5}},
            "algo.num_minibatches: got 5, allowed a divisor of the 32 rows of a batch (rollout.length=8 x",
        ),
        (
            {"algo": {"num_minibatches": 64}, "collect": {"num_collectors": 3}},
            "algo.num_minibatches: got 64, allowed a divisor of the 96 rows",
        ),
        (
            {"collect": {"num_collectors": 3}, "runner": {"world_size": 2}},
            "collect.num_collectors: got 3, allowed a multiple of runner.world_size=2",
        ),
        ({"total_timesteps": 31}, "total_timesteps: got 31, allowed at least 32, one batch of rollouts"),
        (
            {"total_timesteps": 127, "collect": {"num_collectors": 4}, "runner": {"world_size": 2}},
            "total_timesteps: got 127, allowed at least 128",
        ),
        ({"runner": {"name": "single_gpu"}}, "runner: got single_gpu, allowed appo with algo=appo"),
        ({"runner": {"name": "multi_gpu", "world_size": 1}}, "runner: got multi_gpu, allowed appo with algo=appo"),
        (
            {"algo": {"name": "sac"}, "rollout": {"length": 128}},
            "runner: got appo, allowed single_gpu, double_buffer or multi_gpu with algo=sac",
        ),
    ],
)
def test_rollouts_that_cannot_be_learnt_from_are_refused(sections: dict[str, Any], start: str) -> None:
    (problem,) = problems(appo(**sections))
    assert problem.startswith(start)


@pytest.mark.parametrize(
    ("sections", "advice"),
    [
        # 7 steps of 4 environments fit into 30; 6 are the most of which 3 minibatches have equally many rows
        ({"total_timesteps": 30, "algo": {"num_minibatches": 3}, "rollout": {"length": 9}}, [30, 6]),
        ({"total_timesteps": 31}, [31, 6]),  # 8 minibatches
        ({"total_timesteps": 7, "algo": {"num_minibatches": 32}}, [32]),
    ],
)
def test_the_advice_for_rollouts_that_are_too_long_is_accepted(sections: dict[str, Any], advice: list[int]) -> None:
    (problem,) = problems(appo(**sections))
    words = problem.partition("; write ")[2].split()
    values = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
    assert list(values.values()) == advice
    RunConfig.from_mapping(merge(appo(**sections), nested(values)))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"replay": {"age_floor": 0.5}}, "replay.age_floor: got 0.5, allowed nothing without replay.age_weighting"),
        ({"replay": {"demo_share": 0.5}}, "replay.demo_share: got 0.5, allowed nothing without replay.demos"),
        (
            {"replay": {"demos": "a.npz", "demo_share": 1.0}},
            "replay.demo_share: got 1.0, allowed a number in (0.0, 1.0)",
        ),
        *(
            (
                {"replay": {"demos": "a.npz", "demo_share": share}, "algo": {"batch_size": 16}},
                f"replay.demo_share: got {share}, allowed a share that is at least one of the 16 rows of a batch of one"
                " rank, and not all of them",
            )
            for share in (0.01, 0.99)
        ),
    ],
)
def test_a_share_of_demonstrations_that_cannot_be_is_refused(raw: dict[str, Any], problem: str) -> None:
    assert problems(raw) == (problem,)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            {"stop": {"patience": 3}, "eval": {"every": 0}},
            "stop.patience: got 3, allowed 0 with eval.every=0: only an evaluation during training stops a run",
        ),
        (
            {"stop": {"reward": 1.5}, "eval": {"episodes": 0}},
            "stop.reward: got 1.5, allowed null with eval.episodes=0: only an evaluation during training stops a run",
        ),
        (
            {"eval": {"video": True, "episodes": 0}},
            "eval.video: got true, allowed false with eval.episodes=0: there is no evaluation to film",
        ),
    ],
)
def test_what_needs_an_evaluation_is_refused_without_one(raw: dict[str, Any], problem: str) -> None:
    assert problems(raw) == (problem,)


def test_a_student_begins_with_its_teacher_and_no_other_run() -> None:
    raw = {"algo": {"name": "hora", "stage": "adapt"}, "runner": {"name": "appo"}, "teacher": "a", "init_from": "b"}
    assert problems(raw) == ("init_from: got 'b', allowed null with stage=adapt: it begins with its teacher",)


@pytest.mark.parametrize(
    ("key", "raw"), [("callbacks", {"callbacks": ["x"]}), ("env.wrappers", {"env": {"wrappers": ["x"]}})]
)
def test_an_entry_of_a_list_names_something_in_a_module(key: str, raw: dict[str, Any]) -> None:
    assert problems(raw) == (f"{key}: got 'x', allowed module:name, such as mine:Squashed",)


def test_wrappers_and_a_batch_are_refused() -> None:
    (problem,) = problems({"env": {"wrappers": ["mine:f"], "vectorization": "mujoco"}})
    assert problem.startswith("env.vectorization: got mujoco, allowed auto, sync or async with env.wrappers")


def test_keys_below_env_kwargs_are_texts() -> None:
    """They were numbers in `eval` and texts in training: two tasks, without a word."""
    kwargs = {"gains": {0: 1.5, "3": 2.0}, "parts": [{"x": {True: 1}}]}
    assert problems({"env": {"kwargs": kwargs}}) == (
        "env.kwargs.gains: got the key 0, allowed texts: env.kwargs.gains.0=..., in a file '0'",
        "env.kwargs.parts[0].x: got the key True, allowed texts: env.kwargs.parts[0].x.True=..., in a file 'True'",
    )


class Gait(StrEnum):
    TROT = "trot"


def test_values_below_env_kwargs_are_those_of_json() -> None:
    """Others were accepted, and the start of the run failed."""
    kwargs = {"a": b"x", "parts": [{"b": {1}}, date(2026, 1, 2)], "gait": Gait.TROT}
    allowed = "allowed numbers, texts, true, false, null, lists and mappings"
    assert problems({"env": {"kwargs": kwargs}}) == (
        f"env.kwargs.a: got b'x' (bytes), {allowed}",
        f"env.kwargs.parts[0].b: got {{1}} (set), {allowed}",
        f"env.kwargs.parts[1]: got datetime.date(2026, 1, 2) (date), {allowed}",
        f"env.kwargs.gait: got <Gait.TROT: 'trot'> (Gait), {allowed}",
    )
    fine = {"a": [1, 2.5, True, None, "x", {"b": (3, 4)}]}
    assert RunConfig.from_mapping({"env": {"kwargs": fine}}).env.kwargs == fine


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            {"algo": {"auto_alpha": False, "alpha_lr": 0.001}},
            "algo.alpha_lr: got 0.001, allowed nothing with algo.auto_alpha=false: the temperature stays at"
            " algo.init_alpha",
        ),
        (
            appo(algo={"target_kl": 7}),
            "algo.target_kl: got 7.0, allowed nothing with algo.lr_schedule=constant: it is for kl_adaptive",
        ),
        (
            appo(algo={"advantage": "gae", "rho_clip": 2}),
            "algo.rho_clip: got 2.0, allowed nothing with algo.advantage=gae: it is for vtrace",
        ),
        (
            {"collect": {"band": 3, "mode": "alternate"}},
            "collect.band: got 3, allowed nothing without collect.mode=free",
        ),
        (
            {"eval": {"every": 1_000, "episodes": 0}},
            "eval.every: got 1000, allowed nothing with eval.episodes=0: there is no evaluation",
        ),
        (
            {"stop": {"reward": 1.5}, "eval": {"every": 20_000}},
            "stop.reward: got 1.5, allowed nothing with eval.every=20000, total_timesteps=20000: no evaluation comes"
            " before the end",
        ),
    ],
)
def test_an_option_that_nothing_would_read_is_refused_where_it_was_given(raw: dict[str, Any], problem: str) -> None:
    cfg = RunConfig.from_mapping(raw)
    assert list(unread_options(cfg, flatten(raw)).values()) == [problem]
    assert unread_options(cfg, []) == {}  # a preset has set it, or another run
