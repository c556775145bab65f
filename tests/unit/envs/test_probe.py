"""The probe: a look at an environment in a short-lived process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs import probe as probe_module
from offpolicy.envs.probe import probe
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError, EnvFailure, HangError
from offpolicy.types import SpaceSpec


def toy(name: str, step_timeout_s: float = 20.0, **kwargs: Any) -> EnvConfig:
    return EnvConfig(id=f"tests.toys:{name}", kwargs=kwargs, step_timeout_s=step_timeout_s)


@pytest.mark.mp
def test_the_spaces_come_back_as_the_vector_gives_them() -> None:
    expected = SpaceSpec(3, 1, (-2.0,), (2.0,), max_episode_steps=50, action_shape=(1,))
    cfg = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 50})
    assert probe(cfg) == replace(expected, draws=True)
    assert make_vector(cfg).spec == expected


@pytest.mark.mp
def test_a_mistake_of_the_configuration_comes_back_as_such() -> None:
    with pytest.raises(ConfigError, match=r"did you mean env\.kwargs\.terminate_at\?"):
        probe(toy("Counter-v0", terminat_at=3))


@pytest.mark.mp
@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        ("step_raise", "ValueError: fails in step"),
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
