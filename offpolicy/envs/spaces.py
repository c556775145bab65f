"""The accepted spaces: observations become vectors, and actions become the environment's own.

Observations: a Box of numbers of rank 0 or 1, or a small one of higher rank, or a Dict (nested too) of those, flattened
in the order of `gymnasium.spaces.utils.flatten`; `SpaceSpec.obs_keys` records it, nested keys joined by `/`.
Actions: a Box of floats with finite bounds, of any shape, row-major; a Discrete, whose actions are their numbers from 0
on, as floats [A = 1]; or a MultiDiscrete, of one such number for each choice [A].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from offpolicy.config.algorithms import algorithms_for
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Float32, SpaceSpec

MAX_FLATTENED = 1024  # largest observation of rank > 1, in numbers; larger ones are pixels
UNBOUNDED = 1e10  # finite bounds beyond this mean that there is none (also MuJoCo's own limit)
OBS_ALLOWED = (
    f"a Box of numbers of rank 0 or 1 (of at most {MAX_FLATTENED} numbers if of higher rank) or a Dict of those"
)

NO_IMAGES = (
    "images are not supported: they would need convolutional networks, a replay of frames kept once in bytes, and"
    " updates on a GPU; env.wrappers=[module:function] can turn them into features"
)


class Leaf(NamedTuple):
    """One Box of the observation: its place in the observation and in the flattened vector."""

    path: tuple[Any, ...]  # keys from the root of a Dict observation; empty for a Box
    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Codec:
    """The layout of one environment's observations and actions."""

    spec: SpaceSpec
    leaves: tuple[Leaf, ...]
    action_shape: tuple[int, ...]
    action_dtype: str


def flatten(codec: Codec, obs: Any, out: Float32) -> None:  # Any: whatever the environment returns
    """Writes an observation into out [O], or those of N environments into out [N, O].

    Raises `EnvFailure` for one of another shape.
    """
    batch = out.shape[:-1]  # () or [N]
    for leaf in codec.leaves:
        part = obs
        for key in leaf.path:
            if not isinstance(part, dict) or key not in part:
                raise _mismatch(leaf, batch, part)
            part = part[key]
        array = as_array(part)
        if array.shape != batch + leaf.shape or array.dtype.kind not in "fiub":
            raise _mismatch(leaf, batch, part)
        out[..., leaf.start : leaf.stop] = array.reshape(*batch, -1)


def as_array(value: Any) -> NDArray[Any]:
    """Returns a value of an environment as an array; an empty one for what is none, such as a ragged list."""
    try:
        return np.asarray(value)
    except Exception:  # of the user's own class, too
        return np.empty(0, object)


def env_action(codec: Codec, action: NDArray[Any]) -> Any:  # Any: an array, or a NumPy integer
    """Returns an action [A] as the environment takes it."""
    return action[0] if codec.spec.num_actions else action.reshape(codec.action_shape)


def env_actions(codec: Codec, actions: NDArray[Any]) -> NDArray[Any]:
    """Returns actions [N, A] as a vector of environments takes them: [N] of a Discrete, else [N, shape]."""
    return actions[:, 0] if codec.spec.num_actions else actions.reshape(len(actions), *codec.action_shape)


def action_map(codec: Codec) -> Callable[[Float32], NDArray[Any]]:
    """Returns the map from the policy's actions [N, A] to those of the environment [N, A], in its dtype.

    Those of a Box lie in [-1, 1]; both ends become the bounds exactly, and nothing leaves them. Discrete ones are
    numbers from 0 on, each of which becomes the nearest action; NaN, of an observation that holds NaN, the first.
    """
    low, high = np.asarray(codec.spec.action_low), np.asarray(codec.spec.action_high)
    dtype = np.dtype(codec.action_dtype)
    if codec.spec.choices:
        first, last = low.astype(dtype), np.asarray(codec.spec.choices) - 1
        return lambda action: first + np.minimum(np.fmax(np.rint(action), 0), last).astype(dtype)
    lowest, highest = _inward(low, high, dtype), _inward(high, low, dtype)
    # In float64, so that the ends of a float32 interval come out as those very numbers.
    middle, half = (high + low) / 2.0, (high - low) / 2.0
    return lambda action: np.minimum(np.maximum((action * half + middle).astype(dtype), lowest), highest)


def _inward(bound: NDArray[np.float64], other: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.floating[Any]]:
    """Returns bounds [A] in a dtype that may be coarser than theirs, rounded towards the `other` ones [A]."""
    rounded = bound.astype(dtype)
    is_outside = np.sign(rounded - bound) == np.sign(bound - other)
    inward: NDArray[np.floating[Any]] = np.where(is_outside, np.nextafter(rounded, other.astype(dtype)), rounded)
    return inward


