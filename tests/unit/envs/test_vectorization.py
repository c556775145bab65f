"""What `env.vectorization=auto` stands for, and why an environment is in no batch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import ClipReward

from offpolicy.config.sections import EnvConfig
from offpolicy.envs import vectorization
from offpolicy.envs.batched.task import Task
from offpolicy.envs.batched.vector import TaskVector
from offpolicy.envs.vector import NativeVector, make_vector
from offpolicy.envs.vectorization import TASKS, batch_cost, resolve_vectorization, slower_because, why_not_batched
from offpolicy.errors import ConfigError

WRAPPED = "WrappedHopper-v0"


@pytest.fixture
def wrapped() -> Any:
    """Hopper registered with a wrapper."""
    spec = dataclasses.replace(gymnasium.spec("Hopper-v5"), id=WRAPPED)
    spec.additional_wrappers = (ClipReward.wrapper_spec(min_reward=-1.0, max_reward=1.0),)
    gymnasium.registry[WRAPPED] = spec
    yield spec
    del gymnasium.registry[WRAPPED]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"id": "HalfCheetah-v5", "num_envs": 4}, "mujoco"),
        ({"id": "HalfCheetah-v5", "num_envs": 3}, "sync"),
        ({"id": "HalfCheetah-v5", "num_envs": 64, "vectorization": "sync"}, "sync"),
        ({"id": "HalfCheetah-v5", "num_envs": 1, "vectorization": "mujoco"}, "mujoco"),
        ({"id": "HalfCheetah-v5", "num_envs": 4, "wrappers": ("mine:f",)}, "sync"),
        ({"id": "HalfCheetah-v4", "num_envs": 8}, "sync"),
        ({"id": "HumanoidStandup-v5", "num_envs": 8}, "sync"),
        ({"id": "Pendulum-v1", "num_envs": 8}, "sync"),
        ({"id": "CartPole-v1", "num_envs": 8}, "sync"),  # it has a vector environment, which nobody has asked for
        ({"id": "no_such_module:Reach-v0", "num_envs": 8}, "sync"),  # and is not imported
    ],
)
def test_four_or_more_of_gymnasiums_tasks_are_a_batch(env: dict[str, Any], expected: str) -> None:
    assert resolve_vectorization(EnvConfig(**env)).vectorization == expected


def test_every_registered_task_is_one_of_gymnasiums_and_has_its_class() -> None:
    registered = {spec.entry_point for name, spec in gymnasium.registry.items() if name.endswith("-v5")}
    assert set(TASKS) <= registered
    classes: list[Any] = [load_env_creator(path) for path in TASKS.values()]
    assert all(issubclass(cls, Task) for cls in classes)
    assert [cls.__name__ + "Env" for cls in classes] == [name.partition(":")[2] for name in TASKS]


def test_make_vector_takes_the_number_of_environments_it_makes() -> None:
    cfg = EnvConfig(id="Reacher-v5", num_envs=1)
    few, many = make_vector(cfg, 2), make_vector(cfg, 5)
    assert not isinstance(few.stepper, NativeVector)
    assert isinstance(many.stepper, NativeVector)
    assert isinstance(many.stepper.env, TaskVector)
    assert many.can_reset_some


def test_a_registration_with_wrappers_stays_as_it_is(wrapped: EnvSpec) -> None:
    cfg = EnvConfig(id=WRAPPED, num_envs=8)
    why = "WrappedHopper-v0 is registered with wrappers (ClipReward), which a batch does not have"
    assert resolve_vectorization(cfg).vectorization == "sync"
    assert slower_because(resolve_vectorization(cfg)) == why
    with pytest.raises(ConfigError) as caught:
        make_vector(dataclasses.replace(cfg, vectorization="mujoco"))
    assert str(caught.value) == f"env.vectorization: got mujoco, allowed sync or async: {why}"


def test_an_older_mujoco_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorization, "has_batch", lambda: False)
    cfg = resolve_vectorization(EnvConfig(id="Ant-v5", num_envs=8))
    assert cfg.vectorization == "sync"
    assert "has no mujoco.batch; pip install 'mujoco>=3.17'" in (slower_because(cfg) or "")
    with pytest.raises(ConfigError, match=r"^env\.vectorization: got mujoco, allowed sync or async: mujoco [\d.]+ has"):
        make_vector(dataclasses.replace(cfg, vectorization="mujoco"))


def test_no_reason_is_given_where_there_is_nothing_faster() -> None:
    quiet = ({"id": "Ant-v5", "num_envs": 2}, {"id": "Ant-v5", "num_envs": 8}, {"id": "Pendulum-v1", "num_envs": 8})
    assert [slower_because(EnvConfig(vectorization="sync", **env)) for env in quiet] == [None] * 3


def test_an_unknown_environment_is_no_task() -> None:
    assert why_not_batched(gymnasium.spec("Pendulum-v1")) == (
        "Pendulum-v1 has no vector environment, and is none of Gymnasium's MuJoCo v5 tasks"
    )
    with pytest.raises(ConfigError, match="unknown to Gymnasium"):
        resolve_vectorization(EnvConfig(id="NoSuchEnv-v0", num_envs=8))


def test_a_vector_environment_of_the_users_own_is_started_only_where_it_is_asked_for() -> None:
    spec = dataclasses.replace(gymnasium.spec("Hopper-v5"), id="OwnHopper-v0", vector_entry_point="nowhere:Vector")
    gymnasium.registry["OwnHopper-v0"] = spec
    try:
        cfg = resolve_vectorization(EnvConfig(id="OwnHopper-v0", num_envs=8))
        assert cfg.vectorization == "sync"
        assert slower_because(cfg) == (
            "OwnHopper-v0 has a vector environment of its own, which env.vectorization=mujoco starts"
        )
    finally:
        del gymnasium.registry["OwnHopper-v0"]


def test_windows_are_opened_by_sync() -> None:
    cfg = EnvConfig(id="Hopper-v5", num_envs=4, kwargs={"render_mode": "human"})
    assert resolve_vectorization(cfg).vectorization == "sync"
    assert (
        resolve_vectorization(dataclasses.replace(cfg, kwargs={"render_mode": "rgb_array"})).vectorization == "mujoco"
    )
    assert why_not_batched(gymnasium.spec("Hopper-v5"), cfg.kwargs) is not None


def test_without_mujoco_nothing_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        vectorization.importlib.util, "find_spec", lambda name: None if name == "mujoco" else find(name)
    )
    cfg = resolve_vectorization(EnvConfig(id="HalfCheetah-v5", num_envs=8))
    assert cfg.vectorization == "sync"
    assert slower_because(cfg) == "mujoco is not installed"


def test_a_mujoco_that_pip_does_not_know_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(vectorization, "has_batch", lambda: False)
    monkeypatch.setattr(vectorization.importlib.metadata, "version", missing)
    cfg = resolve_vectorization(EnvConfig(id="HalfCheetah-v5", num_envs=8))
    assert slower_because(cfg) == "mujoco has no mujoco.batch; pip install 'mujoco>=3.17'"


def test_a_model_that_a_batch_refuses_is_a_mistake_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("such a model needs something else")

    monkeypatch.setattr("offpolicy.envs.batched.simulations.Batch", refuse)
    with pytest.raises(ConfigError) as caught:
        make_vector(EnvConfig(id="Hopper-v5", num_envs=4, vectorization="mujoco"))
    assert str(caught.value) == (
        "env.vectorization: got mujoco, allowed sync or async: Hopper-v5: such a model needs something else"
    )


def test_the_cost_of_a_batch_falls_with_threads_to_a_floor() -> None:
    assert [batch_cost(n, 64) for n in (1, 2, 1000)] == pytest.approx([1.0, 0.55, 0.1 + 0.9 / 64])


def test_wrappers_are_a_reason_to_step_one_after_another() -> None:
    env = EnvConfig(id="HalfCheetah-v5", num_envs=8, vectorization="sync", wrappers=("mine:f",))
    assert slower_because(env) == "env.wrappers wrap one environment"
