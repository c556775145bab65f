"""Gymnasium's MuJoCo tasks for N simulations at once: first states, observations, rewards and terminations.

Each subclass of `Task` is one of Gymnasium's v5 classes, formula by formula and in the same order of operations, so
that every number comes out with the same bits. Parameters have the names and defaults of Gymnasium's constructor. Ant
and Humanoid read contact forces, and all read places of bodies as the last substep left them.
"""

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import inspect
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array, Simulations
from offpolicy.envs.make import Env
from offpolicy.types import Bool

Info = dict[str, NDArray[Any]]

MAX_ANGLE = 0.2  # rad; a pole that leans further has fallen
MIN_HEIGHT = 1.0  # m; a tip of two poles that is not higher has fallen
OBSERVED = 10.0  # observed velocities and forces end here
MAX_SPEED = 0.005  # of a joint at the start, in rad/s
REACH = 0.2  # of Reacher's arm, in m
NUM_JOINTS = 7  # of Pusher's arm
PUSH_DISTANCE = 0.17  # smallest distance of Pusher's object from its goal at the start, in m
MAX_VELOCITY = 10.0  # observed velocities of Hopper and Walker2d end here, in m/s and rad/s


class State(NamedTuple):
    """Positions and velocities of one simulation."""

    qpos: Array  # [nq]
    qvel: Array  # [nv]


class Outcome(NamedTuple):
    """One step of N environments."""

    reward: Array  # [N]
    terminated: Bool  # [N]
    info: Info  # [N] each: what only a step reports, such as the parts of the reward


class Task(Simulations):
    """N environments of one task, without their random numbers and time limits."""

    has_normal_velocities: ClassVar[bool] = False  # the noise of the first ones; else it is uniform

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        """`env` is one environment of the task as `gymnasium.make` makes it, not reset yet."""
        one: Any = env.unwrapped  # Any: what Gymnasium's MuJoCo environments have is in no stub
        super().__init__(one.model, num_envs, num_threads)
        self.first = State(one.init_qpos.copy(), one.init_qvel.copy())  # what a reset adds its noise to
        self.dt, self.num_substeps = float(one.dt), int(one.frame_skip)  # time of an action in s, and its steps
        assert env.spec is not None
        parameters = inspect.signature(type(one)).parameters.values()  # those with a default, and what was given
        self.params = {p.name: p.default for p in parameters if p.default is not p.empty} | env.spec.kwargs
        self.never: Bool = np.zeros(num_envs, np.bool_)  # [N] terminations of a task that has none

    def draw(self, rng: np.random.Generator) -> State:
        """Returns the first state of an episode, noise included."""
        scale = self.params["reset_noise_scale"]
        qpos = self.first.qpos + rng.uniform(-scale, scale, len(self.first.qpos))
        count = len(self.first.qvel)
        noise = scale * rng.standard_normal(count) if self.has_normal_velocities else rng.uniform(-scale, scale, count)
        return State(qpos, self.first.qvel + noise)

    def position(self) -> Array:
        """Returns the place whose change is the velocity of the reward, in m [N, 0 to 2]."""
        return np.zeros((self.num_envs, 0))

    def observe(self) -> Array:
        """Returns the observations [N, O]."""
        raise NotImplementedError

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        """Returns rewards and terminations of a step. action: [N, A]; moved: change of `position` [N, ...]."""
        raise NotImplementedError

    def state_info(self) -> Info:
        """Returns what a reset and a step report alike, [N] each."""
        return {}


