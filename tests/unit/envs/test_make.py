"""Making an environment: the user's mistakes are named with what is allowed, and MuJoCo is quiet."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.envs.registration import EnvSpec

from offpolicy.config.sections import EnvConfig
from offpolicy.envs import make as make_module
from offpolicy.envs.make import MAX_EPISODE_STEPS, make_env, with_time_limit
from offpolicy.errors import ConfigError, EnvFailure


def refusal(env_id: str, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_env(EnvConfig(id=env_id, kwargs=kwargs))
    return str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("Pendlum-v1", "Closest ids: Pendulum-v1"),
        ("halfcheetah-v5", "Closest ids: HalfCheetah-v5"),
        ("Pendulum-v7", "write env.id=Pendulum-v1. Closest ids: Pendulum-v1"),
        ("offpolicy.envs.toy:PointMas-v0", "Closest ids: PointMass-v0"),
        ("no_such_module:Env-v0", "No module named 'no_such_module'; looked in "),
        ("HalfCheetah-v3", "gymnasium-robotics"),
        ("LunarLanderContinuous-v3", "Box2D is not installed"),
    ],
)
def test_an_unknown_or_unavailable_id_is_refused_with_help(env_id: str, expected: str) -> None:
    message = refusal(env_id)
    assert message.startswith(f"env.id: got {env_id!r}")
    assert expected in message


def test_an_unknown_keyword_is_refused_with_the_closest_and_all_allowed() -> None:
    message = refusal("HalfCheetah-v5", reset_noise=0.1)
    assert message.startswith(
        "env.kwargs.reset_noise: HalfCheetah-v5 does not take it; did you mean env.kwargs.reset_noise_scale?"
    )
    assert "frame_skip" in message


@pytest.mark.parametrize("limit", [0, -2, 2.5, "3", True])
def test_an_impossible_time_limit_is_refused(limit: Any) -> None:
    assert "env.kwargs.max_episode_steps: got" in refusal("Pendulum-v1", max_episode_steps=limit)


def test_a_missing_keyword_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(gymnasium.Env[Any, Any]):
        def __init__(self, size: int) -> None:
            self.size = size

    monkeypatch.setitem(gymnasium.registry, "Needy-v0", gymnasium.envs.registration.EnvSpec("Needy-v0", Needy))
    assert refusal("Needy-v0") == "env.kwargs.size: missing, and Needy-v0 needs it"


def test_a_type_error_inside_the_constructor_is_the_environments_own() -> None:
    with pytest.raises(EnvFailure, match=r"(?s)creating HalfCheetah-v5.*TypeError"):
        make_env(EnvConfig(id="HalfCheetah-v5", kwargs={"frame_skip": None}))


class Gathering(gymnasium.Env[Any, Any]):
    """Takes whatever it is given."""

    def __init__(self, **kwargs: Any) -> None:
        self.size = kwargs.pop("size") + 1
        if kwargs:
            raise TypeError(f"Gathering got an unexpected keyword argument {next(iter(kwargs))!r}")


gymnasium.register("GatheringOfTestMake-v0", Gathering)


def test_a_type_error_of_a_constructor_that_takes_any_keyword_blames_none() -> None:
    """A right key was called a wrong one, and the traceback was lost."""
    with pytest.raises(EnvFailure, match=r'(?s)creating Gathering.*TypeError: can only concatenate str \(not "int"\)'):
        make_env(EnvConfig(id="GatheringOfTestMake-v0", kwargs={"size": "two"}))


def test_of_a_constructor_that_takes_any_keyword_only_the_one_that_it_names_is_wrong() -> None:
    message = refusal("GatheringOfTestMake-v0", size=2, sise=3)
    assert message.startswith("env.kwargs.sise: GatheringOfTestMake-v0 does not take it")
    assert "env.kwargs.size:" not in message


def test_a_module_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_env_of_test_make.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=7)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    monkeypatch.setattr(gymnasium.envs.registration, "registry", gymnasium.registry)
    env = make_env(EnvConfig(id="my_env_of_test_make:Mine-v0"))
    gymnasium.registry.pop("Mine-v0")
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7


def test_a_module_that_fails_at_import_shows_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_of_test_make.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvFailure, match=r"(?s)importing broken_of_test_make .*ZeroDivisionError"):
        make_env(EnvConfig(id="broken_of_test_make:Env-v0"))


def test_mujoco_writes_neither_to_stderr_nor_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_env(EnvConfig(id="HalfCheetah-v5"))
    assert os.listdir(tmp_path) == []
    assert capfd.readouterr().err == ""


def test_a_warning_of_mujoco_that_matters_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    make_module._SEEN_WARNINGS.clear()
    with caplog.at_level(logging.WARNING):
        make_module._log_mujoco_warning("compiler attribute 'settotalmass' is deprecated")
        make_module._log_mujoco_warning("Nan, Inf or huge value in QACC at DOF 0. Time = 0.1.")
        make_module._log_mujoco_warning("Nan, Inf or huge value in QACC at DOF 3. Time = 0.2.")
    assert [record.getMessage() for record in caplog.records] == [
        "MuJoCo: Nan, Inf or huge value in QACC at DOF 0. Time = 0.1."
    ]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "expected"),
    [
        ("Pendulum-v1", {}, {}),
        ("Pendulum-v1", {"max_episode_steps": 7}, {"max_episode_steps": 7}),
        ("Pendulum-v1", {"max_episode_steps": None}, {"max_episode_steps": None}),
        ("offpolicy.envs.toy:Counter-v0", {"max_episode_steps": None}, {"max_episode_steps": MAX_EPISODE_STEPS}),
        ("Pendulum-v1", {"max_episode_steps": -1}, {"max_episode_steps": MAX_EPISODE_STEPS}),
        (
            "offpolicy.envs.toy:Counter-v0",
            {"truncate_at": 7},
            {"truncate_at": 7, "max_episode_steps": MAX_EPISODE_STEPS},
        ),
    ],
)
def test_an_environment_without_a_time_limit_gets_one(env_id: str, kwargs: Any, expected: Any) -> None:
    assert with_time_limit(EnvConfig(id=env_id, kwargs=kwargs)).kwargs == expected


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `mine_wrappers` in the working directory."""
    text = (
        "import gymnasium\n"
        "def doubled(env):\n    return gymnasium.wrappers.TransformReward(env, lambda reward: 2 * reward)\n"
        "def added(env):\n    return gymnasium.wrappers.TransformReward(env, lambda reward: reward + 1)\n"
        "def lost(env):\n    return None\n"
        "def broken(env):\n    raise ValueError('no hinge')\n"
        "number = 3\n"
        "def normalized(env):\n    return doubled(gymnasium.wrappers.NormalizeObservation(env))\n"
        "def scaled(env):\n    return gymnasium.wrappers.NormalizeReward(env)\n"
        "def frozen(env):\n    env = gymnasium.wrappers.NormalizeObservation(env)\n"
        "    env.update_running_mean = False\n    return env\n"
    )
    (tmp_path / "mine_wrappers.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def wrapped_reward(*names: str) -> float:
    env = make_env(EnvConfig(wrappers=tuple(f"mine_wrappers:{name}" for name in names)))
    env.reset(seed=3)
    return float(env.step(np.zeros(1, np.float32))[1])


@pytest.mark.usefixtures("mine")
def test_the_first_wrapper_is_the_innermost() -> None:
    plain = wrapped_reward()
    assert wrapped_reward("doubled", "added") == pytest.approx(2 * plain + 1)
    assert wrapped_reward("added", "doubled") == pytest.approx(2 * (plain + 1))


@pytest.mark.usefixtures("mine")
def test_statistics_that_stay_as_they_are_may_normalise() -> None:
    assert wrapped_reward("frozen", "doubled") == 2 * wrapped_reward()


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere_at_all:f", "No module named 'nowhere_at_all'; looked in"),
        ("mine_wrappers:halved", "mine_wrappers holds nothing of that name"),
        ("mine_wrappers:number", "mine_wrappers holds a int of that name"),
        ("mine_wrappers:lost", "returned a NoneType, allowed a gymnasium.Env around the one given"),
        ("mine_wrappers:normalized", "a NormalizeObservation that goes on learning: its statistics are of one"),
        ("mine_wrappers:normalized", "not saved with the policy; write algo.normalize_obs=true, or set its update_run"),
        ("mine_wrappers:scaled", "not saved with the policy; scale rewards by a number, TransformReward, or"),
    ],
)
def test_a_wrapper_that_cannot_be_used_is_refused(target: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env(EnvConfig(wrappers=(target,)))
    assert str(caught.value).startswith("env.wrappers: ")
    assert problem in str(caught.value)


def normalized_pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.NormalizeReward(gymnasium.make("Pendulum-v1"))


@pytest.mark.parametrize("is_listed", [True, False])
def test_statistics_that_a_registration_adds_are_refused_too(monkeypatch: pytest.MonkeyPatch, is_listed: bool) -> None:
    added = gymnasium.wrappers.NormalizeReward.wrapper_spec(gamma=0.9, epsilon=1e-8)
    spec = (
        EnvSpec("Scaled-v0", "gymnasium.envs.classic_control.pendulum:PendulumEnv", additional_wrappers=(added,))
        if is_listed
        else EnvSpec("Scaled-v0", normalized_pendulum)
    )
    monkeypatch.setitem(gymnasium.registry, "Scaled-v0", spec)
    with pytest.raises(ConfigError, match="env.id: the registration of Scaled-v0 adds a NormalizeReward that goes on"):
        make_env(EnvConfig(id="Scaled-v0"))


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("target", ["mine_wrappers:lost", "mine_wrappers:broken"])
def test_the_environment_is_closed_where_a_wrapper_fails(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    closed: list[object] = []
    monkeypatch.setattr(PendulumEnv, "close", lambda self: closed.append(self))
    with pytest.raises((ConfigError, EnvFailure)):
        make_env(EnvConfig(wrappers=("mine_wrappers:doubled", target)))
    assert len(closed) == 1


@pytest.mark.usefixtures("mine")
def test_what_a_wrapper_raises_comes_with_its_traceback() -> None:
    with pytest.raises(EnvFailure, match=r"(?s)mine_wrappers:broken failed.*no hinge"):
        make_env(EnvConfig(wrappers=("mine_wrappers:broken",)))
