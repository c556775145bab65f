"""EnvPool's environments, stepped by its C++ threads (`env.vectorization=envpool`).

Needs the extra `envpool`. EnvPool has its own environments under Gymnasium's ids: numbers differ in their last digits,
and more along an episode. Evaluations use Gymnasium's.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from offpolicy.envs.make import NO_LIMIT, Env
from offpolicy.errors import ConfigError

# Options of a pool that are no property of a task: they are given by the constructor below, or are EnvPool's own.
_OWN = {"num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path"} | {
    "seed", "env_seed", "gym_reset_return_info"
}  # fmt: skip


def require_envpool(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Raises `ConfigError` where EnvPool is not installed, has no environment of that id, or none of such kwargs."""
    head = "env.vectorization: got envpool"
    if importlib.util.find_spec("envpool") is None:
        raise ConfigError(f"{head}, which is not installed; type pip install 'offpolicy[envpool]'")
    if env_id not in _envpool().list_all_envs():
        raise ConfigError(f"{head}, allowed auto, sync or async: it has no {env_id}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = [name for name in _envpool().make_spec(env_id).config._fields if name not in _OWN]
    if unknown := sorted(set(kwargs) - set(known)):
        raise ConfigError(f"env.kwargs: got {', '.join(unknown)}, allowed with {env_id} of envpool: {', '.join(known)}")


class Pool(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """`num_envs` environments of EnvPool, stepped by `num_threads` threads, with its NEXT_STEP autoreset.

    EnvPool takes seeds in its constructor alone, so a reset with seeds begins a new pool. Environment i has the same
    episodes with the same seed and actions, whatever the others and the number of threads.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self, first: Env, num_envs: int, num_threads: int, kwargs: Mapping[str, Any]) -> None:
        """`first` is one environment of the task as Gymnasium has it. Raises `ConfigError` as `require_envpool`."""
        assert first.spec is not None
        self._id, self.num_envs, self._num_threads = first.spec.id, num_envs, num_threads
        require_envpool(self._id, kwargs)
        limit = first.spec.max_episode_steps  # that of `kwargs`, if they have one
        self._kwargs = {**kwargs, "max_episode_steps": NO_LIMIT if limit is None else limit}
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._pool: Any = None  # Any: its class is made at run time
        self._begin(range(num_envs))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts an episode everywhere; `seed`: one per environment."""
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            self._begin([each for each in seeds if each is not None])
        result: tuple[NDArray[Any], dict[str, Any]] = self._pool.reset()
        return result

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One vector step; actions: [N, A], or the numbers [N] of discrete ones."""
        obs, reward, terminated, truncated, info = self._pool.step(actions.astype(self._action_dtype, copy=False))
        return obs, reward, terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads."""
        self._pool = None

    def _begin(self, seeds: Sequence[int]) -> None:
        """Makes a new pool."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the precision of its bounds: Gymnasium's are used
            self._pool = _envpool().make(
                self._id, env_type="gymnasium", num_envs=self.num_envs, num_threads=self._num_threads,
                seed=list(seeds), **self._kwargs,
            )  # fmt: skip
            self._action_dtype = self._pool.single_action_space.dtype


def _envpool() -> Any:  # Any: it is optional, and typed loosely
    return importlib.import_module("envpool")
