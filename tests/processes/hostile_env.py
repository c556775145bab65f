"""An environment whose state is hard to save: `env.id=tests.processes.hostile_env:Hostile-v0`.

All environments of a process share a generator, a list, an array and the closures over a counter, and keep views of the
array. Every observation depends on all of it, so a copy where there was one object shows within a step.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 6  # numbers of `obs`
NUM_PRIVILEGED = 3
LENGTH = 23  # steps of an episode
SHARED: dict[str, Any] = {}


def counters(start: float) -> tuple[Callable[[], None], Callable[[], float]]:
    """Two closures that share a cell."""

    def grow() -> None:
        nonlocal start
        start = (start + 0.125) % 1.0

    def read() -> float:
        return start

    return grow, read


class Hostile(gymnasium.Env[Any, Any]):
    """Draws, moves and forgets numbers through whichever of its names comes next; `has_groups`: observes a Dict."""

    def __init__(self, has_groups: bool = False) -> None:
        box = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        privileged = spaces.Box(-np.inf, np.inf, (NUM_PRIVILEGED,), np.float32)
        self.observation_space = spaces.Dict({"obs": box, "privileged": privileged}) if has_groups else box
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if not SHARED:
            SHARED.update(random=np.random.default_rng(3), log=[0.5], grid=np.zeros((4, 6)), counters=counters(0.0))
        self.has_groups = has_groups
        self.random, self.draw = SHARED["random"], SHARED["random"].normal  # a generator, and a method of it
        self.log, self.note = SHARED["log"], SHARED["log"].append
        self.grid = SHARED["grid"]
        self.column, self.turned, self.backwards = self.grid[:, 1], self.grid.T, self.grid[::-1, ::2]
        self.grow, self.read = SHARED["counters"]
        self.recent = collections.deque([self.log, self.column], maxlen=4)
        self.ring = [self.recent]
        self.ring.append(self.ring)  # type: ignore[arg-type]  # a cycle
        self.advance, self.t = self.forwards, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.column[:] = self.np_random.normal(size=4)
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.advance(np.asarray(action, np.float64))
        self.grow()
        self.note(float(self.draw()))
        if len(self.log) > 12:
            del self.log[::2]
        if self.random.random() < 0.2:
            self.advance = self.backwards_in_time if self.advance == self.forwards else self.forwards
        self.recent.append(self.grid[int(self.random.integers(4))])
        self.grid *= 0.9
        reward = float(self.read() + np.tanh(self.turned[1].sum()))
        return self.observed(), reward, self.t >= LENGTH, False, {}

    def forwards(self, action: Any) -> None:
        self.column[:2] += action
        self.recent[0][0] += 0.25  # whatever array or list that is by now

    def backwards_in_time(self, action: Any) -> None:
        self.backwards[1, :2] -= action
        self.log[0] *= 0.5

    def observed(self) -> Any:
        numbers = [self.read(), self.log[-1], sum(self.log) / 12, self.backwards.sum(), self.turned[1, 0], self.t / 23]
        obs = np.tanh(numbers).astype(np.float32)
        if not self.has_groups:
            return obs
        return {"obs": obs, "privileged": np.tanh([self.grid.sum(), self.log[0], self.column[2]]).astype(np.float32)}


gymnasium.register("Hostile-v0", Hostile)
