"""Saved and restored environments continue bit for bit; what cannot be saved exactly is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.object_graph import Decoder, Encoder
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.envs.vector import VectorAdapter, make_vector
from offpolicy.errors import CheckpointError, EnvFailure
from offpolicy.types import StepOutcome

EPISODE = 90  # short enough for an end in every stretch of 200 steps
CONTINUED = 200
ENVIRONMENTS = (
    *("Pendulum-v1", "offpolicy.envs.toy:PointMass-v0", "offpolicy.envs.toy:Counter-v0"),
    *("InvertedDoublePendulum-v5", "Pusher-v5", "HalfCheetah-v5", "Humanoid-v5"),
)


def make(env_id: str, num_envs: int = 2, **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id=env_id, kwargs={"max_episode_steps": EPISODE, **kwargs}, num_envs=num_envs))


def actions_of(envs: VectorAdapter, steps: int) -> Any:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (steps, envs.num_envs, envs.spec.action_dim)).astype(np.float32)


def roll(envs: VectorAdapter, actions: Any) -> list[StepOutcome]:
    return [envs.step(action) for action in actions]


def bits(outcomes: list[StepOutcome]) -> list[bytes]:
    return [array.tobytes() for outcome in outcomes for array in outcome]


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
    before = roll(envs, actions[:37])
    state = saved(envs)
    after = roll(envs, actions[37:])
    fresh = make(env_id)
    assert restore_state(fresh, state).tobytes() == before[-1].next_obs.tobytes()
    assert bits(roll(fresh, actions[37:])) == bits(after)
    assert any(outcome.is_valid.sum() < 2 for outcome in after), "no episode ended"


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Humanoid-v5"])
def test_steps_before_a_restore_do_not_matter(env_id: str) -> None:
    envs = make(env_id)
    actions = actions_of(envs, 80)
    envs.reset(5)
    roll(envs, actions[:20])
    state = saved(envs)
    after = roll(envs, actions[20:])
    envs.reset(77)
    roll(envs, actions[::-1])
    restore_state(envs, state)
    assert bits(roll(envs, actions[20:])) == bits(after)


def test_saving_changes_nothing() -> None:
    watched, alone = make("Humanoid-v5"), make("Humanoid-v5")
    actions = actions_of(watched, 40)
    watched.reset(5)
    alone.reset(5)
    seen = []
    for action in actions:
        save_state(watched)
        seen.append(watched.step(action))
    assert bits(seen) == bits(roll(alone, actions))


def test_a_state_saved_on_the_row_of_a_done_is_followed_by_the_reset_row() -> None:
    envs = make("offpolicy.envs.toy:Counter-v0", 1, terminate_at=3)
    envs.reset(1)
    roll(envs, actions_of(envs, 3))
    state = saved(envs)
    fresh = make("offpolicy.envs.toy:Counter-v0", 1, terminate_at=3)
    assert restore_state(fresh, state)[0, 1:].tolist() == [3.0, 0.0]
    row = roll(fresh, actions_of(fresh, 1))[0]
    assert (row.is_valid.tolist(), row.next_obs[0, 1:].tolist()) == ([False], [0.0, 1.0])


def test_a_state_can_be_saved_before_the_first_step() -> None:
    envs = make("HalfCheetah-v5")
    envs.reset(5)
    state = saved(envs)
    actions = actions_of(envs, 20)
    after = roll(envs, actions)
    fresh = make("HalfCheetah-v5")
    restore_state(fresh, state)
    assert bits(roll(fresh, actions)) == bits(after)


def test_a_restored_environment_still_names_its_seed_and_step_when_it_fails() -> None:
    kwargs = {"fail": "step_raise", "at": 4}
    envs = make("offpolicy.envs.toy:Faulty-v0", 1, **kwargs)
    envs.reset(1)
    roll(envs, actions_of(envs, 3))
    fresh = make("offpolicy.envs.toy:Faulty-v0", 1, **kwargs)
    restore_state(fresh, saved(envs))
    with pytest.raises(EnvFailure, match="episode step 4"):
        roll(fresh, actions_of(fresh, 1))


@pytest.mark.parametrize(
    ("env_id", "num_envs", "kwargs", "expected"),
    [
        ("Hopper-v5", 2, {}, "saved with id 'HalfCheetah-v5', this is 'Hopper-v5'"),
        ("HalfCheetah-v5", 1, {}, "saved with num_envs 2, this is 1"),
        ("HalfCheetah-v5", 2, {"frame_skip": 4}, "saved with kwargs"),
    ],
)
def test_a_state_of_other_environments_is_refused(
    env_id: str, num_envs: int, kwargs: dict[str, Any], expected: str
) -> None:
    envs = make("HalfCheetah-v5")
    envs.reset(1)
    with pytest.raises(CheckpointError, match=expected):
        restore_state(make(env_id, num_envs, **kwargs), saved(envs))


class Odd(gymnasium.Env[Any, Any]):
    """Keeps plain attributes, and something else where it has that habit."""

    def __init__(self, habit: str = "none") -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.habit = habit
        if habit == "object":
            self.world = object()

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
    monkeypatch.setitem(gymnasium.registry, "Own-v0", gymnasium.envs.registration.EnvSpec("Own-v0", kind))
    envs = make_vector(EnvConfig(id="Own-v0", kwargs={"habit": habit}))
    envs.reset(1)
    return envs


def test_an_attribute_that_the_saved_environment_did_not_have_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_own(monkeypatch, Odd)
    state = saved(envs)
    action = np.ones((1, 1), np.float32)
    assert [envs.step(action).reward[0], envs.step(action).reward[0]] == [1.0, 0.0]
    restore_state(envs, state)
    assert envs.step(action).reward[0] == 1.0


def test_a_state_that_cannot_be_exact_is_refused_with_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert save_state(make_own(monkeypatch, Odd, "object")) == "Odd.world is a builtins.object"


def test_a_mujoco_model_that_changed_at_run_time_is_refused() -> None:
    envs = make("Hopper-v5", 1)
    envs.reset(1)
    envs.stepper.envs[0].env.unwrapped.model.body_mass[1] *= 2.0  # type: ignore[attr-defined]
    assert save_state(envs) == "Hopper-v5 has changed its MuJoCo model since it was constructed"


class Own(Odd):
    """Offers its state, in one of many ways."""

    def get_state(self) -> Any:
        match self.habit:
            case "raises":
                raise RuntimeError("no state today")
            case "partial":
                return {}
        return {"place": self.place.copy(), "has_stepped": hasattr(self, "has_stepped")}

    def set_state(self, state: Any) -> None:
        match self.habit:
            case "refuses":
                raise ValueError("qpos is missing")
            case _:
                vars(self).update(state)


class Simulator(Own):
    """MuJoCo's `set_state(qpos, qvel)` beside a `get_state()`."""

    def set_state(self, qpos: Any, qvel: Any) -> None:  # type: ignore[override]  # that is the point
        """Does something else."""


