"""An environment whose every transition proves itself: `env.id=tests.chaos.chain_env:Chain-v0`.

Each number of a row follows from the others, exactly, in float32: a row that is torn, stale or mixed of two shows.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

OBS_DIM, ACTION_DIM = 4, 2
WIDTH = 2 * OBS_DIM + ACTION_DIM + 4  # obs, next_obs, action, reward, terminated, truncated, discount
UNIT = 64.0  # numbers are multiples of 1 / UNIT: exact in float32


class Chain(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """obs: seed, episode, step, and a mix of the three. The reward is half the last of obs, plus half the action."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        self._first, self._episode, self._step = 0, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._first = self._first if seed is None else seed % 64
        self._episode, self._step = self._episode + 1, 0
        return self._obs(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        reward = float(self._obs()[3] / 2 + np.float32(action[0]) / 2)
        self._step += 1
        return self._obs(), reward, self._step >= length_of(self._first), False, {}

    def _obs(self) -> NDArray[np.float32]:
        return observation(np.array([self._first]), np.array([self._episode]), np.array([self._step]))[0]


def length_of(first: Any) -> Any:  # Any: an integer or an array of them
    """Steps of an episode of the environment with this seed."""
    return 20 + first % 13


def observation(first: NDArray[Any], episode: NDArray[Any], step: NDArray[Any]) -> NDArray[np.float32]:
    """Observations [n, 4]."""
    mix = (first * 31 + episode * 17 + step * 7) % 64
    return (np.stack([first, episode % 256, step, mix], axis=1) / UNIT).astype(np.float32)


def wrong_rows(rows: NDArray[np.float32]) -> int:
    """How many of `rows` [n, 14] of one step each are not transitions of this environment."""
    obs, next_obs, action = rows[:, :4], rows[:, 4:8], rows[:, 8:10]
    reward, terminated = rows[:, 10], rows[:, 11]
    first, episode, step = (np.rint(obs[:, column] * UNIT).astype(np.int64) for column in range(3))
    # The episode counts modulo 256 and the mix modulo 64, so the one gives the other.
    is_right = (obs == observation(first, episode, step)).all(axis=1)
    is_right &= (next_obs == observation(first, episode, step + 1)).all(axis=1)
    is_right &= np.abs(reward - (obs[:, 3] / 2 + action[:, 0] / 2)) < 1e-6
    is_right &= terminated == (step + 1 >= length_of(first))
    return int((~is_right).sum())


gymnasium.register("Chain-v0", Chain)
