"""The task for any number of hands at once: turn the object about the vertical, and do not drop it.

Every episode draws its own physics: shape, size, mass, centre of mass and friction of the object, gain and damping of
the actuators, direction of gravity. The groups of an observation (HORA, arXiv:2210.04887, section 3):

    obs           the last 3 frames of joint positions and targets
    privileged    where the object is, and the physics of the episode: known in simulation only
    proprio_hist  the last 30 frames, from which the physics can be inferred; filled with the first one at a reset

`ROTATION` is HORA's task: an object that falls when the hand lets go of it, physics that differ widely, pushes, and
joint sensors with noise. `SPIN` is the same movement without any of these: the object stands on the palm.
"""

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.hand.model import NUM_JOINTS, Hand
from offpolicy.envs.vectorization import NEEDS_BATCH

try:
    from mujoco.batch import Batch
except ModuleNotFoundError:
    raise ImportError(NEEDS_BATCH) from None

Array = NDArray[np.float64]


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

FRAME = 2 * NUM_JOINTS  # joint positions and targets
OBS_FRAMES, HISTORY_FRAMES = 3, 30
NUM_PRIVILEGED = 3 + 8 + 3 + len(SHAPES)
GROUPS: Mapping[str, tuple[int, ...]] = {
    "obs": (OBS_FRAMES * FRAME,),
    "privileged": (NUM_PRIVILEGED,),
    "proprio_hist": (HISTORY_FRAMES, FRAME),
}
SUBSTEPS = 5  # physics steps of 0.01 s per action: 20 actions per second
CONTROL_S = 0.05
ACTION_SCALE = 0.2  # move of a joint's target by an action of 1, in rad
PLACE_SCALE = (0.02, 0.02, 0.03)  # unit of the object's place in `privileged`, in m
GRAVITY = 9.81  # m/s^2


class Outcome(NamedTuple):
    """One step of N hands."""

    reward: Array  # [N]
    dropped: NDArray[np.bool_]  # [N]
    rotation: Array  # [N] rad turned in this step, counter-clockwise