def test_an_environment_continues_from_the_state_that_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, fresh = make_own(monkeypatch, Own), make_own(monkeypatch, Own)
    envs.step(np.ones((1, 1), np.float32))
    restore_state(fresh, saved(envs))
    assert fresh.step(np.ones((1, 1), np.float32)).next_obs.tolist() == [[2.0]]


def test_a_get_state_that_fails_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert save_state(make_own(monkeypatch, Own, "raises")) == "Own.get_state() raised RuntimeError: no state today"


@pytest.mark.parametrize(
    ("habit", "expected"),
    [
        ("refuses", "Own.set_state\\(\\) raised ValueError: qpos is missing"),
        ("partial", "Own.set_state\\(\\) does not restore Own.place"),
    ],
)
def test_a_set_state_of_another_meaning_is_refused_and_the_environments_are_new(
    monkeypatch: pytest.MonkeyPatch, habit: str, expected: str
) -> None:
    envs, fresh = make_own(monkeypatch, Own, habit), make_own(monkeypatch, Own, habit)
    envs.step(np.ones((1, 1), np.float32))
    before = fresh.stepper
    with pytest.raises(CheckpointError, match=expected):
        restore_state(fresh, saved(envs))
    assert fresh.stepper is not before
    assert fresh.reset(1).tolist() == [[0.0]]


def test_methods_with_other_arguments_are_not_taken_for_an_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, fresh = make_own(monkeypatch, Simulator), make_own(monkeypatch, Simulator)
    envs.step(np.ones((1, 1), np.float32))
    restore_state(fresh, saved(envs))
    assert fresh.step(np.ones((1, 1), np.float32)).next_obs.tolist() == [[2.0]]


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.clear(),
        lambda meta: meta.update(nodes=None),
        lambda meta: meta.update(envs=[]),
        lambda meta: meta["envs"][0].update(door=3),
        lambda meta: meta["nodes"].append(["same", [], "function os.system", [[0, 0, "", "env"], "x"]]),
    ],
)
def test_hostile_content_is_refused(change: Any) -> None:
    envs = make("Pendulum-v1")
    envs.reset(1)
    state = saved(envs)
    change(state.meta)
    with pytest.raises(CheckpointError, match="does not fit Pendulum-v1"):
        restore_state(envs, state)


@pytest.mark.mp
def test_environments_in_other_processes_are_refused() -> None:
    envs = make_vector(EnvConfig(id="Pendulum-v1", vectorization="async"))
    try:
        assert save_state(envs) == "env.vectorization=async keeps the environments in other processes; use sync"
    finally:
        envs.close()


def round_trip(value: Any) -> Any:
    encoder = Encoder()
    reference = encoder.encode(value, (None, "value"))
    nodes, reference = json.loads(json.dumps([encoder.nodes, reference], allow_nan=False))
    return decoded(nodes, reference, encoder.memory())


def decoded(nodes: Any, reference: Any, memory: Any = b"") -> Any:
    """What a file of these nodes stands for, where nothing is known."""
    return Decoder(nodes, np.frombuffer(memory, np.uint8), {}.__getitem__).decode(reference)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**130), 2**130) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_nested_values_come_back_equal(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert repr(back) == repr(value)


PCG = {"bit_generator": "PCG64", "state": {"state": "0x1", "inc": "0x1"}, "has_uint32": "0x0", "uinteger": "0x0"}
MT = {"bit_generator": "MT19937", "state": {"key": ["<u4", *[1] * 624], "pos": "0x0"}}


@pytest.mark.parametrize(
    "nodes",
    [
        [["bits", {**PCG, "bit_generator": "seed"}, None]],
        [["bits", {**MT, "state": {**MT["state"], "pos": "0x271"}}, None]],  # NumPy would read beyond its memory
        [["array", "<f8", [2], 0, "C", True]],  # 8 bytes are there
        [["array", "|O", [1], 0, "C", True]],
        [["array", "<f8", [1], 0, "C", True], ["view", "<f8", [2], [0], 0, [8], True]],
        [["array", "<f8", [1], 0, "C", True], ["method", [0], "tofile"]],
        [["same", [], "function builtins.eval", ["eval"]]],
        [["list", [[7]], None]],
        [["dict", [[0], 1], None]],  # a dict is no key
        [["os.system", "true"]],
        7,
    ],
)
def test_a_file_of_anything_else_is_refused(nodes: Any) -> None:
    with pytest.raises(ValueError, match="it holds what no environment saves"):
        decoded(nodes, [0], bytes(8))
