"""Tasks of mjlab (https://pypi.org/project/mjlab, 1.6.0): `env.batch=offpolicy.envs.batches.mjlab:MjlabBatch`.

The task is made with `auto_reset=False`: a step then returns the observation in which an episode ended, and finished
environments are reset by their numbers. mjlab returns the same reward buffer in every step.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from offpolicy.envs.batch import BatchStep


class MjlabBatch:
    """The task of an id such as `task=Mjlab-Cartpole-Balance`, on a device that torch names. It has no action bounds.

    `modules` are imported first: those that register tasks of one's own. `seed` draws what a task makes random once, at
    its construction, such as friction; `reset` seeds the rest.
    """

    autoreset, takes_ids, has_final_obs = AutoresetMode.DISABLED, True, True

    def __init__(
        self, num_envs: int, task: str, device: str = "cpu", modules: Sequence[str] = ("mjlab.tasks",), seed: int = 0
    ) -> None:
        for module in modules:
            importlib.import_module(module)
        cfg = importlib.import_module("mjlab.tasks.registry").load_env_cfg(task)
        cfg.scene.num_envs, cfg.auto_reset, cfg.seed = num_envs, False, seed
        self.env = importlib.import_module("mjlab.envs").ManagerBasedRlEnv(cfg, device=device)
        self._obs: Mapping[str, Any] = {}  # of the newest step or reset
        self.num_envs, self.device, self.max_episode_steps = num_envs, str(device), int(self.env.max_episode_length)
        groups = {name: space.shape for name, space in self.env.single_observation_space.spaces.items()}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-np.inf, np.inf, shape) for name, shape in groups.items()}
        )
        self.action_space = spaces.Box(-np.inf, np.inf, self.env.single_action_space.shape)

    def reset(self, ids: Any = None, seeds: Sequence[int] | None = None) -> Any:
        """Starts an episode in the environments `ids`, or in all. Returns the observations of all."""
        obs = self.env.reset(seed=None if seeds is None else seeds[0], env_ids=ids)[0]
        if ids is not None:  # mjlab draws the noise of the others again
            obs = {name: kept.index_copy(0, ids, obs[name][ids]) for name, kept in self._obs.items()}
        self._obs = obs
        return obs

    def step(self, actions: Any) -> BatchStep:
        """Steps all. `log` holds mjlab's numbers."""
        self._obs, reward, terminated, truncated, extras = self.env.step(actions)
        return BatchStep(self._obs, reward, terminated, truncated, log=extras.get("log", {}))

    def close(self) -> None:
        """Closes the simulator."""
        self.env.close()
