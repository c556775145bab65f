"""The two tasks of the hands, as numbers: physics of an episode, disturbances, rewards, and what counts as a drop.

`ROTATION` is what HORA (arXiv:2210.04887, section 3 and its code) is about: an object that falls when the hand lets go
of it, physics that differ widely between episodes, pushes, and joint sensors with noise. `SPIN` is the same movement
without any of these: the object stands on the palm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Range(NamedTuple):
    """The interval that a quantity is drawn from, uniformly."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Returns one value."""
        return float(rng.uniform(self.low, self.high))

    def centred(self, value: float) -> float:
        """Returns the value as -1 at the low end and 1 at the high one; 0 where the ends are the same."""
        return 2.0 * (value - self.low) / (self.high - self.low) - 1.0 if self.high > self.low else 0.0


ONE, ZERO = Range(1.0, 1.0), Range(0.0, 0.0)
SHAPES = ("cube", "cylinder", "block")


@dataclass(frozen=True, slots=True)
class PhysicsRanges:
    """The ranges of an episode's physics."""

    size: Range  # relative size of the object
    mass: Range  # kg
    friction: Range  # sliding friction of the object
    com: Range  # the object's centre of mass, m, per axis
    gain: Range  # relative gain of the actuators
    damping: Range = ONE  # relative damping of the actuators
    tilt: Range = ZERO  # angle between the palm's axis and the vertical, in rad, to any side


@dataclass(frozen=True, slots=True)
class Rewards:
    """The reward of a step, by its parts."""

    max_speed: float  # rad/s; faster gains no reward
    linear: float  # per m/s of the object, summed over axes
    pose: float  # per rad^2 between the joints and their pose at the start, summed over joints
    torque: float  # per (N m)^2, summed over joints
    work: float  # per W of all joints
    drop: float  # once


@dataclass(frozen=True, slots=True)
class Task:
    """One task. Lengths in m, angles in rad."""

    train: PhysicsRanges
    held_out: PhysicsRanges  # a little beyond the ranges of training, on both sides
    rewards: Rewards
    shapes: tuple[str, ...] = ("cube",)
    palm_radius: float = 0.032  # of what the object stands on
    squeeze: float = 0.0  # how much further than `Hand.pose` the fingers' targets are closed at the start
    joint_noise: float = 0.0  # standard deviation of a joint's position in an observation
    push_probability: float = 0.0  # of a new push, per step
    push: float = 0.0  # standard deviation of a push per kg of the object and axis, in m/s^2
    push_decay: float = 1.0  # the part of a push that is left one step later


SPIN = Task(
    train=PhysicsRanges(
        size=Range(0.9, 1.1),
        mass=Range(0.03, 0.12),
        friction=Range(0.4, 1.2),
        com=Range(-0.008, 0.008),
        gain=Range(0.75, 1.25),
    ),
    held_out=PhysicsRanges(
        size=Range(0.87, 1.13),
        mass=Range(0.02, 0.14),
        friction=Range(0.35, 1.3),
        com=Range(-0.009, 0.009),
        gain=Range(0.7, 1.3),
    ),
    rewards=Rewards(max_speed=3.0, linear=0.3, pose=0.0, torque=0.1, work=0.2, drop=10.0),
)
ROTATION = Task(
    train=PhysicsRanges(
        size=Range(0.9, 1.1),
        mass=Range(0.01, 0.25),
        friction=Range(0.3, 3.0),
        com=Range(-0.008, 0.008),
        gain=Range(0.75, 1.25),
        damping=Range(0.75, 1.25),
        tilt=Range(0.6, 1.2),
    ),
    held_out=PhysicsRanges(
        size=Range(0.87, 1.13),
        mass=Range(0.008, 0.28),
        friction=Range(0.27, 3.3),
        com=Range(-0.009, 0.009),
        gain=Range(0.7, 1.3),
        damping=Range(0.7, 1.3),
        tilt=Range(0.55, 1.25),
    ),
    rewards=Rewards(max_speed=1.0, linear=0.3, pose=0.03, torque=0.1, work=0.2, drop=10.0),
    shapes=SHAPES,
    squeeze=0.15,
    joint_noise=0.02,
    push_probability=0.25,
    push=2.0,
    push_decay=0.936,
)
TASKS: Mapping[str, Task] = {"rotation": ROTATION, "spin": SPIN}
