"""Any vector environment of Gymnasium: an id's `vector_entry_point`, or what a factory makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from offpolicy.envs.batch import BatchStep
from offpolicy.errors import ConfigError

RESET_MASK = "reset_mask"  # option of a vector's reset, and a claim in its metadata that it takes the option and seeds
FINAL_OBS = ("final_obs", "final_observation")  # info: of Gymnasium, and of others


class GymnasiumBatch:
    """`env` as a batch. Raises `ConfigError` where its metadata do not say how it resets.

    A vector of SAME_STEP has its final observations in `info["final_obs"]`, an array [N, ...] or an object for each.
    """

    device: str | None = None

    def __init__(self, env: VectorEnv[Any, Any, Any], max_episode_steps: int | None = None) -> None:
        self.env, self.num_envs, self.max_episode_steps = env, env.num_envs, max_episode_steps
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.autoreset = _autoreset(env.metadata.get("autoreset_mode"))
        self.takes_ids = self.autoreset is AutoresetMode.DISABLED or bool(env.metadata.get(RESET_MASK, False))
        self.has_final_obs = True  # the adapter refuses a step that has none

    def reset(self, ids: NDArray[np.intp] | None = None, seeds: Sequence[int] | None = None) -> Any:
        """Starts an episode in the environments `ids`, or in all. Returns the observations of all."""
        if ids is None and not self.takes_ids:
            return self.env.reset(seed=None if seeds is None else seeds[0])[0]
        where = np.ones(self.num_envs, np.bool_)
        if ids is not None:
            where[:] = False
            where[ids] = True
        each: list[int | None] = [None] * self.num_envs
        for env, seed in zip(np.flatnonzero(where).tolist(), seeds or (), strict=False):
            each[env] = seed
        given: Any = each  # Any: Gymnasium's type lacks the list
        return self.env.reset(seed=given, options={RESET_MASK: where})[0]

    def step(self, actions: NDArray[Any]) -> BatchStep:
        """Steps all."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        final_obs = None
        if self.autoreset is AutoresetMode.SAME_STEP and (done := terminated | truncated).any():
            final = next((info[name] for name in FINAL_OBS if name in info), None)
            final_obs = None if final is None else _filled(final, obs, np.flatnonzero(done).tolist())
        return BatchStep(obs, reward, terminated, truncated, final_obs, _log(info))

    def close(self) -> None:
        """Closes the environments."""
        self.env.close()


def _autoreset(mode: Any) -> AutoresetMode:
    """Returns the mode that metadata name, also by its text. Raises `ConfigError`."""
    for known in AutoresetMode:
        if mode in (known, known.value, known.name):
            return known
    allowed = ", ".join(known.name for known in AutoresetMode)
    raise ConfigError(f"autoreset_mode of the vector's metadata: got {mode!r}, allowed {allowed}")


def _filled(final: Any, obs: Any, ended: list[int]) -> Any:
    """Returns final observations as arrays [N, ...]; of the others, the present ones."""
    if isinstance(obs, Mapping):
        of_each = final if isinstance(final, Mapping) else None
        return {
            key: _filled([one and one[key] for one in final] if of_each is None else of_each[key], values, ended)
            for key, values in obs.items()
        }
    filled = np.array(obs)
    for env in ended:
        filled[env] = final[env]
    return filled


def _log(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of an info; SAME_STEP keeps those of episodes that have ended apart."""
    found, final = dict(info), info.get("final_info", {})
    for name, value in final.items():
        if name[0] == "_":
            found.setdefault(name, value)
        elif name in info and (has_ended := final.get(f"_{name}")) is not None:  # the others are in the info itself
            found[name] = np.where(has_ended, value, info[name])
            found[f"_{name}"] = has_ended | info.get(f"_{name}", False)
        else:
            found[name] = value
    numbers = {name: value for name, value in found.items() if not (name[0] == "_" or isinstance(value, Mapping))}
    for name, value in numbers.items():
        if (has_value := found.get(f"_{name}")) is not None and np.asarray(value).dtype.kind in "fiub":
            numbers[name] = np.where(has_value, value, np.nan)
    return numbers
