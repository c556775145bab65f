"""The probe: a look at an environment in a short-lived process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs import probe as probe_module
from offpolicy.envs.make import makes_pictures
from offpolicy.envs.probe import check_id, probe
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError, EnvFailure, HangError
from offpolicy.types import SpaceSpec


def toy(name: str, step_timeout_s: float = 20.0, **kwargs: Any) -> EnvConfig:
    return EnvConfig(id=f"offpolicy.envs.toy:{name}", kwargs=kwargs, step_timeout_s=step_timeout_s)


def test_an_unknown_id_is_refused_in_process_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="Closest ids: Pendulum-v1"):
        check_id("Pendlum-v1")


def test_a_known_id_and_a_module_form_pass_in_process() -> None:
    check_id("HalfCheetah-v5")
    check_id("no_such_module:Env-v0")


@pytest.mark.mp
def test_the_spaces_come_back_as_the_vector_gives_them() -> None:
    expected = SpaceSpec(3, 1, (-2.0,), (2.0,), max_episode_steps=50, action_shape=(1,))
    cfg = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 50})
    assert probe(cfg) == replace(expected, draws=True)
    assert make_vector(cfg).spec == expected


@pytest.mark.mp
def test_an_environment_without_render_modes_makes_no_pictures() -> None:
    assert probe(toy("PointMass-v0")).draws is False


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [({"render_modes": ["human", "rgb_array"]}, True), ({"render_modes": ["human"]}, False), ({}, False),
     ({"render_modes": None}, False), (None, False)],
)  # fmt: skip
def test_only_the_render_mode_of_pictures_makes_pictures(metadata: Any, expected: bool) -> None:
    env: Any = SimpleNamespace(metadata=metadata)
    assert makes_pictures(env) is expected


@pytest.mark.mp
def test_dict_keys_come_back_in_their_order() -> None:
    assert probe(toy("DictObs-v0")).obs_keys == ("alpha", "beta/count", "beta/matrix", "zeta")


WriteModule = Callable[[str, str], object]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteModule:
    """`write_module(name, text)`: a module in the working directory, where the probe looks for it."""
    monkeypatch.chdir(tmp_path)
    return lambda name, text: (tmp_path / f"{name}.py").write_text(text)


@pytest.mark.mp
def test_output_of_an_environment_does_not_disturb_the_answer(write_module: WriteModule) -> None:
    write_module(
        "loud_of_test_probe",
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Loud(PendulumEnv):\n"
        "    def __init__(self):\n"
        "        super().__init__(); print('{\"spec\": 1}', flush=True)\n"
        "gymnasium.register('Loud-v0', Loud)\n",
    )
    assert probe(EnvConfig(id="loud_of_test_probe:Loud-v0")).obs_dim == 3


@pytest.mark.mp
@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        (EnvConfig(id="Pendulum-v1", vectorization="mujoco"), "env.vectorization: got mujoco, allowed sync or async"),
        (toy("Counter-v0", terminat_at=3), "did you mean env.kwargs.terminate_at?"),
        (toy("Conter-v0"), "Closest ids: Counter-v0"),
    ],
)
def test_mistakes_of_the_configuration_come_back_as_such(cfg: EnvConfig, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(cfg)
    assert expected in str(caught.value)


@pytest.mark.mp
@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        ("init_raise", "RuntimeError: fails in __init__"),
        ("reset_raise", "RuntimeError: fails in reset"),
        ("step_raise", "ValueError: fails in step"),
        ("wrong_shape", r"expected shape \(2,\) dtype float32, got shape \(3,\)"),
        ("segv", r"(?s)was killed by SIGSEGV.*in _fault"),
    ],
)
def test_failures_of_the_environment_come_back_with_their_text(fail: str, expected: str) -> None:
    with pytest.raises(EnvFailure, match=expected):
        probe(toy("Faulty-v0", fail=fail, at=1))


@pytest.mark.mp
def test_a_hanging_environment_ends_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "OPEN_GRACE_S", 0.5)
    with pytest.raises(HangError, match=r"was not created, reset and stepped once within 0.6 s"):
        probe(toy("Faulty-v0", 0.1, fail="hang", at=1))


@pytest.mark.mp
def test_the_step_has_the_actions_of_a_run(write_module: WriteModule) -> None:
    """It made them in another way: a space of int32 got int32 here, and int64 in the run."""
    write_module(
        "strict_of_test_probe",
        "import gymnasium\n"
        "import numpy as np\n"
        "class Strict(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))\n"
        "    action_space = gymnasium.spaces.MultiDiscrete([2, 3], dtype=np.int32)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(1, np.float32), {}\n"
        "    def step(self, action):\n"
        "        raise ValueError(f'{action.dtype} {action}')\n"
        "gymnasium.register('Strict-v0', Strict)\n",
    )
    cfg = EnvConfig(id="strict_of_test_probe:Strict-v0")
    with pytest.raises(EnvFailure, match=r"ValueError: int32 \[0 0\]"):
        probe(cfg)
    with contextlib.closing(make_vector(cfg)) as vector:
        vector.reset(1)
        with pytest.raises(EnvFailure, match=r"ValueError: int32 \[0 0\]"):
            vector.step(np.zeros((1, 2), np.float32))


@pytest.mark.mp
def test_a_vector_of_its_own_is_stepped_too(write_module: WriteModule) -> None:
    write_module(
        "columns_of_test_probe",
        "import gymnasium\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv\n"
        "class Columns(CartPoleVectorEnv):\n"
        "    def step(self, actions):\n"
        "        obs, reward, *flags, info = super().step(actions)\n"
        "        return obs, reward[:, None], *flags, info\n"
        "gymnasium.register('Columns-v0', CartPoleEnv, vector_entry_point=Columns)\n",
    )
    with pytest.raises(EnvFailure, match=r"1 x .*:Columns-v0: reward has shape \(1, 1\) and type float32, expected"):
        probe(EnvConfig(id="columns_of_test_probe:Columns-v0", vectorization="mujoco"))