class HandRotations:
    """N hands, each with its own random numbers."""

    def __init__(self, hand: Hand, num_envs: int, task: Task, ranges: PhysicsRanges, num_threads: int = 0) -> None:
        self.hand, self.model = hand, hand.model
        self.num_envs, self.task, self.ranges = num_envs, task, ranges
        self._batch = Batch(self.model, num_envs, num_threads)
        bind = self._batch.bind
        self._qpos, self._qvel, self.targets = bind("qpos"), bind("qvel"), bind("ctrl")
        self._force = bind("qfrc_actuator")  # force at the joints, within their limits
        expand = self._batch.expand
        self._mass, self._inertia, self._com = expand("body_mass"), expand("body_inertia"), expand("body_ipos")
        self._friction, self._size, self._type = expand("geom_friction"), expand("geom_size"), expand("geom_type")
        self._radius = expand("geom_rbound")  # of the sphere around a geom, which finds what may touch it
        self._gain, self._bias = expand("actuator_gainprm"), expand("actuator_biasprm")
        self._gravity = expand("opt.gravity")
        self._body, self._geom = self.model.body("object").id, self.model.geom("object").id
        self._push = bind("xfrc_applied")[:, self._body, :3]
        self._low, self._high = self.model.jnt_range[:NUM_JOINTS].T
        self._physics: Array = np.zeros((num_envs, NUM_PRIVILEGED - 3))
        self._start: Array = np.zeros((num_envs, NUM_JOINTS))  # the joints when the episode began
        self._history: Array = np.zeros((num_envs, HISTORY_FRAMES, FRAME))
        self._yaw: Array = np.zeros(num_envs)
        self.turned: Array = np.zeros(num_envs)  # [N] rad, counter-clockwise, of the episode

    def reset(self, ids: Sequence[int], rngs: Sequence[np.random.Generator]) -> None:
        """Starts an episode in the hands `ids`, each with physics and a pose drawn from its generator."""
        self._batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)
        for env, rng in zip(ids, rngs, strict=True):
            self._draw_physics(env, rng)
            self._draw_pose(env, rng)
        ids = list(ids)
        self._batch.set_const(ids)
        self._batch.forward(ids)
        self._yaw[ids], self.turned[ids] = yaw_of(self._qpos[ids, -4:]), 0.0
        self._history[ids] = self._frames(ids, rngs)[:, None]

    def _draw_physics(self, env: int, rng: np.random.Generator) -> None:
        """Draws the object, the actuators and the direction of gravity."""
        ranges, body, geom = self.ranges, self._body, self._geom
        size, mass, friction, gain = (r.draw(rng) for r in (ranges.size, ranges.mass, ranges.friction, ranges.gain))
        com = [ranges.com.draw(rng) for _ in range(3)]
        damping, tilt, direction = ranges.damping.draw(rng), ranges.tilt.draw(rng), rng.uniform(-np.pi, np.pi)
        shape = self.task.shapes[int(rng.integers(len(self.task.shapes)))]
        solid = solid_of(shape, size * np.array(self.hand.half_sizes))
        self._type[env, geom], self._size[env, geom], self._radius[env, geom] = solid.type, solid.size, solid.radius
        self._mass[env, body] = mass
        self._inertia[env, body] = mass * solid.inertia
        self._com[env, body] = com
        self._friction[env, geom, 0] = friction
        self._gain[env, :, 0] = gain * self.model.actuator_gainprm[:, 0]
        self._bias[env, :, 1] = gain * self.model.actuator_biasprm[:, 1]
        self._bias[env, :, 2] = damping * self.model.actuator_biasprm[:, 2]
        down = np.array([np.sin(tilt) * np.cos(direction), np.sin(tilt) * np.sin(direction), -np.cos(tilt)])
        self._gravity[env] = GRAVITY * down
        known = self.task.train  # one scale for all, so that held-out physics lie beyond it
        scalars = [known.size.centred(size), known.mass.centred(mass), known.friction.centred(friction)]
        actuators = [known.gain.centred(gain), known.damping.centred(damping)]
        kind = [float(shape == each) for each in SHAPES]
        self._physics[env] = [*scalars, *map(known.com.centred, com), *actuators, *down, *kind]

    def _draw_pose(self, env: int, rng: np.random.Generator) -> None:
        """Draws the joints and the object's place; the targets close the fingers around it."""
        spread, (x, y, z) = self.hand.yaw_spread, self.hand.origin
        pose = self.hand.pose + rng.uniform(-0.05, 0.05, NUM_JOINTS)
        yaw, place = rng.uniform(-spread, spread), (x, y) + rng.uniform(-0.003, 0.003, 2)
        self._qpos[env, :NUM_JOINTS] = self._start[env] = np.clip(pose, self._low, self._high)
        closed = pose + self.task.squeeze * np.array(self.hand.closing)
        self.targets[env] = np.clip(closed, self._low, self._high)
        self._qpos[env, NUM_JOINTS : NUM_JOINTS + 2] = place
        is_box = self._type[env, self._geom] == mujoco.mjtGeom.mjGEOM_BOX
        half_height = self._size[env, self._geom, 2 if is_box else 1]
        self._qpos[env, NUM_JOINTS + 2] = z + half_height + 0.001
        self._qpos[env, -4:] = [np.cos(yaw / 2.0), 0.0, 0.0, np.sin(yaw / 2.0)]

    def step(self, action: NDArray[np.floating], rngs: Sequence[np.random.Generator]) -> Outcome:
        """Moves the targets by action [N, 16] in [-1, 1], and simulates 0.05 s; noise and pushes are of `rngs` [N]."""
        target = self.targets + ACTION_SCALE * np.clip(action, -1.0, 1.0)
        self.targets[:] = np.clip(target, self._low, self._high)
        if self.task.push:
            self._push_objects(rngs)
        self._batch.step(nstep=SUBSTEPS)
        self._history[:, :-1] = self._history[:, 1:]
        self._history[:, -1] = self._frames(list(range(self.num_envs)), rngs)
        yaw = yaw_of(self._qpos[:, -4:])
        rotation = np.mod(yaw - self._yaw + np.pi, 2.0 * np.pi) - np.pi
        self._yaw[:] = yaw
        self.turned += rotation
        place, (_, x, y, _) = self._place(), self._qpos[:, -4:].T
        is_low = place[:, 2] < self.hand.min_height
        is_aside = np.hypot(place[:, 0], place[:, 1]) > self.hand.max_radius
        is_tilted = 1.0 - 2.0 * (x**2 + y**2) < self.hand.min_upright  # cosine of the tilt
        dropped = is_low | is_aside | is_tilted
        return Outcome(self._reward(rotation, dropped), dropped, rotation)

    def _push_objects(self, rngs: Sequence[np.random.Generator]) -> None:
        """Lets the last pushes fade, and begins new ones (HORA's `forceScale` and `randomForceProbScalar`)."""
        task = self.task
        self._push *= task.push_decay
        for env, rng in enumerate(rngs):
            if rng.random() < task.push_probability:
                self._push[env] = task.push * self._mass[env, self._body] * rng.standard_normal(3)

    def _reward(self, rotation: Array, dropped: NDArray[np.bool_]) -> Array:
        coef = self.task.rewards
        # Turning backwards costs all of its speed. With HORA's clip on that side too, rocking to and fro pays.
        speed = np.minimum(rotation / CONTROL_S, coef.max_speed)
        torque, joint_speed = self._force[:, :NUM_JOINTS], self._qvel[:, :NUM_JOINTS]
        moved = np.abs(self._qvel[:, NUM_JOINTS : NUM_JOINTS + 3]).sum(axis=1)
        bent = np.square(self._qpos[:, :NUM_JOINTS] - self._start).sum(axis=1)
        effort = coef.torque * np.square(torque).sum(axis=1)
        work = coef.work * np.abs((torque * joint_speed).sum(axis=1))
        reward: Array = speed - coef.linear * moved - coef.pose * bent - effort - work - coef.drop * dropped
        return reward

    def _place(self) -> Array:
        """Returns the object's centre relative to the origin [N, 3]."""
        place: Array = self._qpos[:, NUM_JOINTS : NUM_JOINTS + 3] - self.hand.origin
        return place

    def _frames(self, ids: list[int], rngs: Sequence[np.random.Generator]) -> Array:
        """Returns observed joint positions and targets [n, 32], -1 and 1 at the ends of each joint's range."""
        joints = self._qpos[ids, :NUM_JOINTS]
        if self.task.joint_noise:
            joints = joints + self.task.joint_noise * np.array([rng.standard_normal(NUM_JOINTS) for rng in rngs])
        both = np.concatenate((joints, self.targets[ids]), axis=1)
        low, high = np.tile(self._low, 2), np.tile(self._high, 2)
        frames: Array = 2.0 * (both - low) / (high - low) - 1.0
        return frames

    def get_state(self) -> dict[str, Array]:
        """Returns copies of everything that an episode or its start changes."""
        arrays = {name: array.copy() for name, array in self._episode_arrays().items()}
        return {"simulation": np.array(self._batch.state), **arrays}

    def set_state(self, state: dict[str, Array]) -> None:
        """Restores what `get_state` returned: the next steps are the same, bit for bit."""
        for name, array in self._episode_arrays().items():
            array[...] = state[name]
        self._batch.set_const(list(range(self.num_envs)))
        self._batch.state[...] = state["simulation"]

    def _episode_arrays(self) -> dict[str, Array]:
        physics = {"mass": self._mass, "inertia": self._inertia, "com": self._com, "friction": self._friction}
        solid = {"size": self._size, "type": self._type, "radius": self._radius, "gravity": self._gravity}
        own = {"physics": self._physics, "start": self._start, "history": self._history, "yaw": self._yaw}
        own |= {"turned": self.turned}
        return physics | solid | {"gain": self._gain, "bias": self._bias} | own

    def data_of(self, env: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Returns one hand as plain MuJoCo, to be rendered."""
        model, data = self._batch.get_model(env), self._batch.get_data(env)
        mujoco.mj_forward(model, data)
        return model, data

    def observe(self, groups: Iterable[str] = tuple(GROUPS)) -> dict[str, NDArray[np.float32]]:
        """Returns groups of the observation, [N, shape] each."""
        all_groups = {
            "obs": self._history[:, -OBS_FRAMES:].reshape(self.num_envs, -1),
            "privileged": np.concatenate((self._place() / PLACE_SCALE, self._physics), axis=1),
            "proprio_hist": self._history,
        }
        return {name: all_groups[name].astype(np.float32) for name in groups}


def yaw_of(quaternion: Array) -> Array:
    """Returns the rotation about the vertical of unit quaternions [..., 4]. -> [...]."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    yaw: Array = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y**2 + z**2))
    return yaw


class Solid(NamedTuple):
    """A shape of MuJoCo, of uniform density."""

    type: mujoco.mjtGeom
    size: Array  # [3] as `geom_size`
    radius: float  # of the sphere around it
    inertia: Array  # [3] per kg, about its axes


BLOCK = (1.15, 0.85, 1.0)  # half sizes of a block, relative to those of the cube


def solid_of(shape: str, half_sizes: Array) -> Solid:
    """Returns one of `SHAPES`, as wide as a cube of `half_sizes` [3]."""
    if shape == "cylinder":
        radius, half = (half_sizes[0] + half_sizes[1]) / 2.0, half_sizes[2]
        across = radius**2 / 4.0 + half**2 / 3.0
        inertia = np.array([across, across, radius**2 / 2.0])
        bound = float(np.hypot(radius, half))
        return Solid(mujoco.mjtGeom.mjGEOM_CYLINDER, np.array([radius, half, 0.0]), bound, inertia)
    half_sizes = half_sizes * BLOCK if shape == "block" else half_sizes
    squares = np.square(half_sizes)
    bound = float(np.sqrt(squares.sum()))
    return Solid(mujoco.mjtGeom.mjGEOM_BOX, half_sizes, bound, (squares.sum() - squares) / 3.0)
