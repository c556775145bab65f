"""Saved and restored environments continue bit for bit; what cannot be saved exactly is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.envs.vector import make_vector
from offpolicy.errors import CheckpointError
from offpolicy.types import StepOutcome

EPISODE = 90  # short enough for an end in every stretch of 200 steps
CONTINUED = 200
ENVIRONMENTS = (
    *("Pendulum-v1", "CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"),
    *("offpolicy.envs.toy:PointMass-v0", "tests.toys:Counter-v0"),
    *("InvertedDoublePendulum-v5", "Pusher-v5", "HalfCheetah-v5", "Humanoid-v5"),
)


def make(env_id: str, num_envs: int = 2, **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id=env_id, kwargs={"max_episode_steps": EPISODE, **kwargs}, num_envs=num_envs))


def actions_of(envs: VectorAdapter, steps: int) -> Any:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (steps, envs.num_envs, envs.spec.action_dim)).astype(np.float32)


def roll(envs: VectorAdapter, actions: Any) -> list[StepOutcome]:
    return [envs.step(action) for action in actions]


def bits(outcomes: list[StepOutcome]) -> list[bytes]:
    return [array.tobytes() for outcome in outcomes for array in outcome[:7]]


def saved(envs: VectorAdapter) -> EnvState:
    """The state as it comes back from a file."""
    state = save_state(envs)
    assert isinstance(state, EnvState), state
    meta = json.loads(json.dumps(state.meta, allow_nan=False))
    return EnvState(
        meta, {name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in state.arrays.items()}
    )


@pytest.mark.promise("exact-resume")
@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_a_restored_environment_continues_bit_for_bit_across_episode_ends(env_id: str) -> None:
    envs = make(env_id)
    actions = actions_of(envs, 37 + CONTINUED)
    envs.reset(5)
    roll(envs, actions[:37])
    state = saved(envs)
    after = roll(envs, actions[37:])
    fresh = make(env_id)
    fresh.reset(1)
    restore_state(fresh, state)
    assert bits(roll(fresh, actions[37:])) == bits(after)
    assert any(outcome.is_valid.sum() < 2 for outcome in after), "no episode ended"


def test_the_success_of_a_running_episode_is_restored() -> None:
    kwargs = {"truncate_at": 4, "success_key": "success", "success_at": 2}
    cfg = EnvConfig(id="tests.toys:Counter-v0", kwargs=kwargs, success="any")
    envs, fresh = make_vector(cfg), make_vector(cfg)
    envs.reset(5)
    fresh.reset(1)
    roll(envs, [np.zeros((1, 1), np.float32)] * 8)  # an episode, its reset row, and three steps
    restore_state(fresh, saved(envs))
    assert fresh.step(np.zeros((1, 1), np.float32)).success.tolist() == [1.0]


def test_a_state_of_other_environments_is_refused() -> None:
    envs = make("HalfCheetah-v5")
    envs.reset(1)
    for other, expected in (
        (make("Hopper-v5"), "saved with id 'HalfCheetah-v5', this is 'Hopper-v5'"),
        (make("HalfCheetah-v5", 1), "saved with num_envs 2, this is 1"),
        (make("HalfCheetah-v5", frame_skip=4), "saved with kwargs"),
    ):
        other.reset(1)
        with pytest.raises(CheckpointError, match=expected):
            restore_state(other, saved(envs))


def unowned() -> Any:
    return np.frombuffer(b"12345678")


class Odd(gymnasium.Env[Any, Any]):
    """Keeps plain attributes, and something else where it has that habit."""

    def __init__(self, habit: str = "none") -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.habit, self.reward_of, self.kept = habit, float, None
        row = np.zeros((2, 3))
        odd: dict[str, Any] = {
            "object": object(), "closure": lambda: row, "dtype": np.zeros(1, "O"),
            "strides": row.T, "memory": unowned(), "alias": [row, row[1]], "cycle": (cycle := []),
        }  # fmt: skip
        cycle.append(cycle)
        self.world = odd.get(str(habit))
        if habit == "sampled":
            self.action_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = np.zeros(1, np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        is_first = not hasattr(self, "has_stepped")
        self.has_stepped = True
        self.place += action
        return self.place.copy(), float(is_first), False, False, {}


def make_own(monkeypatch: pytest.MonkeyPatch, kind: type, habit: str = "none") -> VectorAdapter:
    monkeypatch.setitem(gymnasium.registry, "Own-v0", EnvSpec("Own-v0", kind))
    envs = make_vector(EnvConfig(id="Own-v0", kwargs={"habit": habit}))
    envs.reset(1)
    return envs


def test_a_state_that_cannot_be_exact_is_refused_with_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    for habit, reason in (
        ("object", "Odd.world is a builtins.object"),
        ("closure", "Odd.world is a builtins.function"),
        ("dtype", "Odd.world is an array of dtype object and strides (8,)"),
        ("strides", "Odd.world is an array of dtype float64 and strides (8, 24)"),
        ("memory", "Odd.world is a view of a builtins.bytes"),
        ("alias", "Odd.world[1] shares memory with Odd.world[0]"),
        ("cycle", "Odd.world[0] is also Odd.world"),
        ("sampled", "Odd.action_space is a gymnasium.spaces.box.Box"),
    ):
        assert save_state(make_own(monkeypatch, Odd, habit)) == reason


@pytest.mark.parametrize("name", ["reward_of", "observation_space"])
def test_what_the_constructor_makes_differently_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    envs, fresh = make_own(monkeypatch, Odd), make_own(monkeypatch, Odd)
    own: Any = envs
    setattr(own.envs[0].unwrapped, name, {"reward_of": int}.get(name, spaces.Box(-8.0, 9.0, (1,))))
    with pytest.raises(CheckpointError, match=f"Odd.{name} was .*, this is "):
        restore_state(fresh, saved(envs))


NUMBERS = st.integers(-(2**130), 2**130) | st.floats(allow_nan=False) | st.sampled_from([np.float32(0.1), np.int64(3)])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)
KEYS = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=3))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(VALUES)
def test_plain_attributes_come_back_equal(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    envs: Any = make_own(monkeypatch, Odd)
    own = envs.envs[0].unwrapped
    own.kept = value
    state = saved(envs)
    own.kept = "other"
    restore_state(envs, state)
    assert repr(own.kept) == repr(value)


def test_a_generator_continues_and_spawns_as_it_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    envs: Any = make_own(monkeypatch, Odd)
    own = envs.envs[0].unwrapped
    own.kept = np.random.Generator(np.random.MT19937(7))
    own.kept.spawn(1)
    own.kept.integers(9, dtype=np.uint32)
    state = saved(envs)
    wanted = [own.kept.random(5).tolist(), own.kept.spawn(1)[0].random()]
    restore_state(envs, state)
    assert [own.kept.random(5).tolist(), own.kept.spawn(1)[0].random()] == wanted


class Own(Odd):
    """Offers its state, and may not take it back."""

    def get_state(self) -> Any:
        return {"place": self.place.copy(), "has_stepped": hasattr(self, "has_stepped")}

    def set_state(self, state: Any) -> None:
        if self.habit == "refuses":
            raise ValueError("qpos is missing")
        vars(self).update(state)


def test_an_environment_continues_from_the_state_that_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, fresh = make_own(monkeypatch, Own), make_own(monkeypatch, Own)
    envs.step(np.ones((1, 1), np.float32))
    restore_state(fresh, saved(envs))
    assert fresh.step(np.ones((1, 1), np.float32)).next_obs.tolist() == [[2.0]]


def test_where_set_state_raises_the_environments_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, fresh = make_own(monkeypatch, Own, "refuses"), make_own(monkeypatch, Own, "refuses")
    envs.step(np.ones((1, 1), np.float32))
    before = fresh.envs[0]  # type: ignore[attr-defined]  # of an `EnvAdapter`
    with pytest.raises(CheckpointError, match="does not fit Own-v0: ValueError: qpos is missing"):
        restore_state(fresh, saved(envs))
    assert fresh.reset(1).tolist() == [[0.0]]
    assert fresh.envs[0] is not before  # type: ignore[attr-defined]


@pytest.mark.mp
def test_environments_in_other_processes_are_refused() -> None:
    envs = make_vector(EnvConfig(id="Pendulum-v1", vectorization="async"))
    try:
        assert save_state(envs) == "env.vectorization=async keeps the environments in other processes; use sync"
    finally:
        envs.close()
