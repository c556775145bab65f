"""Making an environment: the user's mistakes are named with what is allowed, and MuJoCo is quiet."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
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


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is not None, reason="Meta-World is installed")
def test_an_id_of_a_package_that_is_not_there_says_what_to_install_and_to_write() -> None:
    assert refusal("Meta-World/MT1") == (
        "env.id: got 'Meta-World/MT1', it is of another package; type pip install 'metaworld',"
        " and write env.id=metaworld:Meta-World/MT1"
    )


def test_an_unknown_keyword_is_refused_with_the_closest_and_all_allowed() -> None:
    message = refusal("HalfCheetah-v5", reset_noise=0.1)
    assert message.startswith(
        "env.kwargs.reset_noise: HalfCheetah-v5 does not take it; did you mean env.kwargs.reset_noise_scale?"
    )
    assert "frame_skip" in message


def test_a_missing_keyword_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(gymnasium.Env[Any, Any]):
        def __init__(self, size: int) -> None:
            self.size = size

    monkeypatch.setitem(gymnasium.registry, "Needy-v0", gymnasium.envs.registration.EnvSpec("Needy-v0", Needy))
    assert refusal("Needy-v0") == "env.kwargs.size: missing, and Needy-v0 needs it"


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


def test_an_environment_without_a_time_limit_gets_one() -> None:
    cases: list[tuple[str, Any, Any]] = [
        ("Pendulum-v1", None, None),  # that of the registration
        ("Pendulum-v1", 7, 7),
        ("Pendulum-v1", -1, MAX_EPISODE_STEPS),
        ("tests.toys:Counter-v0", None, MAX_EPISODE_STEPS),
    ]
    for env_id, given, expected in cases:
        limited = with_time_limit(EnvConfig(id=env_id, kwargs={"max_episode_steps": given}))
        assert limited.kwargs == {"max_episode_steps": expected}


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
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere_at_all:f", "No module named 'nowhere_at_all'; looked in"),
        ("mine_wrappers:halved", "allowed module:function: mine_wrappers has no function 'halved'"),
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


@pytest.mark.usefixtures("mine")
def test_what_a_wrapper_raises_comes_with_its_traceback() -> None:
    with pytest.raises(EnvFailure, match=r"(?s)mine_wrappers:broken failed.*no hinge"):
        make_env(EnvConfig(wrappers=("mine_wrappers:broken",)))


def test_the_hand_names_the_mujoco_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may be installed beside an older one, which other packages want."""
    for name in ("offpolicy.envs.hand.env", "offpolicy.envs.hand.rotation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)
    assert "mujoco.batch is not installed; pip install 'mujoco>=3.17'" in refusal("offpolicy.envs.hand:HandSpin-v0")
