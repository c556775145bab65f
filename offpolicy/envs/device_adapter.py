"""A batch whose tensors stay on a device: what `batch_adapter.py` does, without the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import Batch, Obs
from offpolicy.envs.batch_adapter import BatchAdapter
from offpolicy.envs.env_adapter import SUCCESS_NAMES
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Bool, StepOutcome


class DeviceAdapter(BatchAdapter):
    """The environments of a batch of tensors; every array is a tensor on the learner's device.

    No step waits for the device, but for the number of ended episodes of a DISABLED batch, which is reset by ids.
    """

    def __init__(
        self,
        cfg: EnvConfig,
        num_envs: int,
        on_progress: Callable[[], object],
        *,
        open_batch: Callable[[], Batch],
        to: torch.device,
    ) -> None:
        """Raises as `BatchAdapter`, and `ConfigError` for a batch whose episodes begin in a step of their own."""
        super().__init__(cfg, num_envs, on_progress, open_batch=open_batch)
        if self.batch.autoreset is AutoresetMode.NEXT_STEP:
            self.close()
            raise ConfigError(
                f"env.batch: {cfg.name} resets by NEXT_STEP, allowed SAME_STEP or DISABLED with collect.process=learner"
                " and tensors: env steps would have to be counted on the device"
            )
        self._to = to
        ends = (0.0, np.inf) if self.spec.choices else (-1.0, 1.0)
        low, high = (np.full((1, self.spec.action_dim), end, np.float32) for end in ends)
        self._lowest, self._highest = (torch.from_numpy(self.to_env(end)).to(to) for end in (low, high))  # [1, A]
        bounds = torch.tensor([self.spec.action_low, self.spec.action_high], dtype=torch.float64, device=to)
        self._middle, self._half = bounds.sum(0) / 2.0, (bounds[1] - bounds[0]) / 2.0  # [A]
        if self.spec.choices:  # numbers from 0 on
            self._middle, self._half = bounds[0], torch.ones_like(bounds[0])
        self._unknown = self._best = torch.full((num_envs,), torch.nan, device=to)
        self._is_valid = torch.ones(num_envs, dtype=torch.bool, device=to)

    def begin(self, seeds: Sequence[int], where: Bool) -> Any:  # Any: a tensor in place of an array
        """Starts an episode with its seed `where` [N]. Returns obs [N, O] of all."""
        ids = None if where.all() else torch.from_numpy(np.flatnonzero(where)).to(self.device)
        given = [seeds[index] for index in range(self.num_envs) if where[index]]
        self._best = torch.where(torch.from_numpy(where).to(self._to), torch.nan, self._best)
        return self._call("reset", lambda: self._tensor(self.batch.reset(ids, given)))

    def step(self, action: Any) -> StepOutcome:  # Any: a tensor in place of an array
        """One vector step. action: [N, A] in [-1, 1]; clipped to the bounds."""
        return self._call("step", lambda: self._tensors_of(action))

    def _tensors_of(self, action: Tensor) -> StepOutcome:
        given = (action * self._half + self._middle).to(self._lowest.dtype).clamp(self._lowest, self._highest)
        result = self.batch.step(given.view(self.num_envs, *self.codec.action_shape).to(self.device))
        reward = self._each("reward", result.reward, torch.float64)
        terminated = self._each("terminated", result.terminated, torch.bool)
        truncated = self._each("truncated", result.truncated, torch.bool)
        done = terminated | truncated
        name = next((name for name in SUCCESS_NAMES if np.ndim(result.log.get(name, 0)) == 1), None)
        success = self._unknown if name is None else self._each(name, result.log[name], torch.float32)
        if self.cfg.success == "any":
            success = torch.fmax(self._best, success)
            self._best = torch.where(done, torch.nan, success)
        next_obs = reset_obs = self._tensor(result.obs)
        if self.batch.autoreset is AutoresetMode.SAME_STEP and result.final_obs is not None:
            next_obs = torch.where(done[:, None], self._tensor(result.final_obs), next_obs)
        elif self.batch.autoreset is AutoresetMode.SAME_STEP and self.batch.has_final_obs and bool(done.any()):
            raise EnvFailure(f"{self.num_envs} x {self.cfg.name}: no final_obs where SAME_STEP has ended an episode")
        elif self.batch.autoreset is AutoresetMode.DISABLED and len(ids := done.nonzero().flatten()):
            reset_obs = torch.where(done[:, None], self._tensor(self.batch.reset(ids.to(self.device))), next_obs)
        log = {name: value for name, value in result.log.items() if np.ndim(value) == 0}
        fields: Any = (next_obs, reward, terminated, truncated, self._is_valid, success, self._unknown, reset_obs, log)
        return StepOutcome(*fields)

    def _tensor(self, obs: Obs) -> Tensor:
        """Returns a copy of the observations as one tensor [N, O]. Raises `EnvFailure` for other shapes."""
        parts = []
        for leaf in self.codec.leaves:
            part = obs
            for key in leaf.path:
                part = part[key] if isinstance(part, Mapping) else part
            if not isinstance(part, Tensor) or tuple(part.shape) != (self.num_envs, *leaf.shape):
                got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise EnvFailure(
                    f"{self.num_envs} x {self.cfg.name}: observation {leaf.name!r}: got {got}, expected a tensor"
                    f" ({self.num_envs}, {', '.join(map(str, leaf.shape))})"
                )
            parts.append(part.reshape(self.num_envs, -1).to(self._to, torch.float32))
        return torch.cat(parts, dim=1)

    def _each(self, name: str, values: Any, dtype: torch.dtype) -> Tensor:
        """Returns a copy of the numbers [N]. Raises `EnvFailure` for another shape."""
        if not isinstance(values, Tensor) or tuple(values.shape) != (self.num_envs,):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise EnvFailure(
                f"{self.num_envs} x {self.cfg.name}: {name} is {got}, expected a tensor ({self.num_envs},)"
            )
        return values.to(self._to, dtype, copy=True)
