"""The task as Gymnasium environments: one hand, or many stepped together (`env.vectorization=mujoco`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from offpolicy.envs.hand import MAX_EPISODE_STEPS
from offpolicy.envs.hand.model import NUM_JOINTS, make_hand
from offpolicy.envs.hand.rotation import GROUPS, TASKS, HandRotations
from offpolicy.errors import ConfigError

Obs = dict[str, NDArray[np.float32]]
Info = dict[str, Any]

FRAMES_PER_S = 20
PICTURE = (480, 480)  # pixels


def action_space() -> spaces.Box:
    """Returns the space of actions: the move of each joint's target, -1 to 1."""
    return spaces.Box(-1.0, 1.0, (NUM_JOINTS,), np.float32)


def obs_space(groups: Sequence[str]) -> spaces.Dict:
    """Returns the chosen groups. Raises `ConfigError` for one that does not exist."""
    is_list = isinstance(groups, Sequence) and not isinstance(groups, str)
    if not is_list or not groups or any(name not in [*GROUPS] for name in groups):
        allowed = f"one or more of {', '.join(GROUPS)}, as a list such as [obs]"
        raise ConfigError(f"env.kwargs.groups: got {groups!r}, allowed {allowed}")
    return spaces.Dict({name: spaces.Box(-np.inf, np.inf, GROUPS[name], np.float32) for name in groups})


def simulated(task: str, physics: str, hand: str, num_envs: int, num_threads: int) -> HandRotations:
    """Returns the hands of a task by the names of the environment's options. Raises `ConfigError`."""
    if task not in [*TASKS]:  # a list, since what is given may have no hash
        raise ConfigError(f"env.kwargs.task: got {task!r}, allowed one of {', '.join(TASKS)}")
    ranges = {"train": TASKS[task].train, "held_out": TASKS[task].held_out}
    if physics not in [*ranges]:
        raise ConfigError(f"env.kwargs.physics: got {physics!r}, allowed one of {', '.join(ranges)}")
    return HandRotations(make_hand(hand, TASKS[task].palm_radius), num_envs, TASKS[task], ranges[physics], num_threads)


class HandRotation(gymnasium.Env[Obs, NDArray[np.float32]]):
    """One hand of the model `hand`, doing `task`.

    `groups` are the parts of the observation, `physics` the ranges an episode draws from. Raises `ConfigError`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_S}  # noqa: RUF012  # Gymnasium's own name

    def __init__(
        self,
        groups: Sequence[str] = tuple(GROUPS),
        physics: str = "train",
        num_threads: int = 1,
        hand: str = "four_finger",
        task: str = "rotation",
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.observation_space: spaces.Space[Any] = obs_space(groups)
        self.action_space: spaces.Space[Any] = action_space()
        self._groups, self._hands = groups, simulated(task, physics, hand, 1, num_threads)
        self._renderer: mujoco.Renderer | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._hands.reset([0], [self.np_random])
        self.close()  # the renderer draws the object of the episode that it was made in
        return self._obs(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Obs, float, bool, bool, Info]:
        outcome = self._hands.step(np.asarray(action)[None], [self.np_random])
        info = {"net_rotation": float(self._hands.turned[0])}
        return self._obs(), float(outcome.reward[0]), bool(outcome.dropped[0]), False, info

    def _obs(self) -> Obs:
        return {name: values[0] for name, values in self._hands.observe(self._groups).items()}

    def render(self) -> NDArray[np.uint8] | None:
        """Returns a picture [480, 480, 3] from above the hand, with render_mode=rgb_array."""
        if self.render_mode != "rgb_array":
            return None
        model, data = self._hands.data_of(0)
        if self._renderer is None:
            self._renderer = mujoco.Renderer(model, *PICTURE)
        self._renderer.update_scene(data, "view")
        picture: NDArray[np.uint8] = self._renderer.render()
        return picture

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def get_state(self) -> dict[str, Any]:
        """Returns everything but the generator, for an exact resume."""
        return self._hands.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self._hands.set_state(state)
        self.close()


class HandRotationVector(VectorEnv[Obs, NDArray[np.float32], NDArray[Any]]):
    """Many hands in one call, with Gymnasium's NEXT_STEP autoreset; `max_episode_steps` -1 is no limit."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "reset_mask": True}  # noqa: RUF012  # Gymnasium's own name

    def __init__(  # noqa: PLR0913  # the options of the environment
        self,
        num_envs: int = 1,
        groups: Sequence[str] = tuple(GROUPS),
        physics: str = "train",
        max_episode_steps: int = MAX_EPISODE_STEPS,
        num_threads: int = 1,
        hand: str = "four_finger",
        task: str = "rotation",
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = obs_space(groups), action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._groups, self._hands = groups, simulated(task, physics, hand, num_envs, num_threads)
        self._limit = np.iinfo(np.int64).max if max_episode_steps == -1 else max_episode_steps
        self._rngs = [np.random.default_rng() for _ in range(num_envs)]
        self._age = np.zeros(num_envs, np.int64)  # steps of the episode
        self._was_done = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        """Starts an episode everywhere, or only where `options["reset_mask"]` [N] is True."""
        seeds = [seed + env for env in range(self.num_envs)] if isinstance(seed, int | np.integer) else seed or []
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        for env, own in enumerate(seeds):
            if own is not None and mask[env]:
                self._rngs[env] = np.random.default_rng(own)
        self._start_episodes(np.flatnonzero(mask).tolist())
        return self._hands.observe(self._groups), {}

    def _start_episodes(self, ids: list[int]) -> None:
        self._hands.reset(ids, [self._rngs[env] for env in ids])
        self._age[ids], self._was_done[ids] = 0, False

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[Obs, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        was_done = self._was_done
        # A hand that begins an episode is simulated with the others, unseen: alone it would draw nothing.
        rngs = [np.random.default_rng(0) if done else own for done, own in zip(was_done, self._rngs, strict=True)]
        outcome = self._hands.step(actions, rngs)
        self._age += 1
        terminated = outcome.dropped & ~was_done
        truncated = (self._age >= self._limit) & ~was_done
        reward = np.where(was_done, 0.0, outcome.reward)
        if was_done.any():
            self._start_episodes(np.flatnonzero(was_done).tolist())
        self._was_done = terminated | truncated
        info = {"net_rotation": self._hands.turned.copy()}
        return self._hands.observe(self._groups), reward, terminated, truncated, info

    def get_state(self) -> dict[str, Any]:
        """Returns everything, for an exact resume."""
        own = {"age": self._age.copy(), "was_done": self._was_done.copy(), "rngs": copy.deepcopy(self._rngs)}
        return {"hands": self._hands.get_state(), **own}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self._hands.set_state(state["hands"])
        self._age, self._was_done, self._rngs = state["age"], state["was_done"], state["rngs"]
