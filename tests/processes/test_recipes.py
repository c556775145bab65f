"""Environments of other packages, as docs/environments.md shows them; skipped where the package is not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe
from tests.processes.conftest import StartRun

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(900)]

BROKEN_FROM = Version("3.12")  # MuJoCo with which the robots of gymnasium-robotics and metaworld are not constructed


class Recipe(NamedTuple):
    """An environment, and what is known of it."""

    env_id: str
    kwargs: dict[str, Any]
    obs_dim: int
    action_dim: int
    max_episode_steps: int
    obs_keys: tuple[str, ...] = ()
    needs_old_mujoco: bool = False

    def skip_without(self) -> None:
        """Skips the test where the environment cannot be constructed."""
        module = self.env_id.partition(":")[0]
        for name in (module, *NEEDS.get(module, ())):
            if importlib.util.find_spec(name) is None:
                pytest.skip(f"needs {name}")
        if self.needs_old_mujoco and Version(importlib.metadata.version("mujoco")) >= BROKEN_FROM:
            pytest.skip(f"needs mujoco<{BROKEN_FROM}")


NEEDS = {"shimmy": ("dm_control",)}
GOAL = ("achieved_goal", "desired_goal", "observation")
RECIPES = {
    "dm_control": Recipe(
        "shimmy:dm_control/cartpole-swingup-v0", {"max_episode_steps": 1000}, 5, 1, 1000, ("position", "velocity")
    ),
    "maze": Recipe("gymnasium_robotics:PointMaze_UMaze-v3", {}, 8, 2, 300, GOAL),
    "fetch": Recipe("gymnasium_robotics:FetchReach-v4", {}, 16, 4, 50, GOAL, needs_old_mujoco=True),
    "metaworld": Recipe(
        "metaworld:Meta-World/MT1", {"env_name": "reach-v3", "max_episode_steps": 500}, 39, 4, 500,
        needs_old_mujoco=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_an_environment_has_the_spaces_of_the_page_and_trains(name: str, start_run: StartRun) -> None:
    recipe = RECIPES[name]
    recipe.skip_without()
    spec = probe(EnvConfig(id=recipe.env_id, kwargs=recipe.kwargs)).spec
    assert (spec.obs_dim, spec.action_dim) == (recipe.obs_dim, recipe.action_dim)
    assert (spec.obs_keys, spec.max_episode_steps) == (recipe.obs_keys, recipe.max_episode_steps)
    kwargs = [f"env.kwargs.{key}={value}" for key, value in recipe.kwargs.items()]
    run = start_run(f"env.id={recipe.env_id}", *kwargs, "total_timesteps=1500", "eval.episodes=1")
    code, _, err = run.finish(120.0)
    assert code == 0, err
    assert run.records()[-1]["env_steps"] == 1500
    assert run.summary()["eval"]["episodes"] == 1
