"""The task of the hands: rewards, drops, physics of an episode, and the contents of an observation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from offpolicy.envs.hand.model import NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import (
    ACTION_SCALE,
    FRAME,
    GRAVITY,
    ROTATION,
    SHAPES,
    SPIN,
    HandRotations,
    Outcome,
    Range,
    Task,
    solid_of,
)

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
            action = np.zeros_like(self.targets) if targets is None else (targets - self.targets) / ACTION_SCALE
            dropped |= self.act(action).dropped
        return dropped


def gait(batch: Hands, step: int, direction: float = 1.0, period: int = 16) -> NDArray[np.float64]:
    """All fingers press and sweep one way, open and sweep back: it turns the cube without looking at it."""
    phase = (step % period) / period
    is_pressing = phase < 0.5
    sweep = 0.5 - 2.0 * phase if is_pressing else -0.5 + 2.0 * (phase - 0.5)
    pose = (direction * sweep, 0.17, 1.05, 0.9) if is_pressing else (direction * sweep, -0.25, 0.7, 0.9)
    return np.clip((np.tile(pose, 4) - batch.targets) / ACTION_SCALE, -1.0, 1.0)


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
    assert Hands(32).dropped_within(100).mean() < 0.1
    assert Hands(32).dropped_within(10, np.array(LETTING_GO)).all()
    # In the simple task it stands on the palm.
    assert Hands(32, SPIN).dropped_within(100, np.array(LETTING_GO)).mean() < 0.1


def test_the_friction_drawn_is_that_of_the_contacts() -> None:
    """MuJoCo takes the greater one of two geoms of the same priority: the fingertips' hid all below theirs."""
    batch = Hands(8)
    for _ in range(5):
        batch.act(np.zeros((8, NUM_JOINTS)))
    for env in range(8):
        model, data = batch.data_of(env)
        geom = model.geom("object").id
        touching = [contact.friction[0] for contact in data.contact if geom in contact.geom]
        assert len(touching) >= 2
        assert np.allclose(touching, model.geom_friction[geom, 0])


@pytest.mark.parametrize("task", [ROTATION, SPIN])
def test_physics_differ_between_episodes_and_equal_the_privileged_part(task: Task) -> None:
    batch, ranges, kinds = Hands(60, task), task.train, set()
    observed = batch.observe()["privileged"][:, 3:]
    assert (np.abs(observed) <= 1.0).all()
    assert (observed[:, :7].std(axis=0) > 0.4).all()

    def drawn(value: float, values: Range) -> float:
        return values.low + (value + 1.0) / 2.0 * (values.high - values.low)

    for env, (size, mass, friction, *com, gain, damping) in enumerate(observed[:, :8].tolist()):
        model, _ = batch.data_of(env)
        body, geom, down, kind = (
            model.body("object").id,
            model.geom("object").id,
            observed[env, 8:11],
            observed[env, 11:],
        )
        kinds.add(SHAPES[int(kind.argmax())])
        solid = solid_of(SHAPES[int(kind.argmax())], drawn(size, ranges.size) * np.array((0.026, 0.026, 0.03)))
        assert model.body_mass[body] == pytest.approx(drawn(mass, ranges.mass))
        assert model.geom_friction[geom, 0] == pytest.approx(drawn(friction, ranges.friction))
        assert np.allclose(model.body_ipos[body], 0.008 * np.array(com), atol=1e-8)
        assert np.allclose(model.actuator_gainprm[:, 0], 1.2 * drawn(gain, ranges.gain), atol=1e-6)
        assert np.allclose(model.actuator_biasprm[:, 2], -0.06 * drawn(damping, ranges.damping), atol=1e-6)
        assert np.allclose(model.opt.gravity, GRAVITY * down, atol=1e-5)
        assert model.geom_type[geom] == solid.type
        assert np.allclose(model.geom_size[geom], solid.size, atol=1e-6)
    assert kinds == set(task.shapes)


@pytest.mark.parametrize("task", [ROTATION, SPIN])
def test_joints_are_observed_with_the_noise_of_the_task_and_targets_without(task: Task) -> None:
    batch = Hands(100, task)
    frames, errors = batch.observe()["obs"].reshape(100, 3, FRAME)[:, -1], []
    for env, frame in enumerate(frames):
        model, data = batch.data_of(env)
        low, high = model.actuator_ctrlrange.T
        errors.append((frame[:NUM_JOINTS] + 1.0) * (high - low) / 2.0 + low - data.qpos[:NUM_JOINTS])
        assert np.allclose((frame[NUM_JOINTS:] + 1.0) * (high - low) / 2.0 + low, data.ctrl, atol=1e-6)
    assert np.std(errors) == pytest.approx(task.joint_noise, rel=0.05, abs=1e-6)
