"""Saved and restored environments continue bit for bit; what cannot be saved exactly is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.envs.vector import VectorAdapter, make_vector
from offpolicy.errors import CheckpointError, EnvFailure
from offpolicy.types import StepOutcome

EPISODE = 90  # short enough for an end in every stretch of 200 steps
CONTINUED = 200
ENVIRONMENTS = (
    *("Pendulum-v1", "MountainCarContinuous-v0", "offpolicy.envs.toy:PointMass-v0", "offpolicy.envs.toy:Counter-v0"),
    *("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Pusher-v5", "Hopper-v5", "HalfCheetah-v5"),
    *("Walker2d-v5", "Ant-v5", "Humanoid-v5", "Swimmer-v5"),
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


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Humanoid-v5", "Pusher-v5"])
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


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Humanoid-v5"])
def test_saving_changes_nothing(env_id: str) -> None:
    watched, alone = make(env_id), make(env_id)
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


def test_a_state_of_another_mujoco_model_is_refused() -> None:
    envs = make("HalfCheetah-v5", 1)
    envs.reset(1)
    state = saved(envs)
    state.meta["envs"][0]["model"] = "0" * 64
    with pytest.raises(CheckpointError, match="its MuJoCo model is another one"):
        restore_state(make("HalfCheetah-v5", 1), state)


def test_a_damaged_state_is_refused() -> None:
    envs = make("Pendulum-v1")
    envs.reset(1)
    state = saved(envs)
    state.arrays["memory"] = state.arrays["memory"][:-1]
    with pytest.raises(CheckpointError, match="does not fit Pendulum-v1"):
        restore_state(envs, state)


class Odd(gymnasium.Env[Any, Any]):
    """Keeps something that is not plain data, or changes what is taken for constant."""

    def __init__(self, habit: str = "none") -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.habit = habit
        if habit == "object":
            self.world = object()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.habit == "seeds":
            self.action_space.seed(seed)
        self.place = np.zeros(1, np.float32)
        self.alias = self.place
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        is_first = not hasattr(self, "has_stepped")
        self.has_stepped = True
        self.place += self.action_space.sample() if self.habit == "seeds" else action
        return self.alias.copy(), float(is_first), False, False, {}


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = gymnasium.envs.registration.EnvSpec("Odd-v0", Odd)
    monkeypatch.setitem(gymnasium.registry, "Odd-v0", spec)

    def build(habit: str) -> VectorAdapter:
        envs = make_vector(EnvConfig(id="Odd-v0", kwargs={"habit": habit}))
        envs.reset(1)
        return envs

    return build


def test_two_names_of_one_array_stay_one_array(odd: Any) -> None:
    envs, fresh = odd("none"), odd("none")
    envs.step(np.ones((1, 1), np.float32))
    restore_state(fresh, saved(envs))
    assert fresh.step(np.ones((1, 1), np.float32)).next_obs.tolist() == [[2.0]]


def test_an_attribute_that_the_saved_environment_did_not_have_is_forgotten(odd: Any) -> None:
    envs = odd("none")
    state = saved(envs)
    action = np.ones((1, 1), np.float32)
    assert [envs.step(action).reward[0], envs.step(action).reward[0]] == [1.0, 0.0]
    restore_state(envs, state)
    assert envs.step(action).reward[0] == 1.0


def test_a_state_that_cannot_be_exact_is_refused_with_the_culprit(odd: Any) -> None:
    assert save_state(odd("object")) == "Odd.world is a builtins.object"


class Slotted(Odd):
    __slots__ = ("hidden",)


def test_what_lies_in_slots_is_no_part_of_the_state_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_own(monkeypatch, Slotted, "none")
    assert save_state(envs) == "Slotted keeps hidden in __slots__, which a checkpoint does not save"


def test_a_space_draws_on_where_the_saved_one_was(odd: Any) -> None:
    envs, fresh = odd("seeds"), odd("seeds")
    actions = np.zeros((6, 1, 1), np.float32)
    roll(envs, actions)
    state = saved(envs)
    after = roll(envs, actions)
    restore_state(fresh, state)
    assert bits(roll(fresh, actions)) == bits(after)


def stacked(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.FrameStackObservation(env, 3)


def timed(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeAwareObservation(env)


@pytest.mark.parametrize("wrapper", ["stacked", "timed"])
def test_wrappers_of_gymnasium_that_draw_from_no_space_continue_bit_for_bit(wrapper: str) -> None:
    """Gymnasium makes generators for the spaces of both."""

    def wrapped() -> VectorAdapter:
        return make_vector(EnvConfig(id="Pendulum-v1", wrappers=(f"{__name__}:{wrapper}",), num_envs=2))

    envs, fresh = wrapped(), wrapped()
    actions = actions_of(envs, 250)
    envs.reset(3)
    roll(envs, actions[:30])
    state = saved(envs)
    after = roll(envs, actions[30:])
    restore_state(fresh, state)
    assert bits(roll(fresh, actions[30:])) == bits(after)


class Inner:
    place = 0.0


class Named(Odd):
    """Keeps its state under a name that a wrapper of Gymnasium uses too."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed=seed)
        setattr(self, self.habit.strip("!"), Inner() if self.habit.endswith("!") else [0.0])
        return found

    def step(self, action: Any) -> Any:
        steps = getattr(self, self.habit)
        steps[0] += 1.0
        return self.place.copy(), steps[0], False, False, {}


