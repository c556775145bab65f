"""The hands as MuJoCo models: their start, a hand from a file, and the LEAP hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.hand.model import LEAP_PACKAGE, NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import PLACE_SCALE, SPIN, HandRotations
from offpolicy.envs.vector import make_vector

ENV_ID = "offpolicy.envs.hand:HandSpin-v0"


def hands(name: str, num_envs: int) -> HandRotations:
    """Hands of the simple task, whose first episodes have begun."""
    batch = HandRotations(make_hand(name, SPIN.palm_radius), num_envs, SPIN, SPIN.train, num_threads=1)
    batch.reset(range(num_envs), rngs(num_envs))
    return batch


def rngs(num_envs: int) -> list[np.random.Generator]:
    """A generator for each of them."""
    return [np.random.default_rng(env) for env in range(num_envs)]


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


def test_an_object_stands_in_the_open_hand() -> None:
    batch = hands("four_finger", 8)
    for _ in range(20):
        outcome = batch.step(np.zeros((8, NUM_JOINTS)), rngs(8))
        assert not outcome.dropped.any()
    assert np.abs(outcome.rotation).max() < 0.01


def test_a_hand_from_a_file_holds_a_cube(tmp_path: Path) -> None:
    batch = hands(str(stand_in(tmp_path / "leap_rh_mjx.xml")), 4)
    for _ in range(10):
        outcome = batch.step(np.zeros((4, NUM_JOINTS)), rngs(4))
    assert not outcome.dropped.any()
    for env, height in enumerate(batch.observe()["privileged"][:, 2] * PLACE_SCALE[2]):  # over the floor at -0.015 m
        model, _ = batch.data_of(env)
        assert height == pytest.approx(model.geom_size[model.geom("object").id, 2], abs=2e-3)


@pytest.mark.skipif(importlib.util.find_spec(LEAP_PACKAGE) is None, reason="the LEAP hand's model is not installed")
def test_the_leap_hand_holds_its_cube() -> None:
    vector = adapter(2, hand="leap")
    vector.reset(0)
    for _ in range(40):
        outcome = vector.step(np.zeros((2, NUM_JOINTS), np.float32))
        assert not outcome.terminated.any()
