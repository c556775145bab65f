"""N environments of one task as Gymnasium's vector environment, with its seeds, time limit, autoreset and infos."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from mujoco.batch import SimulationError
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array, Ids
from offpolicy.envs.batched.tasks import Info, Task
from offpolicy.envs.make import Env, creator_of
from offpolicy.envs.mujoco_state import model_digest
from offpolicy.envs.vectorization import task_of
from offpolicy.errors import EnvFailure
from offpolicy.types import Bool

_LOG = logging.getLogger(__name__)


class TaskVector(VectorEnv[Array, NDArray[Any], NDArray[Any]]):
    """`num_envs` environments of a task, with Gymnasium's NEXT_STEP autoreset.

    Numbers are those of `gymnasium.vector.SyncVectorEnv`; infos of a step say nothing of environments that it resets.
    Raises `EnvFailure` naming the environment where MuJoCo raises an error, the constructor `ValueError` for a model
    that a batch refuses.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "reset_mask": True}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self, env: Env, num_envs: int, num_threads: int) -> None:
        """`env` is one environment of the task as `gymnasium.make` makes it, not reset yet."""
        assert env.spec is not None
        self._name, limit = env.spec.id, env.spec.max_episode_steps
        self._limit = np.iinfo(np.int64).max if limit is None else limit
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, num_envs)
        self.action_space = batch_space(env.action_space, num_envs)
        self._task: Task = creator_of(task_of(env.spec))(env, num_envs, num_threads)
        self._rngs = [seeding.np_random()[0] for _ in range(num_envs)]  # random ones where no seed is given
        self._seeds: list[int | None] = [None] * num_envs
        self._age = np.zeros(num_envs, np.int64)  # [N] steps of the episode
        self._was_done = np.zeros(num_envs, np.bool_)  # [N] the last row ended an episode
        self._position = self._task.position()
        self._obs = np.zeros((num_envs, *(env.observation_space.shape or ())))
        self._warned: list[str] = []  # MuJoCo's warnings that have been logged

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, Info]:
        """Starts an episode everywhere, or only where `options["reset_mask"]` [N] is True; `seed`: one for each."""
        where = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        ids = np.flatnonzero(where)
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            for env in ids.tolist():
                self._seeds[env], self._rngs[env] = seeds[env], seeding.np_random(seeds[env])[0]
        self._start_episodes(ids)
        self._was_done = self._was_done & ~where
        # Of the others the last observations: after `set_state` the derived fields are not theirs until they step.
        self._obs = np.where(where[:, None], self._task.observe(), self._obs)
        return self._obs, self._task.state_info()

    def step(self, actions: NDArray[Any]) -> tuple[Array, Array, Bool, Bool, Info]:
        """One vector step; actions: [N, A]. Environments whose episode has ended begin the next one instead."""
        actions = np.ascontiguousarray(actions)  # sums of columns have other bits
        was_done = self._was_done
        is_resetting = bool(was_done.any())
        ids = np.flatnonzero(~was_done) if is_resetting else None
        self._simulate(actions, ids)
        position = self._task.position()
        reward, terminated, info = self._task.outcome(actions, position - self._position)
        self._position = position
        truncated = self._age >= self._limit
        if is_resetting:
            reward, terminated, truncated = (
                np.where(was_done, 0.0, reward),
                terminated & ~was_done,
                truncated & ~was_done,
            )
            self._start_episodes(np.flatnonzero(was_done))
        self._was_done = terminated | truncated
        self._obs = self._task.observe()
        return self._obs, reward, terminated, truncated, self._task.state_info() | info

    def _simulate(self, actions: NDArray[Any], ids: Ids | None) -> None:
        """Steps the environments `ids`, None for all, and logs what MuJoCo warns of."""
        where = slice(None) if ids is None else ids
        self._task.ctrl[where] = actions[where]
        self._age[where] += 1
        try:
            if ids is None or len(ids):
                self._task.step(ids)
        except SimulationError as error:
            raise self._failed("step", error, actions) from error
        for env, warning in self._task.new_warnings():
            if warning not in self._warned:
                self._warned.append(warning)
                _LOG.warning("%s: MuJoCo warns of %s, %s", self._named(env), warning, self._where(env, actions))

    def _start_episodes(self, ids: Ids) -> None:
        if not len(ids):
            return
        starts = [self._task.draw(self._rngs[env]) for env in ids.tolist()]
        self._age[ids] = 0
        try:
            self._task.start(ids, *map(np.stack, zip(*starts, strict=True)))
        except SimulationError as error:
            raise self._failed("reset", error, None) from error
        self._position[ids] = self._task.position()[ids]

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads and frees the simulations: nothing else may be called any more."""
        self.__dict__.pop("_task", None)

    def _named(self, env: int) -> str:
        return f"env {env} of {self.num_envs} ({self._name})"

    def _where(self, env: int, actions: NDArray[Any] | None) -> str:
        action = "none" if actions is None else np.array2string(actions[env], max_line_width=1000)
        return f"seed {self._seeds[env]}, episode step {self._age[env]}, last action {action}"

    def _failed(self, call: str, error: SimulationError, actions: NDArray[Any] | None) -> EnvFailure:
        first, *others = error.ids.tolist()
        also = f"\n(so did envs {others} in the same {call})" if others else ""
        reason, newline, rest = self._task.batch.error(first).partition("\n")
        head = f"{self._named(first)} failed in {call}: {self._where(first, actions)}: MuJoCo: {reason}"
        return EnvFailure(f"{head}{also}{newline}{rest}")

    def get_state(self) -> dict[str, Any]:
        """Returns everything, for an exact resume. Raises `ValueError` for a model whose state is not all there."""
        arrays = {"position": self._position, "obs": self._obs, "age": self._age, "was_done": self._was_done}
        return {
            "model": model_digest(self._task.model),
            "simulations": self._task.get_state(),
            "rngs": copy.deepcopy(self._rngs),
            "seeds": list(self._seeds),
            "warned": list(self._warned),
            **{name: array.copy() for name, array in arrays.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `get_state` returned. Raises `ValueError` for the state of another model."""
        if state["model"] != model_digest(self._task.model):
            raise ValueError("its MuJoCo model is another one, or was compiled by another version of mujoco")
        self._task.set_state(state["simulations"])
        self._rngs, self._seeds, self._warned = state["rngs"], state["seeds"], state["warned"]
        self._position, self._obs = state["position"], state["obs"]
        self._age, self._was_done = state["age"], state["was_done"]
