"""The tasks that move in a plane: HalfCheetah, Hopper, Walker2d and Swimmer (Gymnasium v5)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array
from offpolicy.envs.batched.task import Info, Outcome, Task, is_between, length, squares
from offpolicy.types import Bool

MAX_VELOCITY = 10.0  # observed velocities of Hopper and Walker2d end here, in m/s and rad/s


class HalfCheetah(Task):
    """Runs forward; never terminates."""

    num_places: ClassVar[int] = 1  # first joints that hold where the robot is

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        return scale * rng.standard_normal(len(self.first.qvel))

    def position(self) -> Array:
        return self.sims.qpos[:, : self.num_places].copy()

    def observe(self) -> Array:
        skipped = self.num_places if self.params["exclude_current_positions_from_observation"] else 0
        return np.concatenate((self.sims.qpos[:, skipped:], self.velocities()), axis=1)

    def velocities(self) -> Array:
        """Returns the velocities as they are observed [N, nv]."""
        return self.sims.qvel

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        velocity = moved / self.dt
        forward = self.params["forward_reward_weight"] * velocity[:, 0]
        ctrl_cost = self.params["ctrl_cost_weight"] * squares(action)
        info: Info = {"x_velocity": velocity[:, 0], "reward_forward": forward, "reward_ctrl": -ctrl_cost}
        return Outcome(forward - ctrl_cost, self.never, info)

    def state_info(self) -> Info:
        return {"x_position": self.sims.qpos[:, 0].copy()}


class Swimmer(HalfCheetah):
    """Swims forward; never terminates."""

    num_places = 2

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        return rng.uniform(-scale, scale, len(self.first.qvel))

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        reward, terminated, info = super().outcome(action, moved)
        return Outcome(reward, terminated, {**info, "y_velocity": moved[:, 1] / self.dt})

    def state_info(self) -> Info:
        place = self.position()
        return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": length(place)}


class Walker2d(HalfCheetah):
    """Walks forward on two legs until it falls."""

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        return rng.uniform(-scale, scale, len(self.first.qvel))

    def velocities(self) -> Array:
        return np.clip(self.sims.qvel, -MAX_VELOCITY, MAX_VELOCITY)

    def is_healthy(self) -> Bool:
        """True where height and angle of the torso are inside their ranges. [N]."""
        height, angle = self.sims.qpos[:, 1], self.sims.qpos[:, 2]
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
        return {**super().state_info(), "z_distance_from_origin": self.sims.qpos[:, 1] - self.first.qpos[1]}


class Hopper(Walker2d):
    """Hops forward on one leg until it falls."""

    def is_healthy(self) -> Bool:
        low, high = self.params["healthy_state_range"]
        state = np.concatenate((self.sims.qpos[:, 2:], self.sims.qvel), axis=1)
        in_range: Bool = ((low < state) & (state < high)).all(axis=1)
        return in_range & super().is_healthy()
