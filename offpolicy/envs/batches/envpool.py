"""EnvPool (https://pypi.org/project/envpool, 1.2.5): `env.batch=offpolicy.envs.batches.envpool:EnvPoolBatch`.

Its C++ threads step its environments, which have Gymnasium's ids: numbers differ from Gymnasium's in their last digits,
and more along an episode.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from offpolicy.envs.batch import BatchStep
from offpolicy.errors import ConfigError

NO_LIMIT = 2**31 - 1  # EnvPool's max_episode_steps of a task without a time limit
NOT_LOGGED = ("env_id", "players", "elapsed_step")  # of EnvPool's infos


class EnvPoolBatch:
    """The environments of an id such as `task=Pendulum-v1`; `options` are EnvPool's, such as `max_episode_steps`.

    EnvPool takes seeds where it makes a pool, so a reset with seeds makes a new one. An environment has the same
    episodes with the same seed and actions, whatever the others and `num_threads`. Raises `ConfigError` for a task that
    EnvPool does not have.
    """

    device: str | None = None
    autoreset, takes_ids, has_final_obs = AutoresetMode.NEXT_STEP, False, True

    def __init__(self, num_envs: int, task: str, num_threads: int = 1, **options: Any) -> None:
        envpool = importlib.import_module("envpool")
        if task not in envpool.list_all_envs():
            raise ConfigError(f"env.kwargs.task: got {task!r}, allowed one of envpool.list_all_envs()")
        sizes = {"num_envs": num_envs, "num_threads": num_threads}
        self._make = functools.partial(envpool.make, task, env_type="gymnasium", **sizes, **options)
        self._pool: Any = None
        with warnings.catch_warnings(action="ignore"):  # of bounds that float32 does not hold
            spec = envpool.make_spec(task, **sizes, **options)
            self.observation_space, self.action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        limit = spec.config.max_episode_steps
        self.num_envs, self.max_episode_steps = num_envs, None if limit == NO_LIMIT else limit

    def reset(self, ids: Any = None, seeds: Sequence[int] | None = None) -> Any:
        """Starts an episode everywhere. Returns the observations."""
        with warnings.catch_warnings(action="ignore"):
            if seeds is not None or self._pool is None:
                self._pool = self._make(**({} if seeds is None else {"seed": list(seeds)}))
            return self._pool.reset()[0]

    def step(self, actions: NDArray[Any]) -> BatchStep:
        """Steps all. `log` holds the numbers [N] of EnvPool's infos, for `env.measure`."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        log = {name: values for name, values in info.items() if name not in NOT_LOGGED}
        return BatchStep(obs, reward, terminated, truncated, log=log)

    def close(self) -> None:
        """Ends the threads."""
        self._pool = None
