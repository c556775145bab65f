"""The policy of a run as a function of observations, in this process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from offpolicy.collect.policy import require_sound
from offpolicy.commands.saved_run import SavedRun
from offpolicy.envs.spaces import Codec, action_map, env_actions
from offpolicy.errors import ConfigError, NumericsError
from offpolicy.seeding import torch_seed
from offpolicy.types import Float32, SpaceSpec

Observation = ArrayLike | Mapping[str, Any]  # Any: arrays, or mappings of arrays where Dict spaces are nested


class LoadedPolicy:
    """A policy that keeps no state: `policy(obs)` is the environment's action.

    What HORA's student infers from the past it reads from the observation's own part `proprio_hist`, which the
    environment keeps: its policy is a function of the observation like every other.
    """

    def __init__(self, saved: SavedRun, seed: int) -> None:
        self.run_dir, self.env_steps = saved.path.absolute(), saved.checkpoint.env_steps
        self.spec: SpaceSpec = saved.spec
        self._policy = saved.policy().eval()
        self._parts_read = self._policy.actor.parts_read
        self._device = next(self._policy.parameters()).device
        self._generator = torch.Generator(self._device)
        self._generator.manual_seed(torch_seed(seed, "exploration"))
        shape = (self.spec.action_dim,) if self.spec.action_shape is None else self.spec.action_shape
        self._codec = Codec(self.spec, (), shape, "int64" if self.spec.choices else "float32")
        self._actions = action_map(self._codec)

    def __call__(self, obs: Observation, *, deterministic: bool = True) -> NDArray[Any]:  # Any: floats or integers
        """Returns the action for one observation, or the actions for many, as the environment takes them.

        obs: [O] or [N, O]; of a Box of a higher rank or a Dict, arrays of its shapes, with or without a first dimension
        N. Actions have the shape of their space, or [N, shape]: float32 in its bounds of a Box, int64 of the others. (A
        run before `SpaceSpec.action_shape` has [A] or [N, A] for a Box of another rank, row-major.)
        `deterministic=False` draws from the policy that explores: the same policy draws others at every call. Raises
        `ConfigError` for another shape, and `NumericsError` for NaN or Inf.
        """
        rows, is_one = self.flatten(obs)
        with torch.inference_mode():
            inputs = torch.from_numpy(rows).to(self._device)
            chosen = self._policy.act(inputs) if deterministic else self._policy.sample(inputs, self._generator)[0]
        action = chosen.cpu().numpy()
        require_sound(action, rows, when="without exploration" if deterministic else "with exploration")
        actions = env_actions(self._codec, self._actions(action))
        found: NDArray[Any] = np.asarray(actions[0]) if is_one else actions
        return found

    def flatten(self, obs: Observation) -> tuple[Float32, bool]:
        """Returns observations as the network takes them [N, O], and whether one was given, without N.

        Of a Dict, parts that the actor does not read may be missing; they are 0 there.
        """
        if not self.spec.obs_keys:
            rows, is_one = _rows("obs", obs, self.spec.box_shape or (self.spec.obs_dim,))
        else:
            named = zip(self.spec.obs_keys, self.spec.obs_shapes, strict=True)
            read = [(name, shape) for name, shape in named if self._parts_read is None or name in self._parts_read]
            parts = {name: _rows(f"obs[{name!r}]", _part(obs, name), shape) for name, shape in read}
            if len({(len(part), part_is_one) for part, part_is_one in parts.values()}) > 1:
                raise ConfigError("obs: its parts hold different numbers of observations")
            first, is_one = next(iter(parts.values()))
            rows = np.zeros((len(first), self.spec.obs_dim), np.float32)
            for name, (part, _) in parts.items():
                rows[:, self.spec.columns(name)] = part
        if not np.isfinite(rows).all():
            raise NumericsError("obs: holds NaN or Inf")
        return rows, is_one

    def __repr__(self) -> str:
        return f"LoadedPolicy({str(self.run_dir)!r}, env_steps={self.env_steps})"


def _rows(name: str, given: Any, shape: tuple[int, ...]) -> tuple[Float32, bool]:  # Any: not checked yet
    """Returns arrays of `shape`, flattened or not, as rows [N, size], and whether there was one without N."""
    size = math.prod(shape)
    try:
        array = np.asarray(given, np.float32)
    except (TypeError, ValueError):  # texts, ragged lists
        raise ConfigError(f"{name}: got a {type(given).__name__}, allowed {_allowed(shape)}") from None
    forms = (shape, (size,)) if shape else (shape,)
    is_one = array.shape in forms
    if not is_one and (not array.ndim or array.shape[1:] not in forms):
        raise ConfigError(f"{name}: got an array of the shape {array.shape}, allowed {_allowed(shape)}")
    return array.reshape(1 if is_one else len(array), size), is_one


def _allowed(shape: tuple[int, ...]) -> str:
    return f"{list(shape)} or [N, {', '.join(map(str, shape))}]"


def _part(obs: Any, name: str) -> Any:  # Any: not checked yet
    """Returns the part of a Dict observation whose name has nested keys joined by `/`."""
    if isinstance(obs, Mapping):
        parts = {str(key): part for key, part in obs.items()}  # an environment's keys may be numbers
        if name in parts:
            return parts[name]
        head, _, rest = name.partition("/")
        if rest and head in parts:
            return _part(parts[head], rest)
    got = f"the keys {', '.join(map(str, obs))}" if isinstance(obs, Mapping) else f"a {type(obs).__name__}"
    raise ConfigError(f"obs: got {got}, allowed a mapping with {name!r}")
