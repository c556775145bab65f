"""The task of the hands: rewards, drops, physics of an episode, and the contents of an observation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from offpolicy.envs.hand.model import NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import (
    ACTION_SCALE,
    DROP_PENALTY,
    FRAME,
    TRAINING,
    HandRotations,
    PhysicsRanges,
    yaw_of,
)


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


def test_physics_differ_between_episodes_and_equal_the_privileged_part() -> None:
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


def test_yaw_is_the_turn_about_the_vertical() -> None:
    half = np.array([0.3, -1.2])
    quaternion = np.stack([np.cos(half / 2), 0 * half, 0 * half, np.sin(half / 2)], axis=-1)
    assert yaw_of(quaternion) == pytest.approx(half)
