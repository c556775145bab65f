"""MuJoCo's data comes back exactly, and its models have a fingerprint."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from offpolicy.envs.mujoco_state import is_mujoco, load_data, models_digest, save_data

BALL = '<mujoco><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'


def test_restored_data_takes_the_same_steps() -> None:
    model = mujoco.MjModel.from_xml_string(BALL)
    one, other = mujoco.MjData(model), mujoco.MjData(model)
    mujoco.mj_step(model, one, 20)
    load_data(other, save_data(one))
    mujoco.mj_step(model, one)
    mujoco.mj_step(model, other)
    np.testing.assert_array_equal(other.qpos, one.qpos)
    assert is_mujoco(one, "MjData")
    assert not is_mujoco(one, "MjModel")


def test_data_of_other_fields_is_refused() -> None:
    data = mujoco.MjData(mujoco.MjModel.from_xml_string(BALL))
    with pytest.raises(ValueError, match="other fields"):
        load_data(data, {**save_data(data), "names": []})


def test_a_changed_model_has_another_fingerprint() -> None:
    model = mujoco.MjModel.from_xml_string(BALL)
    before = models_digest([model])
    model.body_mass[1] *= 2.0
    assert models_digest([model]) != before
    assert models_digest([]) is None
