"""An environment whose state cannot be saved exactly: `env.id=tests.processes.aliased_env:Aliased-v0`."""

from __future__ import annotations

import gymnasium
from gymnasium.envs.classic_control import PendulumEnv


class Aliased(PendulumEnv):
    """A pendulum with two names for one list."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[float] = []
        self.log = self.kept


gymnasium.register("Aliased-v0", Aliased, max_episode_steps=20)
