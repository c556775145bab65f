"""Demonstrations from a file: transitions collected elsewhere, checked against the environment's spaces.

An `.npz` holds `obs` [M, O], `action` [M, A], `reward` [M], `next_obs` [M, O], `terminated` [M], `truncated` [M] and
perhaps `episode` [M], all in the environment's own units; a Dict observation is flattened in the order of
`SpaceSpec.obs_keys`. A Minari data set is named `minari:<id>` or by its directory, and needs the optional package
`minari`. No torch is imported: the supervisor reads demonstrations, too.
"""

from __future__ import annotations

import importlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.errors import ConfigError
from offpolicy.output import counted
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import Bool, Float32, Float64, SpaceSpec

KEY = "replay.demos"
MINARI_PREFIX = "minari:"
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
EPISODE = "episode"  # the number of the episode of each row, if the file has it
Int64 = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Transitions:
    """M transitions, episode after episode, each in the order in which it happened."""

    obs: Float32  # [M, O]
    action: Float32  # [M, A] in [-1, 1], or the numbers of discrete ones
    reward: Float64  # [M]
    next_obs: Float32  # [M, O]
    terminated: Bool  # [M]
    truncated: Bool  # [M] also where the data of an episode stop without an end
    first: Int64  # [E] first row of each episode

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def length(self) -> Int64:
        """Number of transitions of each episode. [E]."""
        return np.diff(self.first, append=len(self))

    @property
    def ep_return(self) -> Float64:
        """Raw return of each episode. [E]."""
        return np.add.reduceat(self.reward, self.first)

    def require_sequences(self, key: str) -> None:
        """Raises `ConfigError` unless each row begins where the one before it in its episode ended: sums need that."""
        is_next = np.ones(len(self), np.bool_)
        is_next[self.first] = False
        rows = np.flatnonzero(is_next)
        wrong = ~np.isclose(self.next_obs[rows - 1], self.obs[rows], rtol=1e-4, atol=1e-5).all(axis=1)
        if wrong.any():
            raise ConfigError(
                f"{KEY}: row {rows[wrong][0]} does not begin where the row before it in its episode has ended;"
                f" {key} > 1 sums over consecutive rows: keep them in order and give `episode`, or use algo.n_step=1"
            )


def read_demos(source: str, spec: SpaceSpec) -> Transitions:
    """Returns the demonstrations of a file or a data set. Raises `ConfigError` naming what is wrong with them."""
    arrays = read_minari(source, spec) if is_minari(source) else _read_npz(source)
    return _ordered(_checked(source, arrays, spec), arrays.get(EPISODE))


def demonstration_rows(found: Transitions, layout: RowLayout, *, gamma: float, n_step: int) -> Float32:
    """Returns one row of a batch, of `n_step` steps, fewer at an episode's end, for every transition. [M, W].

    Raises `ConfigError` if sums over steps are asked for and the rows of an episode do not follow each other.
    """
    if n_step > 1:
        found.require_sequences("algo.n_step")
    row = np.arange(len(found))
    end = np.repeat(found.first + found.length, found.length)  # of the row's episode
    one_step = found.reward.astype(np.float32).astype(np.float64)
    reward, discount, last = np.zeros(len(found)), np.ones(len(found)), row.copy()
    for step in range(min(n_step, int(found.length.max()))):
        here = np.flatnonzero(row + step < end)
        last[here] = here + step
        reward[here] += discount[here] * one_step[last[here]]
        discount[here] *= gamma
    rows: Float32 = np.zeros((len(found), layout.width), np.float32)
    rows[:, layout.obs], rows[:, layout.next_obs] = found.obs, found.next_obs[last]
    rows[:, layout.action], rows[:, layout.reward] = found.action, reward
    rows[:, layout.terminated], rows[:, layout.discount] = found.terminated[last], discount
    return rows


def to_env(action: Float32, spec: SpaceSpec) -> Float32:
    """Returns actions [N, A] of [-1, 1], clipped to it, or the numbers of discrete ones, in the environment's units."""
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    if spec.choices:
        numbers: Float32 = (action + low).astype(np.float32)
        return numbers
    scaled: Float32 = (np.clip(action, -1.0, 1.0) * (high - low) / 2.0 + (high + low) / 2.0).astype(np.float32)
    return scaled


