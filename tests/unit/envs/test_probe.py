"""The probe: a look at an environment in a short-lived process."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from offpolicy.config.sections import EnvConfig
from offpolicy.envs import probe as probe_module
from offpolicy.envs.probe import probe
from offpolicy.envs.toy_batch import PointMasses
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError, EnvFailure, HangError
from offpolicy.types import SpaceSpec
from tests.toys import Counter


def toy(name: str, step_timeout_s: float = 20.0, **kwargs: Any) -> EnvConfig:
    return EnvConfig(id=f"tests.toys:{name}", kwargs=kwargs, step_timeout_s=step_timeout_s)


@pytest.mark.mp
def test_the_spaces_come_back_as_the_vector_gives_them() -> None:
    expected = SpaceSpec(3, 1, (-2.0,), (2.0,), max_episode_steps=50, action_shape=(1,))
    cfg = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 50})
    assert probe(cfg).spec == replace(expected, draws=True)
    assert make_vector(cfg).spec == expected


@pytest.mark.mp
def test_a_mistake_of_the_configuration_comes_back_as_such() -> None:
    with pytest.raises(ConfigError, match=r"did you mean env\.kwargs\.terminate_at\?"):
        probe(toy("Counter-v0", terminat_at=3))


@pytest.mark.mp
@pytest.mark.parametrize(
    ("fail", "expected"),
    [("step_raise", "ValueError: fails in step"), ("segv", r"(?s)was killed by SIGSEGV.*in _fault")],
)
def test_failures_of_the_environment_come_back_with_their_text(fail: str, expected: str) -> None:
    with pytest.raises(EnvFailure, match=expected):
        probe(toy("Faulty-v0", fail=fail, at=1))


class Clocked(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observes a clock in seconds since 1970, and what is small or constant beside it."""

    def __init__(self) -> None:
        super().__init__(Counter())

    def observation(self, observation: np.ndarray) -> np.ndarray:
        step = observation[1]
        return np.array([0.5 + 1e-12 * step, 1.7e9 + 0.05 * step, 1.7e9])


@pytest.mark.mp
@pytest.mark.parametrize("name", ["Clocked-v0", "ClockedVector-v0"])
def test_a_number_whose_changes_float32_does_not_hold_is_named(name: str) -> None:
    assert probe(EnvConfig(id=f"{__name__}:{name}")).spec.coarse == ("obs[1]",)


class Exclusive(Counter):
    """Exists once on this machine, or once in a process."""

    def __init__(self, name: str, per_process: bool) -> None:
        super().__init__()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(f"\0{name}-{os.getpid() if per_process else ''}")

    def close(self) -> None:
        self.socket.close()


gymnasium.register("Exclusive-v0", Exclusive)
gymnasium.register("Clocked-v0", Clocked)
gymnasium.register("ClockedVector-v0", vector_entry_point=lambda num_envs: SyncVectorEnv([Clocked] * num_envs))


class ExclusiveBatch(PointMasses):
    """Exists once on this machine, or once in a process."""

    def __init__(self, num_envs: int, name: str, per_process: bool) -> None:
        super().__init__(num_envs)
        self.one = Exclusive(name, per_process)

    def close(self) -> None:
        self.one.close()


@pytest.mark.mp
@pytest.mark.parametrize("env", [{"id": f"{__name__}:Exclusive-v0"}, {"id": "", "batch": f"{__name__}:ExclusiveBatch"}])
@pytest.mark.parametrize("per_process", [False, True])
def test_an_environment_that_can_exist_only_once_is_refused_evaluations_before_the_run(
    env: dict[str, str], per_process: bool
) -> None:
    kwargs = {"name": f"offpolicy-{len(env)}-{os.getpid()}", "per_process": per_process}
    cfg = EnvConfig(**env, kwargs=kwargs)  # type: ignore[arg-type]  # texts
    assert probe(cfg).spec.obs_dim > 2
    expected = contextlib.nullcontext() if per_process else pytest.raises(ConfigError, match=r"write eval\.episodes=0")
    with expected:
        probe(cfg, has_evaluations=True)


@pytest.mark.mp
@pytest.mark.parametrize(("bounds", "expected"), [((-1.0, 1.0), False), ((-3.0, 3.0), True), (None, False)])
def test_bounds_beyond_which_actions_are_clipped_are_found(bounds: Any, expected: bool) -> None:
    batch = EnvConfig(id="", batch="offpolicy.envs.toy_batch:PointMasses", action_bounds=bounds)
    assert probe(batch).spec.saturates == expected


@pytest.mark.mp
def test_a_hanging_environment_ends_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "OPEN_GRACE_S", 0.5)
    with pytest.raises(HangError, match=r"was not created, reset and stepped once within 0.6 s"):
        probe(toy("Faulty-v0", 0.1, fail="hang", at=1))
