"""Tasks of UniLab (https://pypi.org/project/unilab, 1.5.2): `env.batch=offpolicy.envs.batches.unilab:UniLabBatch`.

Its simulators step on the host (mujoco) or on a device (mjwarp, genesis); both give torch tensors. The task resets by
itself and keeps final observations. The groups are UniLab's: `obs`, and `critic` where the task has one.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from offpolicy.envs.batch import BatchStep


class UniLabBatch:
    """The task of UniLab's configuration `algo`, such as `task=go2_joystick_flat`, in one of its simulators.

    `overrides` are of UniLab's configuration, such as `env.max_episode_seconds=10`.
    """

    autoreset, takes_ids, has_final_obs = AutoresetMode.SAME_STEP, False, True

    def __init__(
        self, num_envs: int, task: str, algo: str = "appo", simulator: str = "mujoco", overrides: Sequence[str] = ()
    ) -> None:
        hydra, unilab = importlib.import_module("hydra"), importlib.import_module("unilab")
        adapter = importlib.import_module("unilab.base.config_adapter")
        factory = importlib.import_module("unilab.base.env_factory")
        conf = str(Path(unilab.__path__[0]) / "conf" / algo)
        with hydra.initialize_config_dir(conf, version_base=None):
            cfg = hydra.compose("config", [f"task={task}/{simulator}", *overrides])
        own = adapter.EnvConfigAdapter(cfg, root_dir=Path.cwd(), algo_name=algo).build_task_env_cfg_override()
        self.env = factory.make_registry_env(cfg.training.task_name, simulator, num_envs, own)
        self.num_envs, self.device = num_envs, str(self.env.device)
        self.max_episode_steps: int | None = self.env.cfg.max_episode_steps
        self._terms = self.env.algo_capabilities.reward_component_names or ()
        widths: dict[str, int] = self.env.obs_groups_spec
        groups = {name: spaces.Box(-np.inf, np.inf, (width,)) for name, width in widths.items()}
        self.observation_space, self.action_space = spaces.Dict({**groups}), self.env.action_space

    def reset(self, ids: Any = None, seeds: Sequence[int] | None = None) -> Any:
        """Starts an episode everywhere. Returns the observations."""
        if seeds is not None:
            self.env.seed(seeds[0])
        self.env.init_state() if self.env.state is None else self.env.reset(None)
        return self.env.state.obs

    def step(self, actions: Any) -> BatchStep:
        """Steps all. `log` holds the mean of each of UniLab's reward terms."""
        state = self.env.step(actions)
        log = dict(state.info.get("log", {}))
        if (terms := state.info.get("reward_components")) is not None:
            log |= {f"reward/{name}": mean for name, mean in zip(self._terms, terms.mean(0), strict=True)}
        return BatchStep(state.obs, state.reward, state.terminated, state.truncated, state.final_observation, log)

    def close(self) -> None:
        """Closes the simulator."""
        self.env.close()
