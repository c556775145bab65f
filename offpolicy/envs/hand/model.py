"""The hand as a MuJoCo model: four fingers of four joints around a round palm, made of primitive shapes only.

Written for this project; no measurements of a real hand, and numbers are not comparable with those of one.
"""

from __future__ import annotations

import math

NUM_FINGERS = 4
JOINTS = ("sweep", "base_flex", "mid_flex", "tip_flex")  # of a finger, from the palm outwards
OBJECT_HALF_SIZES = (0.026, 0.026, 0.030)  # m, of the object at scale 1
PALM_TO_FINGER = 0.078  # m, from the axis of the palm to a finger's base

_FINGER = """
    <body name="finger{i}" pos="{x:.5f} {y:.5f} -0.015" euler="0 0 {yaw:.5f}">
      <joint name="finger{i}_sweep" axis="0 0 1" range="-0.6 0.6"/>
      <geom type="cylinder" size="0.009 0.006" mass="0.02" class="inert"/>
      <body name="finger{i}_proximal" pos="0 0 0.006">
        <joint name="finger{i}_base_flex" axis="0 -1 0" range="-0.7 0.9"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.038" size="0.008" mass="0.03"/>
        <body name="finger{i}_middle" pos="0 0 0.038">
          <joint name="finger{i}_mid_flex" axis="0 -1 0" range="-0.2 1.6"/>
          <geom type="capsule" fromto="0 0 0 0 0 0.028" size="0.0075" mass="0.02"/>
          <body name="finger{i}_distal" pos="0 0 0.028">
            <joint name="finger{i}_tip_flex" axis="0 -1 0" range="-0.2 1.4"/>
            <geom type="capsule" fromto="0 0 0 0 0 0.016" size="0.007" mass="0.01"/>
            <geom name="finger{i}_tip" type="sphere" pos="0 0 0.02" size="0.0095" mass="0.005" class="tip"/>
          </body>
        </body>
      </body>
    </body>"""

# simple="false": the centre of mass of the object is moved, which MuJoCo refuses for bodies compiled as simple.
_HAND = """
<mujoco model="four_finger_hand">
  <compiler angle="radian" autolimits="true" eulerseq="xyz"/>
  <option timestep="0.01" iterations="6" ls_iterations="8"/>
  <default>
    <joint damping="0.01" armature="0.002" frictionloss="0.002"/>
    <geom condim="3" friction="0.8 0.005 0.0001" contype="2" conaffinity="1" rgba=".75 .75 .8 1"/>
    <default class="tip"><geom condim="4" friction="1.0 0.01 0.0001" rgba=".9 .3 .2 1"/></default>
    <default class="inert"><geom contype="0" conaffinity="0" rgba=".3 .3 .35 1"/></default>
  </default>
  <worldbody>
    <light pos="0.2 -0.3 0.6" dir="-0.3 0.4 -1"/>
    <camera name="view" pos="0.17 -0.17 0.2" xyaxes="0.707 0.707 0 -0.45 0.45 0.77"/>
    <geom name="palm" type="cylinder" size="0.032 0.006" pos="0 0 -0.006" friction="0.5 0.005 0.0001"
          rgba=".4 .42 .5 1"/>
    {fingers}
    <body name="object" pos="0 0 {height}" simple="false">
      <freejoint name="object"/>
      <geom name="object" type="box" size="{size}" mass="0.06" contype="1" conaffinity="2" condim="4"
            friction="0.8 0.005 0.0001" rgba=".2 .6 .3 1"/>
    </body>
  </worldbody>
  <actuator>
    {actuators}
  </actuator>
</mujoco>
"""
_ACTUATOR = '<position joint="{joint}" kp="1.2" kv="0.06" inheritrange="1" forcerange="-0.6 0.6"/>'


def hand_xml() -> str:
    """The model as MJCF."""
    angles = [math.pi / 4 + i * 2 * math.pi / NUM_FINGERS for i in range(NUM_FINGERS)]
    fingers = [
        _FINGER.format(i=i, x=PALM_TO_FINGER * math.cos(angle), y=PALM_TO_FINGER * math.sin(angle), yaw=angle)
        for i, angle in enumerate(angles)
    ]
    joints = [f"finger{i}_{joint}" for i in range(NUM_FINGERS) for joint in JOINTS]
    return _HAND.format(
        fingers="".join(fingers),
        actuators="\n    ".join(_ACTUATOR.format(joint=joint) for joint in joints),
        height=OBJECT_HALF_SIZES[2] + 0.001,
        size=" ".join(map(str, OBJECT_HALF_SIZES)),
    )
