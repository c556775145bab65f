"""The tasks of a cart with a pole: InvertedPendulum and InvertedDoublePendulum (Gymnasium v5)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array, Simulations
from offpolicy.envs.batched.task import Outcome, Params, State, Task

MAX_ANGLE = 0.2  # rad; a pole that leans further has fallen
MIN_HEIGHT = 1.0  # m; a tip of two poles that is not higher has fallen
OBSERVED = 10.0  # observed velocities and forces end here


class InvertedPendulum(Task):
    """Balances one pole."""

    def observe(self) -> Array:
        return np.concatenate((self.sims.qpos, self.sims.qvel), axis=1)

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        obs = self.observe()
        terminated = ~np.isfinite(obs).all(axis=1) | (np.abs(obs[:, 1]) > MAX_ANGLE)
        survive = (~terminated).astype(np.int64)
        return Outcome(survive.astype(np.float64), terminated, {"reward_survive": survive})


class InvertedDoublePendulum(Task):
    """Balances a pole on a pole."""

    def __init__(self, sims: Simulations, start: State, dt: float, params: Params) -> None:
        super().__init__(sims, start, dt, params)
        self._tips, self._force = sims.bind("site_xpos"), sims.bind("qfrc_constraint")

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        return rng.standard_normal(len(self.first.qvel)) * scale

    def observe(self) -> Array:
        cart, angles = self.sims.qpos[:, :1], self.sims.qpos[:, 1:]
        speeds, force = np.clip(self.sims.qvel, -OBSERVED, OBSERVED), np.clip(self._force[:, :1], -OBSERVED, OBSERVED)
        return np.concatenate((cart, np.sin(angles), np.cos(angles), speeds, force), axis=1)

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        x, height = self._tips[:, 0, 0], self._tips[:, 0, 2]
        first, second = self.sims.qvel[:, 1], self.sims.qvel[:, 2]
        terminated = height <= MIN_HEIGHT
        # Gymnasium squares single numbers, by `pow`: the square of an array differs from it in the last bit.
        distance = 0.01 * np.float_power(x, 2) + np.float_power(height - 2, 2)
        speed = 1e-3 * np.float_power(first, 2) + 5e-3 * np.float_power(second, 2)
        alive = self.params["healthy_reward"] * (~terminated).astype(np.int64)
        info = {"reward_survive": alive, "distance_penalty": -distance, "velocity_penalty": -speed}
        return Outcome(alive - distance - speed, terminated, info)
