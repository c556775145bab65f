"""The tasks that walk in space and feel the ground: Ant and Humanoid (Gymnasium v5).

Both read contact forces, and places of bodies as the last substep left them.
"""

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array, Simulations
from offpolicy.envs.batched.task import Info, Outcome, Params, State, Task, is_between, length, squares
from offpolicy.types import Bool


class Ant(Task):
    """Walks forward on four legs until it falls, or leaves the finite numbers."""

    has_contact_forces = True

    def __init__(self, sims: Simulations, start: State, dt: float, params: Params) -> None:
        super().__init__(sims, start, dt, params)
        self._places, self._body = sims.bind("xpos"), sims.model.body(params["main_body"]).id

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        return scale * rng.standard_normal(len(self.first.qvel))

    def position(self) -> Array:
        return self._places[:, self._body, :2].copy()

    def contact_forces(self) -> Array:
        """Returns the contact forces within their range [N, bodies, 6]."""
        return np.clip(self.sims.contact_forces, *self.params["contact_force_range"])

    def observe(self) -> Array:
        skipped = 2 if self.params["exclude_current_positions_from_observation"] else 0
        parts = [self.sims.qpos[:, skipped:], self.sims.qvel]
        if self.params["include_cfrc_ext_in_observation"]:
            parts.append(_of_bodies(self.contact_forces()))
        return np.concatenate(parts, axis=1)

    def is_healthy(self) -> Bool:
        """True where the state is finite and the torso's height in its range. [N]."""
        low, high = self.params["healthy_z_range"]
        height = self.sims.qpos[:, 2]
        is_finite = np.isfinite(self.sims.qpos).all(axis=1) & np.isfinite(self.sims.qvel).all(axis=1)
        healthy: Bool = is_finite & (low <= height) & (height <= high)
        return healthy

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        contact_cost = self.params["contact_cost_weight"] * squares(self.contact_forces())
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
        place = self.sims.qpos[:, :2].copy()
        return {"x_position": place[:, 0], "y_position": place[:, 1], "distance_from_origin": length(place)}


class Humanoid(Ant):
    """Walks forward on two legs until it falls; its place is its centre of mass."""

    def __init__(self, sims: Simulations, start: State, dt: float, params: Params) -> None:
        Task.__init__(self, sims, start, dt, params)
        self._centres = sims.bind("xipos")
        self._inertia, self._velocity, self._force = map(sims.bind, ("cinert", "cvel", "qfrc_actuator"))
        self._tendons = {"tendon_length": sims.bind("ten_length"), "tendon_velocity": sims.bind("ten_velocity")}

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        return rng.uniform(-scale, scale, len(self.first.qvel))

    def position(self) -> Array:
        mass = self.sims.model.body_mass[:, None]
        # Not `einsum`, which rounds product and sum together where the processor can.
        centre: Array = np.sum(mass * self._centres, axis=1) / np.sum(mass)
        return centre[:, :2].copy()

    def observe(self) -> Array:
        params, skipped = self.params, 2 if self.params["exclude_current_positions_from_observation"] else 0
        parts = [self.sims.qpos[:, skipped:], self.sims.qvel]
        if params["include_cinert_in_observation"] is True:  # as Gymnasium: another truth is none
            parts.append(_of_bodies(self._inertia))
        if params["include_cvel_in_observation"] is True:
            parts.append(_of_bodies(self._velocity))
        if params["include_qfrc_actuator_in_observation"] is True:
            parts.append(self._force[:, 6:])
        if params["include_cfrc_ext_in_observation"] is True:
            parts.append(_of_bodies(self.sims.contact_forces))
        return np.concatenate(parts, axis=1)

    def is_healthy(self) -> Bool:
        """True where the torso's height is in its range. [N]."""
        return is_between(self.sims.qpos[:, 2], self.params["healthy_z_range"])

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        ctrl_cost = self.params["ctrl_cost_weight"] * squares(self.sims.ctrl)
        contact_cost = self.params["contact_cost_weight"] * squares(self.sims.contact_forces)
        return self._outcome(moved, ctrl_cost, np.clip(contact_cost, *self.params["contact_cost_range"]))

    def state_info(self) -> Info:
        return {**super().state_info(), **{name: values.copy() for name, values in self._tendons.items()}}


def _of_bodies(values: Array) -> Array:
    """Returns what belongs to each body [N, bodies, k] as one row, without the world's. -> [N, (bodies - 1) k]."""
    return values[:, 1:].reshape(len(values), -1)
