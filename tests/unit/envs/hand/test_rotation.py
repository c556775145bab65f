"""The task of the hands: rewards, drops, physics of an episode, and the contents of an observation."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from offpolicy.envs.hand.model import NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import (
    ACTION_SCALE,
    CONTROL_S,
    FRAME,
    GRAVITY,
    HandRotations,
    Outcome,
    solid_of,
    yaw_of,
)
from offpolicy.envs.hand.task import ROTATION, SHAPES, SPIN, Range, Task

LETTING_GO = (0.0, -0.7, 0.2, 0.2) * 4  # targets of the joints, fingers open


class Hands(HandRotations):
    """Hands of a task whose first episodes have begun, with a generator for each."""

    def __init__(self, num_envs: int, task: Task = ROTATION, seed: int = 0) -> None:
        super().__init__(make_hand("four_finger", task.palm_radius), num_envs, task, task.train, num_threads=1)
        self.rngs = [np.random.default_rng(seed + env) for env in range(num_envs)]
        self.reset(range(num_envs), self.rngs)

    def act(self, action: NDArray[np.floating]) -> Outcome:
        """One step."""
        return self.step(action, self.rngs)

    def dropped_within(self, steps: int, targets: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
        """Whether each object was dropped, with the fingers at these targets; None: as the episode began."""
        dropped = np.zeros(self.num_envs, np.bool_)
        for _ in range(steps):
            action = np.zeros_like(self._ctrl) if targets is None else (targets - self._ctrl) / ACTION_SCALE
            dropped |= self.act(action).dropped
        return dropped


def gait(batch: Hands, step: int, direction: float = 1.0, period: int = 16) -> NDArray[np.float64]:
    """All fingers press and sweep one way, open and sweep back: it turns the cube without looking at it."""
    phase = (step % period) / period
    is_pressing = phase < 0.5
    sweep = 0.5 - 2.0 * phase if is_pressing else -0.5 + 2.0 * (phase - 0.5)
    pose = (direction * sweep, 0.17, 1.05, 0.9) if is_pressing else (direction * sweep, -0.25, 0.7, 0.9)
    return np.clip((np.tile(pose, 4) - batch._ctrl) / ACTION_SCALE, -1.0, 1.0)


def turned(direction: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Radians and returns of ten seconds of the gait."""
    batch, rotation, reward = Hands(16, SPIN), np.zeros(16), np.zeros(16)
    for step in range(200):
        outcome = batch.act(gait(batch, step, direction))
        rotation += outcome.rotation
        reward += outcome.reward
    return rotation, reward


def test_a_gait_turns_the_cube_and_is_paid_for_the_right_direction() -> None:
    forward, paid = turned(1.0)
    backward, fined = turned(-1.0)
    assert np.median(forward) > 8.0
    assert np.median(backward) < -8.0
    assert np.median(paid) > 0.0 > np.median(fined)


@pytest.mark.parametrize("task", [ROTATION, SPIN])
def test_random_fingers_drop_the_object_and_pay_for_it(task: Task) -> None:
    batch, rng, dropped, least = Hands(16, task), np.random.default_rng(1), np.zeros(16, np.bool_), 0.0
    for _ in range(200):
        outcome = batch.act(rng.uniform(-1.0, 1.0, (16, NUM_JOINTS)))
        dropped |= outcome.dropped
        least = min(least, float(outcome.reward.min()))
    assert dropped.mean() > 0.8
    assert least < -task.rewards.drop / 2


def test_an_object_is_held_by_fingers_that_close_and_falls_when_they_open() -> None:
    assert Hands(64).dropped_within(100).mean() < 0.1
    assert Hands(64).dropped_within(10, np.array(LETTING_GO)).all()
    # In the simple task it stands on the palm.
    assert Hands(64, SPIN).dropped_within(100, np.array(LETTING_GO)).mean() < 0.1