def squares(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Returns the sum of the squares of each environment's numbers [N, ...]. -> [N], in the same dtype."""
    total: NDArray[np.floating[Any]] = np.square(values).reshape(len(values), -1).sum(axis=1)
    return total


def length(vectors: Array) -> Array:
    """Returns the Euclidean length of vectors [N, 3]. -> [N]; by the dot product of `np.linalg.norm`, to the bit."""
    lengths: Array = np.sqrt(np.vecdot(vectors, vectors))
    return lengths


def is_between(values: Array, bounds: tuple[float, float]) -> Bool:
    """True where a value is inside an open interval. [N]."""
    low, high = bounds
    inside: Bool = (low < values) & (values < high)
    return inside


class InvertedPendulum(Task):
    """Balances one pole."""

    def observe(self) -> Array:
        return np.concatenate((self.qpos, self.qvel), axis=1)

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        obs = self.observe()
        terminated = ~np.isfinite(obs).all(axis=1) | (np.abs(obs[:, 1]) > MAX_ANGLE)
        survive = (~terminated).astype(np.int64)
        return Outcome(survive.astype(np.float64), terminated, {"reward_survive": survive})


class InvertedDoublePendulum(Task):
    """Balances a pole on a pole."""

    has_normal_velocities = True

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        super().__init__(env, num_envs, num_threads)
        self._tips, self._force = self.bind("site_xpos"), self.bind("qfrc_constraint")

    def observe(self) -> Array:
        cart, angles = self.qpos[:, :1], self.qpos[:, 1:]
        speeds, force = np.clip(self.qvel, -OBSERVED, OBSERVED), np.clip(self._force[:, :1], -OBSERVED, OBSERVED)
        return np.concatenate((cart, np.sin(angles), np.cos(angles), speeds, force), axis=1)

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        x, height = self._tips[:, 0, 0], self._tips[:, 0, 2]
        first, second = self.qvel[:, 1], self.qvel[:, 2]
        terminated = height <= MIN_HEIGHT
        # Gymnasium squares single numbers, by `pow`: the square of an array differs from it in the last bit.
        distance = 0.01 * np.float_power(x, 2) + np.float_power(height - 2, 2)
        speed = 1e-3 * np.float_power(first, 2) + 5e-3 * np.float_power(second, 2)
        alive = self.params["healthy_reward"] * (~terminated).astype(np.int64)
        info = {"reward_survive": alive, "distance_penalty": -distance, "velocity_penalty": -speed}
        return Outcome(alive - distance - speed, terminated, info)


class Reacher(Task):
    """Brings the tip of an arm of two joints to a target."""

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        super().__init__(env, num_envs, num_threads)
        self._places = self.bind("xpos")
        self._tip, self._target = (self.model.body(name).id for name in ("fingertip", "target"))

    def draw(self, rng: np.random.Generator) -> State:
        qpos = rng.uniform(-0.1, 0.1, len(self.first.qpos)) + self.first.qpos
        while np.linalg.norm(goal := rng.uniform(-REACH, REACH, 2)) >= REACH:
            pass
        qpos[-2:] = goal
        qvel = self.first.qvel + rng.uniform(-MAX_SPEED, MAX_SPEED, len(self.first.qvel))
        qvel[-2:] = 0.0
        return State(qpos, qvel)

    def _to_target(self) -> Array:
        gap: Array = self._places[:, self._tip] - self._places[:, self._target]
        return gap

    def observe(self) -> Array:
        qpos, angle = self.qpos, self.qpos[:, :2]
        return np.concatenate(
            (np.cos(angle), np.sin(angle), qpos[:, 2:], self.qvel[:, :2], self._to_target()[:, :2]), axis=1
        )

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        dist = -length(self._to_target()) * self.params["reward_dist_weight"]
        ctrl = -squares(action) * self.params["reward_control_weight"]
        return Outcome(dist + ctrl, self.never, {"reward_dist": dist, "reward_ctrl": ctrl})


class Pusher(Task):
    """Pushes an object to a goal with an arm of seven joints."""

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        super().__init__(env, num_envs, num_threads)
        self._places = self.bind("xpos")
        self._tip, self._object, self._goal = (self.model.body(name).id for name in ("tips_arm", "object", "goal"))

    def draw(self, rng: np.random.Generator) -> State:
        qpos = self.first.qpos.copy()
        while True:
            place = np.array([rng.uniform(-0.3, 0.0), rng.uniform(-0.2, 0.2)])
            if np.linalg.norm(place) > PUSH_DISTANCE:
                break
        qpos[-4:-2], qpos[-2:] = place, 0.0
        qvel = self.first.qvel + rng.uniform(-MAX_SPEED, MAX_SPEED, len(self.first.qvel))
        qvel[-4:] = 0.0
        return State(qpos, qvel)

    def observe(self) -> Array:
        joints, speeds = self.qpos[:, :NUM_JOINTS], self.qvel[:, :NUM_JOINTS]
        places = [self._places[:, body] for body in (self._tip, self._object, self._goal)]
        return np.concatenate((joints, speeds, *places), axis=1)

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        pushed = self._places[:, self._object]
        near = -length(pushed - self._places[:, self._tip]) * self.params["reward_near_weight"]
        dist = -length(pushed - self._places[:, self._goal]) * self.params["reward_dist_weight"]
        ctrl = -squares(action) * self.params["reward_control_weight"]
        return Outcome(dist + ctrl + near, self.never, {"reward_dist": dist, "reward_ctrl": ctrl, "reward_near": near})


class HalfCheetah(Task):
    """Runs forward; never terminates."""

    num_places: ClassVar[int] = 1  # first joints that hold where the robot is
    has_normal_velocities = True

    def position(self) -> Array:
        return self.qpos[:, : self.num_places].copy()

    def observe(self) -> Array:
        skipped = self.num_places if self.params["exclude_current_positions_from_observation"] else 0
        return np.concatenate((self.qpos[:, skipped:], self.velocities()), axis=1)

    def velocities(self) -> Array:
        """Returns the velocities as they are observed [N, nv]."""
        return self.qvel

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        velocity = moved / self.dt
        forward = self.params["forward_reward_weight"] * velocity[:, 0]
        ctrl_cost = self.params["ctrl_cost_weight"] * squares(action)
        info: Info = {"x_velocity": velocity[:, 0], "reward_forward": forward, "reward_ctrl": -ctrl_cost}
        return Outcome(forward - ctrl_cost, self.never, info)

    def state_info(self) -> Info:
        return {"x_position": self.qpos[:, 0].copy()}


class Swimmer(HalfCheetah):
    """Swims forward; never terminates."""

    num_places = 2
    has_normal_velocities = False

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        reward, terminated, info = super().outcome(action, moved)
        return Outcome(reward, terminated, {**info, "y_velocity": moved[:, 1] / self.dt})

    def state_info(self) -> Info:
        place = self.position()
        return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": length(place)}


class Walker2d(HalfCheetah):
    """Walks forward on two legs until it falls."""

    has_normal_velocities = False

    def velocities(self) -> Array:
        return np.clip(self.qvel, -MAX_VELOCITY, MAX_VELOCITY)

    def is_healthy(self) -> Bool:
        """True where height and angle of the torso are inside their ranges. [N]."""
        height, angle = self.qpos[:, 1], self.qpos[:, 2]
        return is_between(height, self.params["healthy_z_range"]) & is_between(
            angle, self.params["healthy_angle_range"]
        )

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        velocity, is_healthy = moved[:, 0] / self.dt, self.is_healthy()
        forward = self.params["forward_reward_weight"] * velocity
        survive = is_healthy * self.params["healthy_reward"]
        ctrl_cost = self.params["ctrl_cost_weight"] * squares(action)
        terminated = ~is_healthy if self.params["terminate_when_unhealthy"] else self.never
        info = {"x_velocity": velocity, "reward_forward": forward, "reward_ctrl": -ctrl_cost, "reward_survive": survive}
        return Outcome(forward + survive - ctrl_cost, terminated, info)

    def state_info(self) -> Info:
        return {**super().state_info(), "z_distance_from_origin": self.qpos[:, 1] - self.first.qpos[1]}


class Hopper(Walker2d):
    """Hops forward on one leg until it falls."""

    def is_healthy(self) -> Bool:
        low, high = self.params["healthy_state_range"]
        state = np.concatenate((self.qpos[:, 2:], self.qvel), axis=1)
        in_range: Bool = ((low < state) & (state < high)).all(axis=1)
        return in_range & super().is_healthy()


class Ant(Task):
    """Walks forward on four legs until it falls, or leaves the finite numbers."""

    has_contact_forces = True
    has_normal_velocities = True

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        super().__init__(env, num_envs, num_threads)
        self._places, self._body = self.bind("xpos"), self.model.body(self.params["main_body"]).id

    def position(self) -> Array:
        return self._places[:, self._body, :2].copy()

    def clipped_forces(self) -> Array:
        """Returns the contact forces within their range [N, bodies, 6]."""
        low, high = self.params["contact_force_range"]
        return np.clip(self.contact_forces, low, high)

    def observe(self) -> Array:
        skipped = 2 if self.params["exclude_current_positions_from_observation"] else 0
        parts = [self.qpos[:, skipped:], self.qvel]
        if self.params["include_cfrc_ext_in_observation"]:
            parts.append(_of_bodies(self.clipped_forces()))
        return np.concatenate(parts, axis=1)

    def is_healthy(self) -> Bool:
        """True where the state is finite and the torso's height in its range. [N]."""
        low, high = self.params["healthy_z_range"]
        height = self.qpos[:, 2]
        is_finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        healthy: Bool = is_finite & (low <= height) & (height <= high)
        return healthy

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        contact_cost = self.params["contact_cost_weight"] * squares(self.clipped_forces())
        return self._outcome(moved, self.params["ctrl_cost_weight"] * squares(action), contact_cost)

    def _outcome(self, moved: Array, ctrl_cost: NDArray[np.floating[Any]], contact_cost: Array) -> Outcome:
        velocity, is_healthy = moved / self.dt, self.is_healthy()
        forward = velocity[:, 0] * self.params["forward_reward_weight"]
        survive = is_healthy * self.params["healthy_reward"]
        terminated = ~is_healthy if self.params["terminate_when_unhealthy"] else self.never
        info: Info = {
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -ctrl_cost,
            "reward_contact": -contact_cost,
            "reward_survive": survive,
        }
        return Outcome(forward + survive - (ctrl_cost + contact_cost), terminated, info)

    def state_info(self) -> Info:
        place = self.qpos[:, :2].copy()
        return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": length(place)}


class Humanoid(Ant):
    """Walks forward on two legs until it falls; its place is its centre of mass."""

    has_normal_velocities = False

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        Task.__init__(self, env, num_envs, num_threads)
        self._centres = self.bind("xipos")
        self._inertia, self._velocity, self._force = map(self.bind, ("cinert", "cvel", "qfrc_actuator"))
        self._tendons = {"tendon_length": self.bind("ten_length"), "tendon_velocity": self.bind("ten_velocity")}

    def position(self) -> Array:
        mass = self.model.body_mass[:, None]
        # Not `einsum`, which rounds product and sum together where the processor can.
        centre: Array = np.sum(mass * self._centres, axis=1) / np.sum(mass)
        return centre[:, :2].copy()

    def observe(self) -> Array:
        params, skipped = self.params, 2 if self.params["exclude_current_positions_from_observation"] else 0
        parts = [self.qpos[:, skipped:], self.qvel]
        if params["include_cinert_in_observation"] is True:  # as Gymnasium: another truth is none
            parts.append(_of_bodies(self._inertia))
        if params["include_cvel_in_observation"] is True:
            parts.append(_of_bodies(self._velocity))
        if params["include_qfrc_actuator_in_observation"] is True:
            parts.append(self._force[:, 6:])
        if params["include_cfrc_ext_in_observation"] is True:
            parts.append(_of_bodies(self.contact_forces))
        return np.concatenate(parts, axis=1)

    def is_healthy(self) -> Bool:
        """True where the torso's height is in its range. [N]."""
        return is_between(self.qpos[:, 2], self.params["healthy_z_range"])

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        ctrl_cost = self.params["ctrl_cost_weight"] * squares(self.ctrl)
        contact_cost = self.params["contact_cost_weight"] * squares(self.contact_forces)
        return self._outcome(moved, ctrl_cost, np.clip(contact_cost, *self.params["contact_cost_range"]))

    def state_info(self) -> Info:
        return {**super().state_info(), **{name: values.copy() for name, values in self._tendons.items()}}


def _of_bodies(values: Array) -> Array:
    """Returns what belongs to each body [N, bodies, k] as one row, without the world's. -> [N, (bodies - 1) k]."""
    return values[:, 1:].reshape(len(values), -1)
