"""Small environments for tests: `env.id=tests.toys:Counter-v0`; those of `offpolicy.envs.toy` are registered too."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offpolicy.envs.toy import PointMass  # the import registers its own too
from offpolicy.types import Float32

Info = dict[str, Any]
Array = NDArray[Any]


class Counter(gymnasium.Env[Array, Float32]):
    """Its observation is [first seed, step of the episode, episode], its reward the step.

    The episode is terminated at `terminate_at` and truncated at `truncate_at` (0: never). Environment i of a vector may
    end `stagger * (seed % 4)` steps later. `success` at the end is true in odd episodes, under the key `success_key` of
    the info; with `success_at` it is true at that step of them alone. A step takes `step_ms` longer.
    """

    def __init__(
        self,
        terminate_at: int = 0,
        truncate_at: int = 0,
        stagger: int = 0,
        success_key: str = "",
        step_ms: float = 0.0,
        success_at: int = 0,
    ) -> None:
        self.observation_space: spaces.Space[Array] = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._terminate_at = terminate_at
        self._truncate_at = truncate_at
        self._stagger = stagger
        self._success_key = success_key
        self._step_s = step_ms / 1000.0
        self._success_at = success_at
        self._seed = 0
        self._t = 0
        self._episode = -1

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._seed = self._seed if seed is None else seed % 4096
        self._t = 0
        self._episode += 1
        return self._obs(), {}

    def step(self, action: Float32) -> tuple[Array, float, bool, bool, Info]:
        threading.Event().wait(self._step_s)
        self._t += 1
        late = self._stagger * (self._seed % 4)
        terminated = self._terminate_at > 0 and self._t >= self._terminate_at + late
        truncated = self._truncate_at > 0 and self._t >= self._truncate_at + late
        is_success = self._episode % 2 == 1 and self._success_at in (0, self._t)
        info = {self._success_key: is_success} if self._success_key else {}
        return self._obs(), float(self._t), terminated, truncated, info

    def _obs(self) -> Array:
        return np.array([self._seed, self._t, self._episode], np.float64)


class UnpicklableError(Exception):
    """An exception that cannot leave its process."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Faulty(gymnasium.Env[Array, Float32]):
    """Fails on purpose: `fail` is the way, `at` the step of the episode, `only_seed` the one environment that fails."""

    FAILURES = (
        *("init_raise", "reset_raise", "step_raise", "unpicklable", "segv", "hang"),
        *("nan_obs", "inf_reward", "wrong_shape", "wrong_length", "wrong_reward"),
    )

    def __init__(self, fail: str = "step_raise", at: int = 3, only_seed: int | None = None) -> None:
        if fail not in self.FAILURES:
            raise ValueError(f"fail={fail!r}, allowed {', '.join(self.FAILURES)}")
        if fail == "init_raise":
            raise RuntimeError("fails in __init__")
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._fail = fail
        self._at = at
        self._only_seed = only_seed
        self._seed: int | None = None
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._seed = self._seed if seed is None else seed
        self._t = 0
        if self._fail == "reset_raise" and self._is_meant():
            raise RuntimeError("fails in reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Float32) -> Any:  # Any: a wrong result is one of its faults
        self._t += 1
        if self._t == self._at and self._is_meant():
            return self._fault()
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def _is_meant(self) -> bool:
        return self._only_seed is None or self._only_seed == self._seed

    def _fault(self) -> Any:
        """Raises or returns the fault."""
        good = np.zeros(2, np.float32)
        results: dict[str, Any] = {
            "nan_obs": (np.array([0.0, np.nan], np.float32), 0.0, False, False, {}),
            "inf_reward": (good, np.inf, False, False, {}),
            "wrong_shape": (np.zeros(3, np.float32), 0.0, False, False, {}),
            "wrong_length": (good, 0.0, False, {}),
            "wrong_reward": (good, "much", False, False, {}),
        }
        match self._fail:
            case "step_raise":
                raise ValueError("fails in step")
            case "unpicklable":
                raise UnpicklableError
            case "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                threading.Event().wait()
        return results.get(self._fail, (good, 0.0, False, False, {}))


class DictObs(gymnasium.Env[dict[str, Any], Float32]):
    """Nested Dict observations of several dtypes, whose numbers are their places in the flattened vector."""

    def __init__(self) -> None:
        inner = spaces.Dict(
            {"matrix": spaces.Box(-9.0, 99.0, (2, 2), np.float64), "count": spaces.Box(0, 99, (), np.int64)}
        )
        self.observation_space = spaces.Dict(
            {
                "zeta": spaces.Box(0, 255, (2,), np.uint8),
                "beta": inner,
                "alpha": spaces.Box(-9.0, 9.0, (1,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Any], Info]:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: Float32) -> tuple[dict[str, Any], float, bool, bool, Info]:
        self._t += 1
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> dict[str, Any]:
        matrix = np.array([[2.0, 3.0], [4.0, 5.0]])
        beta = {"matrix": matrix, "count": np.int64(self._t)}
        return {"zeta": np.array([6, 7], np.uint8), "beta": beta, "alpha": np.array([1.0], np.float32)}


class OddBounds(gymnasium.Env[Float32, Array]):
    """Bounds that differ per dimension and are not centred. Its observation is the action that it was given.

    `shape` is (2,) or, with `matrix`, (1, 2); `dtype` is that of the action space.
    """

    def __init__(self, matrix: bool = False, dtype: str = "float32") -> None:
        low, high = np.array([-2.0, 1.0], dtype), np.array([0.5, 3.1], dtype)
        shape = (1, 2) if matrix else (2,)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(low.reshape(shape), high.reshape(shape), dtype=np.dtype(dtype).type)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float32, Info]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Array) -> tuple[Float32, float, bool, bool, Info]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return action.reshape(-1).astype(np.float32), 0.0, False, False, {}