def test_the_friction_drawn_is_that_of_the_contacts() -> None:
    """MuJoCo takes the greater one of two geoms of the same priority: the fingertips' hid all below theirs."""
    batch = Hands(8)
    for _ in range(5):
        batch.act(np.zeros((8, NUM_JOINTS)))
    for env in range(8):
        _, data = batch.data_of(env)
        touching = [contact.friction[0] for contact in data.contact if batch._geom in contact.geom]
        assert len(touching) >= 2
        assert np.allclose(touching, batch._friction[env, batch._geom, 0])
    assert batch._friction[:, batch._geom, 0].min() < 1.0


def test_rocking_to_and_fro_is_not_paid() -> None:
    """With a limit of the speed on both sides, slowly forward and quickly back is rewarded for no rotation at all."""
    batch = Hands(1)
    slowly, quickly = batch.task.rewards.max_speed * CONTROL_S, -4.0 * batch.task.rewards.max_speed * CONTROL_S
    never = np.zeros(1, np.bool_)
    forward, back = (batch._reward(np.array([turned]), never)[0] for turned in (slowly, quickly))
    still = batch._reward(np.zeros(1), never)[0]
    assert 4.0 * (forward - still) + (back - still) == pytest.approx(0.0, abs=1e-9)


def test_a_pose_far_from_the_start_costs_reward() -> None:
    batch, never = Hands(1), np.zeros(1, np.bool_)
    before = batch._reward(np.zeros(1), never)[0]
    batch._qpos[0, :NUM_JOINTS] = batch._start[0] + 0.5
    paid = batch._reward(np.zeros(1), never)[0] - before
    assert paid == pytest.approx(-ROTATION.rewards.pose * NUM_JOINTS * 0.25)


@pytest.mark.parametrize("task", [ROTATION, SPIN])
def test_physics_differ_between_episodes_and_equal_the_privileged_part(task: Task) -> None:
    batch = Hands(300, task)
    observed, ranges = batch.observe()["privileged"][:, 3:], task.train
    body, geom = batch._body, batch._geom
    scalars, com, down, kind = observed[:, :3], observed[:, 3:6], observed[:, 8:11], observed[:, 11:]

    def drawn(column: int, values: Range) -> NDArray[np.float32]:
        return values.low + (observed[:, column] + 1.0) / 2.0 * (values.high - values.low)

    assert (np.abs(observed) <= 1.0).all()
    assert (np.concatenate((scalars, com, observed[:, 6:7]), axis=1).std(axis=0) > 0.4).all()
    assert np.allclose(batch._mass[:, body], drawn(1, ranges.mass))
    assert np.allclose(batch._friction[:, geom, 0], drawn(2, ranges.friction))
    assert np.allclose(batch._com[:, body], 0.008 * com, atol=1e-8)
    assert np.allclose(batch._gain[:, :, 0], 1.2 * drawn(6, ranges.gain)[:, None], atol=1e-6)
    assert np.allclose(batch._bias[:, :, 2], -0.06 * drawn(7, ranges.damping)[:, None], atol=1e-6)
    assert np.allclose(batch._gravity, GRAVITY * down, atol=1e-5)
    for env in range(300):
        solid = solid_of(SHAPES[int(kind[env].argmax())], drawn(0, ranges.size)[env] * np.array((0.026, 0.026, 0.03)))
        assert batch._type[env, geom] == solid.type
        assert np.allclose(batch._size[env, geom], solid.size, atol=1e-6)
    assert {SHAPES[each] for each in kind.argmax(axis=1)} == set(task.shapes)


def test_gravity_comes_from_all_sides_within_its_range() -> None:
    down = Hands(400).observe()["privileged"][:, 11:14]
    assert np.linalg.norm(down, axis=1) == pytest.approx(1.0)
    tilt, direction = np.arccos(-down[:, 2]), np.arctan2(down[:, 1], down[:, 0])
    low, high = ROTATION.train.tilt
    assert low - 1e-6 <= tilt.min() < low + 0.05
    assert high - 0.05 < tilt.max() <= high + 1e-6
    assert (np.histogram(direction, 4, (-np.pi, np.pi))[0] > 70).all()