def bounded(space: Space[Any], bounds: Sequence[float] | None) -> Space[Any]:
    """Returns an action space with the bounds of `env.action_bounds`, if there are any. Raises `ConfigError`."""
    if bounds is None:
        return space
    low, high = bounds[::2], bounds[1::2]
    is_box = isinstance(space, spaces.Box) and len(bounds) in (2, 2 * math.prod(space.shape))
    if not is_box or any(one >= other for one, other in zip(low, high, strict=True)):
        raise ConfigError(
            f"env.action_bounds: got {list(bounds)}, allowed a low and a higher number for all of {space}"
        )
    first, last = (np.resize(np.asarray(ends, np.float32), space.shape or ()) for ends in (low, high))
    return spaces.Box(first, last, dtype=np.float32)


def describe(obs_space: Space[Any], action_space: Space[Any], max_episode_steps: int | None) -> Codec:
    """Returns the layout of an environment. Raises `ConfigError` naming every space that is not supported."""
    problems: list[str] = []
    leaves = tuple(_leaves(obs_space, problems))
    low, high = _bounds(action_space, problems)
    if not problems and not sum(leaf.stop - leaf.start for leaf in leaves):
        problems.append(f"observation space {obs_space}: holds no number, allowed {OBS_ALLOWED}")
    if problems:
        raise ConfigError(problems)
    shape = tuple(action_space.shape or ())
    spec = SpaceSpec(
        obs_dim=leaves[-1].stop,
        action_dim=len(low),
        action_low=low,
        action_high=high,
        obs_keys=tuple(leaf.name for leaf in leaves if leaf.path),
        obs_shapes=tuple(leaf.shape for leaf in leaves if leaf.path),
        num_actions=int(action_space.n) if isinstance(action_space, spaces.Discrete) else 0,
        nvec=tuple(action_space.nvec.ravel().tolist()) if isinstance(action_space, spaces.MultiDiscrete) else (),
        max_episode_steps=max_episode_steps,
        box_shape=leaves[0].shape if not leaves[0].path and len(leaves[0].shape) > 1 else (),
        action_shape=shape,
        obs_dtype="uint8" if {leaf.dtype for leaf in leaves} == {"uint8"} else "float32",
    )
    return Codec(spec, leaves, shape, str(action_space.dtype))


def _leaves(space: Space[Any], problems: list[str]) -> Iterator[Leaf]:
    start = 0
    for path, box in _walk(space, ()):
        name = "/".join(str(key) for key in path)
        where = f"observation space{f' key {name!r}' if name else ''}"
        if not isinstance(box, spaces.Box) or box.dtype.kind not in "fiub":
            problems.append(f"{where}: got {box}, allowed {OBS_ALLOWED}")
            continue
        if len(box.shape) > 1 and np.prod(box.shape) > MAX_FLATTENED:
            problems.append(f"{where}: got {box}: {NO_IMAGES}; allowed {OBS_ALLOWED}")
            continue
        size = int(np.prod(box.shape, dtype=int))
        yield Leaf(path, name, box.shape, str(box.dtype), start, start + size)
        start += size


def _walk(space: Space[Any], path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Space[Any]]]:
    if not isinstance(space, spaces.Dict):
        yield path, space
        return
    for key, child in space.spaces.items():
        yield from _walk(child, (*path, key))


def _bounds(space: Space[Any], problems: list[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if isinstance(space, spaces.Discrete):
        return (float(space.start),), (float(space.start + space.n - 1),)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.size:
        start = space.start.ravel()
        return tuple(start.astype(float).tolist()), tuple((start + space.nvec.ravel() - 1).astype(float).tolist())
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        problem = (
            f"allowed a Box of floats with finite bounds, a Discrete (with {algorithms_for('Discrete')}) or a"
            f" MultiDiscrete (with {algorithms_for('MultiDiscrete')})"
        )
    elif not space.low.size:
        problem = "it holds no action, allowed a Box of at least one float"
    elif not all(np.all(np.abs(bound.astype(np.float64)) < UNBOUNDED) for bound in (space.low, space.high)):
        problem = "its bounds are infinite, allowed finite ones: env.action_bounds=[-1,1] says where actions make sense"
    elif np.all(space.low == space.high):
        problem = (
            "its low and high bounds are equal, so there is nothing to choose (MuJoCo: actuators without ctrlrange)"
        )
    else:
        return tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist())
    problems.append(f"action space: got {space}; {problem}")
    return (), ()


def _mismatch(leaf: Leaf, batch: tuple[int, ...], part: Any) -> EnvFailure:
    where = f"observation key {leaf.name!r}" if leaf.path else "observation"
    got = f"{type(part).__name__} {repr(part)[:80]}"
    if isinstance(part, dict):
        got = f"keys {sorted(map(str, part))}"
    elif isinstance(part, np.ndarray):
        got = f"shape {part.shape} dtype {part.dtype}"
    return EnvFailure(f"{where}: expected shape {batch + leaf.shape} dtype {leaf.dtype}, got {got}")
