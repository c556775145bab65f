"""Simulations of one model: what MuJoCo leaves after a step, its warnings, its errors, and its state."""

from __future__ import annotations

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false
import mujoco
import numpy as np

from offpolicy.envs.batched.simulations import Simulations

BALL = """
<mujoco><option integrator="RK4"/>
  <worldbody><geom type="plane" size="1 1 1"/>
    <body pos="0 0 .2"><joint name="x" type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>
      <geom name="ball" type="sphere" size=".1" mass="1"/></body></worldbody>
  <actuator><motor joint="x" gear="10"/></actuator></mujoco>
"""


def balls(num_envs: int = 4) -> Simulations:
    model = mujoco.MjModel.from_xml_string(BALL)
    return Simulations(model, num_envs, 2, has_contact_forces=True)


def start(sims: Simulations) -> None:
    ids = np.arange(sims.num_envs)
    sims.start(ids, np.zeros((len(ids), 2)), np.zeros((len(ids), 2)))


def test_contact_forces_are_those_after_the_step_and_none_after_a_start() -> None:
    sims = balls()
    start(sims)
    assert not sims.contact_forces.any()
    model, data = sims.model, mujoco.MjData(sims.model)
    for number in range(60):
        sims.ctrl[:] = np.arange(4)[:, None] / 4
        sims.step(None, 5)
        data.ctrl[:] = 0.5
        mujoco.mj_step(model, data, nstep=5)
        mujoco.mj_rnePostConstraint(model, data)
        np.testing.assert_array_equal(sims.contact_forces[2], data.cfrc_ext, str(number))
    assert data.cfrc_ext.any()