def test_joints_are_observed_with_noise_and_moved_without() -> None:
    batch = Hands(200)
    frames = batch.observe()["obs"].reshape(200, 3, FRAME)[:, -1]
    span = (batch._high - batch._low) / 2.0
    error = (frames[:, :NUM_JOINTS] + 1.0) * span + batch._low - batch._qpos[:, :NUM_JOINTS]
    assert error.std() == pytest.approx(ROTATION.joint_noise, rel=0.05)
    assert np.allclose((frames[:, NUM_JOINTS:] + 1.0) * span + batch._low, batch._ctrl, atol=1e-6)
    quiet = Hands(20, SPIN)
    frames = quiet.observe()["obs"].reshape(20, 3, FRAME)[:, -1]
    assert np.allclose((frames[:, :NUM_JOINTS] + 1.0) * span + quiet._low, quiet._qpos[:, :NUM_JOINTS], atol=1e-6)


def test_pushes_begin_at_random_fade_and_are_in_proportion_to_the_mass() -> None:
    batch, still = Hands(200), np.zeros((200, NUM_JOINTS))
    assert not batch._push.any()
    batch.act(still)
    pushed = batch._push.any(axis=1)
    assert 0.15 < pushed.mean() < 0.35
    per_kg = batch._push[pushed] / batch._mass[pushed, batch._body, None]
    assert per_kg.std() == pytest.approx(ROTATION.push, rel=0.2)
    before = batch._push.copy()
    batch.act(still)
    faded = np.isclose(batch._push, ROTATION.push_decay * before).all(axis=1)
    assert 0.65 < faded.mean() < 0.85
    batch.reset([0], batch.rngs[:1])
    assert not batch._push[0].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_solid_has_the_inertia_and_the_sphere_that_mujoco_computes(shape: str) -> None:
    solid = solid_of(shape, np.array((0.02, 0.02, 0.03)))
    name = "cylinder" if shape == "cylinder" else "box"
    size = " ".join(map(str, solid.size))
    xml = f'<body><freejoint/><geom type="{name}" size="{size}" mass="1"/></body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{xml}</worldbody></mujoco>")
    turned = np.sort(model.body_inertia[1])  # about axes that MuJoCo puts in an order of its own
    assert np.sort(solid.inertia) == pytest.approx(turned)
    assert solid.radius == pytest.approx(model.geom_rbound[0])


def test_the_history_is_filled_at_a_reset_and_moves_by_one_frame() -> None:
    batch = Hands(3, SPIN)
    before = batch.observe()["proprio_hist"]
    assert (before == before[:, :1]).all()
    batch.act(np.full((3, NUM_JOINTS), 0.5))
    after, recent = batch.observe()["proprio_hist"], batch.observe()["obs"]
    assert np.array_equal(after[:, :-1], before[:, 1:])
    assert (after[:, -1] != before[:, -1]).any(axis=1).all()
    assert np.array_equal(recent.reshape(3, 3, FRAME), after[:, -3:])


def test_an_action_moves_the_targets_and_never_beyond_the_joints() -> None:
    batch = Hands(2)
    start = batch._ctrl.copy()
    batch.act(np.full((2, NUM_JOINTS), 0.25))
    assert np.allclose(batch._ctrl, np.minimum(start + 0.25 * ACTION_SCALE, batch._high))
    for _ in range(40):
        batch.act(np.full((2, NUM_JOINTS), 1.0))
    assert np.array_equal(batch._ctrl, np.tile(batch._high, (2, 1)))


def test_yaw_is_the_turn_about_the_vertical() -> None:
    half = np.array([0.3, -1.2])
    quaternion = np.stack([np.cos(half / 2), 0 * half, 0 * half, np.sin(half / 2)], axis=-1)
    assert yaw_of(quaternion) == pytest.approx(half)
