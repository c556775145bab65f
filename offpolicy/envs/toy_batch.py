"""The point masses of `offpolicy/envs/toy.py` as one batch: `env.batch=offpolicy.envs.toy_batch:PointMasses`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from offpolicy.envs.batch import BatchStep


class PointMasses:
    """Tensors on `device`, or NumPy arrays of the host where that is None.

    It resets by itself (SAME_STEP), after `limit` steps too, and keeps the final observations.
    """

    autoreset, takes_ids, has_final_obs = AutoresetMode.SAME_STEP, False, True
    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, num_envs: int, device: str | None = None, limit: int = 100) -> None:
        self.num_envs, self.device, self.max_episode_steps = num_envs, device, limit
        self._generator = torch.Generator(device or "cpu")
        self._state = torch.zeros(num_envs, 4, device=device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def reset(self, ids: Any = None, seeds: Sequence[int] | None = None) -> Any:
        """Starts an episode everywhere. Returns the observations [N, 4]."""
        if seeds is not None:
            self._generator.manual_seed(seeds[0])
        self._state, self._steps = self._first(), torch.zeros_like(self._steps)
        return self._own(self._state)

    def step(self, actions: Any) -> BatchStep:
        """Steps all. actions: [N, 2]."""
        action = torch.as_tensor(actions).clamp(-1.0, 1.0)
        position, velocity = self._state[:, :2], self._state[:, 2:]
        velocity = 0.95 * velocity + 0.1 * action
        position = position + 0.1 * velocity
        reward = -(position.square() + 0.1 * velocity.square() + 0.01 * action.square()).sum(1)
        self._steps = self._steps + 1
        terminated, truncated = position.abs().amax(1) >= 3.0, self._steps >= self.max_episode_steps
        done, final = terminated | truncated, torch.cat([position, velocity], 1)
        self._state = torch.where(done[:, None], self._first(), final)
        self._steps = torch.where(done, 0, self._steps)
        log = {"distance": position.norm(dim=1).mean()}
        step = BatchStep(*map(self._own, (self._state, reward, terminated, truncated, final)))
        return step._replace(log=log)

    def close(self) -> None:
        """Holds nothing that must be freed."""

    def _first(self) -> torch.Tensor:
        places = 2.0 * torch.rand(self.num_envs, 2, generator=self._generator, device=self.device) - 1.0
        return torch.cat([places, torch.zeros_like(places)], 1)

    def _own(self, values: torch.Tensor) -> Any:
        return values.numpy() if self.device is None else values