GYMNASIUMS_NAMES = (
    *("env", "spec", "metadata", "_metadata", "_cached_spec", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"),
)


@pytest.mark.parametrize("name", GYMNASIUMS_NAMES)
def test_the_environments_own_attribute_of_a_name_of_gymnasiums_is_state(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    envs, fresh = make_own(monkeypatch, Named, name), make_own(monkeypatch, Named, name)
    action = np.ones((1, 1), np.float32)
    envs.step(action)
    restore_state(fresh, saved(envs))
    assert fresh.step(action).reward[0] == 2.0


@pytest.mark.parametrize("name", GYMNASIUMS_NAMES)
def test_what_is_not_plain_under_a_name_of_gymnasiums_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    reason = save_state(make_own(monkeypatch, Named, f"{name}!"))
    assert reason == f"Named.{name} is a tests.unit.envs.test_state.Inner"


def test_there_is_no_reason_where_the_state_is_exact(odd: Any) -> None:
    assert isinstance(save_state(odd("none")), EnvState)


def test_a_mujoco_model_that_changed_at_run_time_is_refused() -> None:
    envs = make("Hopper-v5", 1)
    envs.reset(1)
    envs.stepper.envs[0].env.unwrapped.model.body_mass[1] *= 2.0  # type: ignore[attr-defined]
    assert save_state(envs) == "Hopper-v5 has changed its MuJoCo model since it was constructed"


def test_a_model_of_an_earlier_checkpoint_is_told_by_its_type_and_the_digest_of_all() -> None:
    envs = make("Hopper-v5", 1)
    envs.reset(1)
    state = saved(envs)
    marks = [node for node in state.meta["nodes"] if str(node[2:3]).startswith("['object MjModel")]
    for node in marks:
        node[2] = "object MjModel"
    assert marks
    restore_state(make("Hopper-v5", 1), state)


def model_of(env: gymnasium.Env[Any, Any]) -> Any:
    return gymnasium.make("InvertedPendulum-v5").unwrapped.model  # type: ignore[attr-defined]  # MuJoCo's


class Outer(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps a model of its own, itself or in a list."""

    def __init__(self, env: gymnasium.Env[Any, Any], *, in_list: bool) -> None:
        super().__init__(env)
        self.models = [model_of(env)] if in_list else model_of(env)

    @property
    def model(self) -> Any:
        return self.models[0] if isinstance(self.models, list) else self.models


def in_wrapper(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return Outer(env, in_list=False)


def in_list(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return Outer(env, in_list=True)


def with_a_changed_model(place: str) -> tuple[VectorAdapter, EnvConfig]:
    cfg = EnvConfig(id="Pendulum-v1", wrappers=(f"{__name__}:{place}",))
    envs = make_vector(cfg)
    envs.reset(1)
    envs.stepper.envs[0].env.model.body_mass[1] *= 2.0  # type: ignore[attr-defined]
    return envs, cfg


def test_a_model_of_a_wrapper_that_changed_is_refused() -> None:
    envs, _ = with_a_changed_model("in_wrapper")
    assert save_state(envs) == "Pendulum-v1 has changed its MuJoCo model since it was constructed"


def test_a_model_in_a_list_that_changed_does_not_fit_a_new_environment() -> None:
    envs, cfg = with_a_changed_model("in_list")
    state = saved(envs)
    with pytest.raises(CheckpointError, match=r"\.0 was object MjModel \w+, this is object MjModel \w+"):
        restore_state(make_vector(cfg), state)


class Own(Odd):
    """Offers its state, in one of many ways."""

    def get_state(self) -> Any:
        match self.habit:
            case "raises":
                raise RuntimeError("no state today")
            case "exits":
                raise SystemExit(3)
            case "partial":
                return {}
            case "deep":
                return self.chain
        return {"place": self.place.copy()}

    def set_state(self, state: Any) -> None:
        match self.habit:
            case "refuses":
                raise ValueError("qpos is missing")
            case "other":
                self.place = np.full(1, 9.0, np.float32)
            case _:
                self.place[:] = state.get("place", 0.0)


class Simulator(Own):
    """MuJoCo's `set_state(qpos, qvel)` beside a `get_state()`."""

    def set_state(self, qpos: Any, qvel: Any) -> None:  # type: ignore[override]  # that is the point
        """Does something else."""


class Wanting(Own):
    def get_state(self, which: Any) -> Any:  # type: ignore[override]  # that is the point
        return which


def make_own(monkeypatch: pytest.MonkeyPatch, kind: type, habit: str) -> VectorAdapter:
    monkeypatch.setitem(gymnasium.registry, "Own-v0", gymnasium.envs.registration.EnvSpec("Own-v0", kind))
    envs = make_vector(EnvConfig(id="Own-v0", kwargs={"habit": habit}))
    envs.reset(1)
    return envs


@pytest.mark.parametrize(
    ("habit", "expected"),
    [
        ("raises", "Own.get_state() raised RuntimeError: no state today"),
        ("exits", "Own.get_state() raised SystemExit: 3"),
    ],
)
def test_a_get_state_that_fails_is_a_reason_and_no_error(
    monkeypatch: pytest.MonkeyPatch, habit: str, expected: str
) -> None:
    assert save_state(make_own(monkeypatch, Own, habit)) == expected


@pytest.mark.parametrize(
    ("habit", "expected"),
    [
        ("refuses", "Own.set_state\\(\\) raised ValueError: qpos is missing"),
        ("partial", "Own.set_state\\(\\) does not restore Own.place"),
        ("other", "Own.set_state\\(\\) does not restore Own.place"),
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


@pytest.mark.parametrize("kind", [Simulator, Wanting])
def test_methods_with_other_arguments_are_not_taken_for_an_offer(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    envs, fresh = make_own(monkeypatch, kind, "none"), make_own(monkeypatch, kind, "none")
    envs.step(np.ones((1, 1), np.float32))
    restore_state(fresh, saved(envs))
    assert fresh.step(np.ones((1, 1), np.float32)).next_obs.tolist() == [[2.0]]


def test_a_failure_of_any_kind_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError

    envs = make("Pendulum-v1")
    envs.reset(1)
    monkeypatch.setattr("offpolicy.envs.state.Encoder", fail)
    assert save_state(envs) == "the state of Pendulum-v1 cannot be read: MemoryError"


def test_two_thousand_environments_need_a_few_arrays() -> None:
    envs = make("Pendulum-v1", 2000)
    envs.reset(1)
    assert len(saved(envs).arrays) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.clear(),
        lambda meta: meta.update(nodes=None),
        lambda meta: meta.update(envs=[]),
        lambda meta: meta.update(envs=7),
        lambda meta: meta["envs"][0].update(door=3),
        lambda meta: meta["envs"][0].update(layers=[]),
        lambda meta: meta["envs"][0]["layers"][0].update(own={"state": None, "attributes": {}}),
        lambda meta: meta["envs"][0]["layers"][0].update(mujoco={"env": None}),
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


def test_arrays_are_few_and_of_types_that_every_file_format_holds() -> None:
    envs = make("Humanoid-v5")
    envs.reset(1)
    state = saved(envs)
    assert len(state.arrays) < 20
    assert {array.dtype.kind for array in state.arrays.values()} <= set("biuf")
    assert all(array.flags.c_contiguous for array in state.arrays.values())
