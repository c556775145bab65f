"""A batch as the collectors step it: what it returns as arrays of the host, whatever it does where an episode ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import Batch, Obs
from offpolicy.envs.env_adapter import SUCCESS_NAMES, VectorAdapter, close_env, codec_of, measured
from offpolicy.envs.make import cause_of, failure_text
from offpolicy.envs.spaces import Codec, as_array, env_actions, flatten
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Bool, Float32, Float64, StepOutcome

T = TypeVar("T")


class BatchAdapter(VectorAdapter):
    """The environments of one batch. `open_batch` makes it, and makes it again for `renew`."""

    def __init__(
        self,
        cfg: EnvConfig,
        num_envs: int,
        on_progress: Callable[[], object] = lambda: None,
        *,
        open_batch: Callable[[], Batch],
    ) -> None:
        """Raises as `open_batch`, and `ConfigError` for a batch whose spaces or final observations are refused."""
        self._open_batch = open_batch
        on_progress()
        self.batch = open_batch()
        try:
            codec = _codec_of(cfg, self.batch)
        except ConfigError:
            self.batch.close()
            raise
        super().__init__(cfg, codec, num_envs, on_progress)
        self.can_reset_some, self.device = self.batch.takes_ids, self.batch.device

    def renew(self) -> None:
        """Replaces the environments by new ones of the same configuration, to be reset. Raises as `open_batch`."""
        self.close()
        self.on_progress()
        self.batch = self._open_batch()
        self.was_done[:] = False

    def begin(self, seeds: Sequence[int], where: Bool) -> Float32:
        """Starts an episode with its seed `where` [N]. Returns obs [N, O] of all."""
        ids = None if where.all() else np.flatnonzero(where)
        given = [seeds[index] for index in range(self.num_envs) if where[index]]
        obs = self._call("reset", lambda: self._flat(self._reset(ids, given)))
        self.was_done = self.was_done & ~where
        self.best_success[where] = np.nan
        return obs

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        actions = env_actions(self.codec, self.to_env(action))
        return self._call("step", lambda: self._outcome(actions))

    def _outcome(self, actions: NDArray[Any]) -> StepOutcome:
        result = self.batch.step(self._given(actions))
        reward: Float64 = self._of_each("reward", result.reward, np.float64)
        terminated: Bool = self._of_each("terminated", result.terminated, np.bool_)
        truncated: Bool = self._of_each("truncated", result.truncated, np.bool_)
        done = terminated | truncated
        next_obs, reset_obs = self._flat(result.obs), None
        is_valid = np.ones(self.num_envs, np.bool_)
        if self.batch.autoreset is AutoresetMode.NEXT_STEP:
            is_valid, self.was_done = ~self.was_done, done
        is_read = done | (self.cfg.success == "any") & is_valid
        success = self.success_of(self._read(result.log, SUCCESS_NAMES, is_read), done)
        measure = self._read(result.log, (self.cfg.measure,), done)
        log = {name: measured(_on_host(value)) for name, value in result.log.items() if np.ndim(value) == 0}
        if done.any() and self.batch.autoreset is AutoresetMode.DISABLED:
            reset_obs = np.where(done[:, None], self._flat(self._reset(np.flatnonzero(done), None)), next_obs)
        elif done.any() and self.batch.autoreset is AutoresetMode.SAME_STEP:
            reset_obs = next_obs
            if result.final_obs is not None:
                next_obs = np.where(done[:, None], self._flat(result.final_obs), next_obs)
            elif self.batch.has_final_obs:
                raise EnvFailure(
                    f"{self.num_envs} x {self.cfg.name}: no final_obs where SAME_STEP has ended an episode"
                )
        return StepOutcome(next_obs, reward, terminated, truncated, is_valid, success, measure, reset_obs, log)

    def _reset(self, ids: NDArray[np.intp] | None, seeds: list[int] | None) -> Obs:
        return self.batch.reset(None if ids is None else self._given(ids), seeds)

    def _given(self, values: NDArray[Any]) -> Any:  # Any: an array of the batch's kind
        device = self.batch.device
        if device is None:
            return values
        import torch  # here, because the supervisor has no torch

        return torch.from_numpy(values).to(device)

    def _flat(self, obs: Obs) -> Float32:
        flat = np.empty((self.num_envs, self.spec.obs_dim), self.obs_dtype)
        try:
            flatten(self.codec, _on_host(obs), flat)
        except EnvFailure as error:
            raise EnvFailure(f"{self.num_envs} x {self.cfg.name}: {error}") from None
        return flat

    def _of_each(self, name: str, values: Any, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns a copy of the numbers [N]. Raises `EnvFailure` for another shape, and for what is no number."""
        array = as_array(_on_host(values))
        if array.shape != (self.num_envs,) or array.dtype.kind not in "fiub":
            got = f"{name} has shape {array.shape} and type {array.dtype}"
            raise EnvFailure(f"{self.num_envs} x {self.cfg.name}: {got}, expected numbers of shape ({self.num_envs},)")
        return array.astype(dtype)

    def _read(self, log: Mapping[str, Any], names: tuple[str | None, ...], where: Bool) -> Float32:
        """Returns what the first of the names that is there says `where` [N] it is asked for, else NaN. [N]."""
        found: Float32 = np.full(self.num_envs, np.nan, np.float32)
        name = next((name for name in names if name in log), None)
        values = as_array(None if name is None or not where.any() else _on_host(log[name]))
        if values.shape == (self.num_envs,):
            for env in np.flatnonzero(where):
                found[env] = measured(values[env])
        return found

    def _call(self, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except EnvFailure:  # it names the environment itself
            raise
        except Exception as error:
            text = f"{self.num_envs} x {self.cfg.name} failed in {name}: {cause_of(error)}\n{failure_text(error)}"
            raise EnvFailure(text) from error

    def close(self) -> None:
        """Closes the environments."""
        close_env(self.batch, f"{self.num_envs} x {self.cfg.name}")


def _codec_of(cfg: EnvConfig, batch: Batch) -> Codec:
    """Returns the layout of a batch's observations and actions. Raises `ConfigError` where it is refused."""
    if not batch.has_final_obs and cfg.final_obs == "required":
        raise ConfigError(
            f"env.final_obs: {cfg.name} resets by itself and keeps no final observations, so episodes that the time"
            " limit ends would be bootstrapped from the next one's first observation; got required, allowed missing,"
            " which accepts that bias"
        )
    codec = codec_of(batch, cfg.action_bounds)
    resets_in_step = batch.autoreset is not AutoresetMode.NEXT_STEP
    return replace(codec, spec=replace(codec.spec, resets_in_step=resets_in_step))


def _on_host(values: Any) -> Any:  # Any: arrays, by group or not
    """Returns tensors as arrays of the host."""
    if isinstance(values, Mapping):
        return {name: _on_host(value) for name, value in values.items()}
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
