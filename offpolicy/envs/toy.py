"""Small environments for trials and for timing: `env.id=offpolicy.envs.toy:PointMass-v0`.

Importing this module registers them, as Gymnasium's `module:EnvId` form expects; nothing else happens at import.
"""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offpolicy.types import Float32

Info = dict[str, Any]


class PointMass(gymnasium.Env[Float32, Float32]):
    """A point on a plane, pushed by a force, rewarded for being at the origin at rest; its start is random.

    obs [4]: position, velocity. action [2]: force in [-1, 1]. Ends when it leaves the square |x| < 3.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._state = np.zeros(4)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float32, Info]:
        super().reset(seed=seed)
        self._state = np.concatenate([self.np_random.uniform(-1.0, 1.0, 2), np.zeros(2)])
        return self._state.astype(np.float32), {}

    def step(self, action: Float32) -> tuple[Float32, float, bool, bool, Info]:
        position, velocity = self._state[:2], self._state[2:]
        velocity = 0.95 * velocity + 0.1 * np.clip(action, -1.0, 1.0)
        position = position + 0.1 * velocity
        self._state = np.concatenate([position, velocity])
        reward = -float(position @ position + 0.1 * velocity @ velocity + 0.01 * action @ action)
        return self._state.astype(np.float32), reward, bool(np.abs(position).max() >= 3.0), False, {}

    def get_state(self) -> dict[str, Any]:
        """Returns everything that the future depends on, except the generator."""
        return {"state": self._state.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `get_state`."""
        self._state = state["state"].copy()


class SlowStep(PointMass):
    """A point mass whose step takes `step_ms` longer and whose reset takes `reset_ms` longer, without using the CPU."""

    def __init__(self, step_ms: float = 1.0, reset_ms: float = 0.0) -> None:
        super().__init__()
        self._step_s = step_ms / 1000.0
        self._reset_s = reset_ms / 1000.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float32, Info]:
        threading.Event().wait(self._reset_s)
        return super().reset(seed=seed, options=options)

    def step(self, action: Float32) -> tuple[Float32, float, bool, bool, Info]:
        threading.Event().wait(self._step_s)
        return super().step(action)


for _name in ("PointMass", "SlowStep"):
    if f"{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{_name}-v0", f"{__name__}:{_name}", max_episode_steps=100)