class HalfSeen(PointMass):
    """The point mass of `offpolicy.envs.toy` as a Dict: `actor` is its position, `critic` its velocity.

    Friction makes positions enough to act on, but an action moves the velocity first, which `critic` alone shows.
    `groups` are those that it observes.
    """

    def __init__(self, groups: tuple[str, ...] = ("actor", "critic")) -> None:
        super().__init__()
        half = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.groups = groups
        self.observation_space = spaces.Dict(dict.fromkeys(groups, half))  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        obs, info = super().reset(seed=seed)
        return self._parts(obs), info

    def step(self, action: Float32) -> Any:
        obs, *rest = super().step(action)
        return self._parts(obs), *rest

    def _parts(self, obs: Float32) -> dict[str, Float32]:
        return {name: part for name, part in (("actor", obs[:2]), ("critic", obs[2:])) if name in self.groups}


class DiscreteToy(gymnasium.Env[Float32, np.int64]):
    """Two actions: stay, or go; the episode ends after four goes."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 4.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._place = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float32, Info]:
        super().reset(seed=seed)
        self._place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[Float32, float, bool, bool, Info]:
        self._place += int(action)
        return np.array([self._place], np.float32), float(self._place == 4), self._place == 4, False, {}


class Locks(gymnasium.Env[Float32, NDArray[np.int64]]):
    """Two dials, of three and of two numbers, which must show what is observed."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 2.0, (2,), np.float32)
        self.action_space = spaces.MultiDiscrete([3, 2])
        self._wanted = np.zeros(2, np.int64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float32, Info]:
        super().reset(seed=seed)
        self._wanted = self.np_random.integers([3, 2])
        return self._wanted.astype(np.float32), {}

    def step(self, action: NDArray[np.int64]) -> tuple[Float32, float, bool, bool, Info]:
        reward = float((action == self._wanted).sum())
        self._wanted = self.np_random.integers([3, 2])
        return self._wanted.astype(np.float32), reward, False, False, {}


_TOYS: dict[str, tuple[Callable[..., gymnasium.Env[Any, Any]], int | None]] = {
    "Counter-v0": (Counter, None), "Faulty-v0": (Faulty, None), "DictObs-v0": (DictObs, 10),
    "OddBounds-v0": (OddBounds, 10), "HalfSeen-v0": (HalfSeen, 100), "DiscreteToy-v0": (DiscreteToy, 50),
    "Locks-v0": (Locks, 10),
}  # fmt: skip


for _env_id, (_env_class, _limit) in _TOYS.items():
    if _env_id not in gymnasium.registry:
        gymnasium.register(_env_id, _env_class, max_episode_steps=_limit)