def from_env(action: Float64, spec: SpaceSpec) -> Float32:
    """The inverse of `to_env`; 0 where there is nothing to choose."""
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    if spec.choices:
        numbers: Float32 = (action - low).astype(np.float32)
        return numbers
    half = np.where(high > low, (high - low) / 2.0, np.inf)
    scaled: Float32 = np.clip((action - (high + low) / 2.0) / half, -1.0, 1.0).astype(np.float32)
    return scaled


def _read_npz(source: str) -> Arrays:
    try:
        with open(source, "rb") as opened:  # np.load leaves a broken file open
            file: Any = np.load(opened, allow_pickle=False)  # Any: an array, or a mapping of them
            if isinstance(file, np.ndarray):
                raise ConfigError(f"{KEY}: {source} is a single array, allowed an .npz of {', '.join(FIELDS)}")
            return {name: file[name] for name in file.files if name in (*FIELDS, EPISODE)}  # others may be anything
    except OSError as error:
        raise ConfigError(f"{KEY}: got {source!r}, which cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:  # the last: a wrong header
        raise ConfigError(f"{KEY}: {source} is no .npz of plain numbers: {error}") from None


def _checked(source: str, arrays: Arrays, spec: SpaceSpec) -> Transitions:
    """Returns the fields in their shapes and types. Raises `ConfigError` listing every problem."""
    missing = [name for name in FIELDS if name not in arrays]
    if missing:
        raise ConfigError(f"{KEY}: {source} has no {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    count = len(arrays["reward"]) if arrays["reward"].ndim else 0
    if not count:
        raise ConfigError(f"{KEY}: {source} holds no transition: its reward has shape {arrays['reward'].shape}")
    widths = {"obs": spec.obs_dim, "next_obs": spec.obs_dim, "action": spec.action_dim}
    shapes = {name: (count, widths[name]) if name in widths else (count,) for name in FIELDS}
    expected = {**shapes, **({EPISODE: shapes["reward"]} if EPISODE in arrays else {})}
    problems = [
        f"{KEY}: {source}: {name} has shape {array.shape} and type {array.dtype}, needed {shape} of numbers"
        for name, shape in expected.items()
        if (array := arrays[name]).dtype.kind not in "fiub"
        or array.shape[:1] != shape[:1]
        or array.size != np.prod(shape)
    ]
    if problems:
        raise ConfigError(problems)
    fields = {name: arrays[name].reshape(shape).astype(np.float64) for name, shape in shapes.items()}
    problems = _unsound(source, fields, spec)
    if EPISODE in arrays:
        problems += _not_finite(source, EPISODE, arrays[EPISODE].reshape(-1).astype(np.float64))
    if problems:
        raise ConfigError(problems)
    return Transitions(
        obs=fields["obs"].astype(np.float32),
        action=from_env(fields["action"], spec),
        reward=fields["reward"],
        next_obs=fields["next_obs"].astype(np.float32),
        terminated=fields["terminated"] != 0,
        truncated=fields["truncated"] != 0,
        first=np.zeros(1, np.int64),
    )


def _unsound(source: str, fields: Mapping[str, Float64], spec: SpaceSpec) -> list[str]:
    """Returns what no environment could have given: NaN, actions that it does not have, flags that are none."""
    problems: list[str] = []
    for name, values in fields.items():
        with np.errstate(over="ignore"):  # a number beyond float32 counts as infinite
            problems += _not_finite(source, name, values.astype(np.float32))
    for name in ("terminated", "truncated"):
        if not np.isin(fields[name], (0.0, 1.0)).all():
            problems.append(f"{KEY}: {source}: {name} holds other values than true and false")
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    slack = np.zeros_like(low) if spec.choices else 1e-4 * (high - low) + 1e-6  # allowance for rounding to float32
    outside = ((fields["action"] < low - slack) | (fields["action"] > high + slack)).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        problems.append(
            f"{KEY}: {source}: {counted(outside.sum(), 'action')} beyond the environment's bounds, first in row {row}:"
            f" {fields['action'][row].tolist()}, allowed {low.tolist()} to {high.tolist()}, its own units"
        )
    between = (np.isfinite(fields["action"]) & (fields["action"] != np.rint(fields["action"]))).any(axis=1)
    if spec.choices and between.any():
        row = int(between.argmax())
        problems.append(
            f"{KEY}: {source}: {counted(between.sum(), 'action')} of no whole numbers, first in row {row}:"
            f" {fields['action'][row].tolist()}, allowed the numbers of the environment's actions"
        )
    return problems


def _not_finite(source: str, name: str, values: NDArray[Any]) -> list[str]:
    """Returns what is wrong with numbers [M] or [M, W] that hold NaN or Inf."""
    bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not bad.any():
        return []
    return [f"{KEY}: {source}: {name} is NaN or Inf in {counted(bad.sum(), 'row')}, first in row {bad.argmax()}"]


def _ordered(found: Transitions, episode: NDArray[Any] | None) -> Transitions:
    """Sorts the rows by `episode` [M] where it is given; an episode also begins after each end."""
    ids = np.zeros(len(found), np.int64) if episode is None else episode.reshape(-1)
    order = np.argsort(ids, kind="stable")
    sorted_rows = replace(found, **{name: getattr(found, name)[order] for name in FIELDS})
    is_first = np.ones(len(found), np.bool_)
    is_over = sorted_rows.terminated | sorted_rows.truncated
    is_first[1:] = is_over[:-1] | (np.diff(ids[order]) != 0)
    first = np.flatnonzero(is_first)
    truncated = sorted_rows.truncated.copy()
    last = np.append(first[1:], len(found)) - 1
    truncated[last] |= ~sorted_rows.terminated[last]
    return replace(sorted_rows, truncated=truncated, first=first)


def is_minari(source: str) -> bool:
    """True if a name means a Minari data set: `minari:<id>`, or the directory of one."""
    return source.startswith(MINARI_PREFIX) or (Path(source) / "data").is_dir()


def read_minari(source: str, spec: SpaceSpec) -> Arrays:
    """Returns the data set as the arrays of an `.npz` of demonstrations; downloads nothing. Raises `ConfigError`."""
    try:
        minari: Any = importlib.import_module("minari")  # Any: optional, so no type checker may count on it
    except ImportError:
        raise ConfigError(f"{KEY}: {source} needs Minari: pip install 'offpolicy[minari]'") from None
    try:
        if source.startswith(MINARI_PREFIX):
            data = minari.load_dataset(source.removeprefix(MINARI_PREFIX))
        else:
            data = minari.MinariDataset(Path(source) / "data")
        episodes = [_episode(source, number, found, spec) for number, found in enumerate(data.iterate_episodes())]
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"{KEY}: {source} cannot be read by Minari: {error}") from None
    if not episodes:
        raise ConfigError(f"{KEY}: {source} holds no episode")
    return {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}


def _episode(source: str, number: int, found: Any, spec: SpaceSpec) -> dict[str, NDArray[Any]]:
    """Returns one episode of T transitions, from T + 1 observations. Raises `ConfigError` as `_flat`."""
    obs, length = _flat(source, found.observations, spec), len(found.rewards)
    return {
        "obs": obs[:length],
        "action": np.asarray(found.actions).reshape(length, -1),
        "reward": np.asarray(found.rewards),
        "next_obs": obs[1 : length + 1],
        "terminated": np.asarray(found.terminations),
        "truncated": np.asarray(found.truncations),
        "episode": np.full(length, number),
    }


def _flat(source: str, observations: Any, spec: SpaceSpec) -> NDArray[Any]:
    """Returns observations [T + 1, O]; parts of a Dict in the order of the environment.

    Raises `ConfigError` if a part that the environment observes is missing.
    """
    if not isinstance(observations, Mapping):
        return np.asarray(observations).reshape(len(observations), -1)
    parts = dict(_named_parts(observations))
    if not spec.obs_keys or not set(spec.obs_keys) <= parts.keys():
        needed = f"a Dict of {', '.join(spec.obs_keys)}" if spec.obs_keys else "a Box"
        raise ConfigError(f"{KEY}: {source} observes a Dict of {', '.join(parts)}, the environment {needed}")
    return np.concatenate([np.asarray(parts[key]).reshape(len(parts[key]), -1) for key in spec.obs_keys], axis=1)


def _named_parts(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the parts of a Dict with their names, nested keys joined by `/`."""
    if not isinstance(part, Mapping):
        yield name, part
        return
    for key, child in part.items():
        yield from _named_parts(child, f"{name}/{key}" if name else str(key))
