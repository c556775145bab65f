"""Environments whose slots are numbered: `env.batch=tests.processes.numbered:Numbered`. `lives` proves them whole."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from offpolicy.envs.batch import BatchStep

# Columns of a slot. Those of an observation count in units that a float32 holds exactly, and are below 1.
LIFE, ENV, NUMBER, TIME, LAST_ACTION, ACTION, REWARD, CODE = 0, 1, 2, 3, 4, 5, 6, 8
WIDTH = 9
UNITS = 2.0 ** np.array([22, 10, 24, 22])
EPISODE = 50  # steps of the first environment's episodes; a few more of the others'
TICK_S, ROUND_S = 2.0**-10, 4096.0  # the time is counted in ticks, in a round of about an hour


class Numbered:
    """obs [5]: process, environment, vector step, time, last action. The reward is a checksum of the first three.

    A vector step takes `step_ms`, in which all environments sleep at the same time.
    """

    device, takes_ids, has_final_obs, max_episode_steps = None, False, True, None
    autoreset = AutoresetMode.NEXT_STEP
    observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, num_envs: int, step_ms: float = 0.0) -> None:
        self.num_envs, self._step_s, self._number = num_envs, step_ms / 1000.0, 0

    def reset(self, ids: Any = None, seeds: Sequence[int] | None = None) -> Any:
        self._number = 0
        return self._obs(np.zeros(self.num_envs))

    def step(self, actions: Any) -> BatchStep:
        reward = checksum(self._counts()[:, :3])
        threading.Event().wait(self._step_s)
        self._number += 1
        done = is_final(np.full(self.num_envs, self._number), np.arange(self.num_envs))
        return BatchStep(self._obs(actions[:, 0]), reward, done & False, done)

    def close(self) -> None:
        """Holds nothing that must be freed."""

    def _counts(self) -> NDArray[np.int64]:
        env, ticks = np.arange(self.num_envs), int(time.time() % ROUND_S / TICK_S)
        return np.stack(np.broadcast_arrays(os.getpid(), env, self._number, ticks), axis=1)

    def _obs(self, action: Any) -> Any:
        return np.concatenate([self._counts() / UNITS, action[:, None]], axis=1).astype(np.float32)


def checksum(counts: Any) -> Any:
    """Returns a number below 1 for process, environment and vector step [n, 3], which a float32 holds exactly."""
    return (counts.astype(np.int64) @ np.array([7, 131, 8191])) % 65_521 / 65_536


def is_final(number: Any, env: Any) -> Any:
    """True where an episode ends: the observation is the final one, and the step after it begins another one."""
    return number % (EPISODE + env % 7) == EPISODE + env % 7 - 1


def lives(slots: NDArray[np.float32], num_envs: int) -> list[NDArray[np.float64]]:
    """Returns the times [n, N], in seconds, of the vector steps of each actor that wrote into a ring, in turn.

    Fails unless all that each one wrote is there once, in order and whole, from its first vector step on.
    """
    steps = slots.reshape(-1, num_envs, WIDTH)
    counts = np.rint(steps[:, :, : len(UNITS)].astype(np.float64) * UNITS).astype(np.int64)
    begins = [*np.flatnonzero(counts[:, 0, NUMBER] == 0).tolist(), len(steps)]
    assert begins[0] == 0
    for begin, end in zip(begins, begins[1:], strict=False):
        life, own = counts[begin:end], steps[begin:end]
        numbers, env = np.arange(end - begin)[:, None], np.arange(num_envs)
        assert (life[:, :, LIFE] == life[0, 0, LIFE]).all()
        assert (life[:, :, ENV] == env).all()
        assert (life[:, :, NUMBER] == numbers).all()
        is_stored = own.view(np.uint32)[:, :, CODE] != 0
        is_cut = not is_stored[-1].any()  # the last step was lost with its actor
        assert is_cut or end == len(steps)
        assert (is_stored == ~(is_final(numbers, env) | (is_cut & (numbers == end - begin - 1)))).all()
        assert (own[:, :, REWARD] == checksum(life[:, :, :3]))[is_stored].all()
        assert (own[:-1, :, ACTION] == own[1:, :, LAST_ACTION])[is_stored[:-1]].all()
    return [counts[begin:end, :, TIME] * TICK_S for begin, end in zip(begins, begins[1:], strict=False)]
