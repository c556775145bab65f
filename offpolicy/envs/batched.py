"""Environments that are many by themselves: Gymnasium's `vector_entry_point`, behind the contract of a vector of doors.

They step all their copies in one call, in this process. What a door says of one environment (its failure, its flattened
observation) is said here of all.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from offpolicy.config.schema import EnvConfig
from offpolicy.envs.env_adapter import MEASURE_KEY
from offpolicy.envs.make import failure_text, find_spec
from offpolicy.envs.spaces import Codec, describe
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Bool, Float32, Float64

KEY = "env.vectorization=mujoco"
RESET_MASK = "reset_mask"  # metadata: reset takes the option of this name, as Gymnasium's own vectors do


@runtime_checkable
class Stateful(Protocol):
    """A vector environment whose state can be taken and given back, exactly."""

    def observe(self) -> Any: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class NativeVector:
    """`num_envs` environments of `cfg.id`, stepped by one call of theirs.

    Raises `ConfigError` if there is no such vector environment, or it resets in another way than NEXT_STEP, and
    `EnvFailure` for what its constructor raises.
    """

    def __init__(self, cfg: EnvConfig, codec: Codec, num_envs: int) -> None:
        self._cfg, self._codec, self._num_envs = cfg, codec, num_envs
        self.env = _make(cfg, num_envs)
        space, actions = self.env.single_observation_space, self.env.single_action_space
        own = describe(space, actions, codec.spec.max_episode_steps)
        if own != codec:
            raise EnvFailure(f"the vector of {cfg.id} has other spaces: expected {codec.spec}, got {own.spec}")

    @property
    def begins_singly(self) -> bool:
        """Whether one environment can be reset while the others go on; a vector says so in its metadata."""
        return bool(self.env.metadata.get(RESET_MASK, False))

    def reset(self, *, seed: list[int | None], options: dict[str, Any] | None = None) -> tuple[Float32, dict[str, Any]]:
        """Observations [N, O], first ones but where `options["reset_mask"]` is False; each has a seed of its own."""
        try:
            obs, _ = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # Gymnasium's type leaves the list out
        except Exception as error:
            raise self._failure("reset", error) from error
        return self.flat(obs), {}

    def step(self, actions: NDArray[Any]) -> tuple[Float32, Float64, Bool, Bool, dict[str, Any]]:
        """One vector step; actions: [N, A]."""
        try:
            obs, reward, terminated, truncated, info = self.env.step(actions)
        except Exception as error:
            raise self._failure("step", error) from error
        ended = np.array(terminated) | np.array(truncated)
        told = {}
        if self._cfg.measure in info and ended.any():
            is_told = info.get(f"_{self._cfg.measure}", True)
            told = {MEASURE_KEY: info[self._cfg.measure], f"_{MEASURE_KEY}": ended & is_told}
        return self.flat(obs), np.asarray(reward, np.float64), np.array(terminated), np.array(truncated), told

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def flat(self, obs: Any) -> Float32:
        """Observations of the environment as vectors [N, O]."""
        flat = np.empty((self._num_envs, self._codec.spec.obs_dim), np.float32)
        for leaf in self._codec.leaves:
            part = obs
            for key in leaf.path:
                part = part[key]
            flat[:, leaf.start : leaf.stop] = np.asarray(part).reshape(self._num_envs, -1)
        return flat

    def _failure(self, call: str, error: Exception) -> EnvFailure:
        return EnvFailure(f"{self._num_envs} x {self._cfg.id} failed in {call}\n{failure_text(error)}")


def _make(cfg: EnvConfig, num_envs: int) -> VectorEnv[Any, Any, Any]:
    spec = find_spec(cfg.id)
    if spec.vector_entry_point is None:
        raise ConfigError(f"env.vectorization: got mujoco, allowed sync or async: {cfg.id} has no vector of its own")
    try:
        env = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **cfg.kwargs)
    except ConfigError:
        raise
    except Exception as error:
        told = f"creating {num_envs} x {cfg.id} with env.kwargs={cfg.kwargs} failed"
        raise EnvFailure(f"{told}\n{failure_text(error)}") from error
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        env.close()
        raise ConfigError(f"{KEY}: {cfg.id} resets by {env.metadata.get('autoreset_mode')}, allowed NEXT_STEP")
    return env
