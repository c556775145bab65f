"""Demonstrations: transitions collected elsewhere, checked against the environment's spaces and mixed into the batches.

An `.npz` holds `obs` [M, O], `action` [M, A], `reward` [M], `next_obs` [M, O], `terminated` [M], `truncated` [M] and
perhaps `episode` [M], all in the environment's own units; a Dict observation is flattened in the order of
`SpaceSpec.obs_keys`. A Minari data set is named `minari:<id>` or by its directory, and needs the optional package
`minari`. No torch is imported: the supervisor reads demonstrations, too.
"""

from __future__ import annotations

import hashlib
import importlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.errors import ConfigError
from offpolicy.output import counted
from offpolicy.replay.row_layout import RowLayout
from offpolicy.seeding import generator
from offpolicy.types import Bool, Float32, Float64, SpaceSpec

KEY = "replay.demos"
MINARI_PREFIX = "minari:"
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
EPISODE = "episode"  # the number of the episode of each row, if the file has it
Int64 = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class Demonstrations:
    """Hands out `per_batch` of `rows` for each batch, each row once per cycle over all ranks.

    Every cycle has another order, a function of seed, path and cycle, so it is not saved; `path` tells one start of a
    run from another. Rank r of R takes every R-th row of the order, from number r on: ranks never take the same row in
    a cycle.
    """

    rows: Float32  # [M, W], M > 0
    per_batch: int
    batch_size: int
    source: str  # for the run's header
    seed: int
    rank: int = 0
    num_ranks: int = 1
    path: tuple[int, ...] = ()
    taken: int = 0  # rows handed out by this rank
    orders: dict[int, Int64] = field(default_factory=dict)  # by cycle, of those that the newest rows were of

    @property
    def identity(self) -> list[str | int]:
        """Values that must be equal for a saved state to continue with the same rows."""
        return [hashlib.sha256(self.rows.tobytes()).hexdigest()[:16], self.per_batch]

    @property
    def description(self) -> str:
        """The end of a source's line in the run's header."""
        return f"; {self.per_batch} of {self.batch_size} rows of every batch from {self.source}"

    def take(self, num_batches: int) -> Int64:
        """Returns the indices of the next rows. [num_batches * per_batch]."""
        count = num_batches * self.per_batch
        place = np.arange(self.taken, self.taken + count) * self.num_ranks + self.rank
        cycle, offset = np.divmod(place, len(self.rows))
        self.orders = {number: self._order(number) for number in np.unique(cycle).tolist()}
        index = np.empty(count, np.int64)
        for number, order in self.orders.items():
            here = cycle == number
            index[here] = order[offset[here]]
        self.taken += count
        return index

    def _order(self, cycle: int) -> Int64:
        if cycle in self.orders:
            return self.orders[cycle]
        return generator(self.seed, "demos", cycle, *self.path).permutation(len(self.rows))

    def state(self) -> dict[str, Any]:
        """Returns JSON data from which another object continues."""
        return {"taken": self.taken, "path": list(self.path)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned."""
        self.taken, self.path, self.orders = state["taken"], tuple(state["path"]), {}


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

    def require_sequences(self) -> None:
        """Raises `ConfigError` unless each row begins where the one before it in its episode ended: sums need that."""
        is_next = np.ones(len(self), np.bool_)
        is_next[self.first] = False
        rows = np.flatnonzero(is_next)
        wrong = ~np.isclose(self.next_obs[rows - 1], self.obs[rows], rtol=1e-4, atol=1e-5).all(axis=1)
        if wrong.any():
            raise ConfigError(
                f"{KEY}: row {rows[wrong][0]} does not begin where the row before it in its episode has ended;"
                " algo.n_step > 1 sums over consecutive rows: keep them in order with `episode`, or use algo.n_step=1"
            )


def read_demos(source: str, spec: SpaceSpec) -> Transitions:
    """Returns the demonstrations of a file or a data set. Raises `ConfigError` naming what is wrong with them."""
    is_minari = source.startswith(MINARI_PREFIX) or (Path(source) / "data").is_dir()
    arrays = read_minari(source, spec) if is_minari else _read_npz(source)
    return _ordered(_checked(source, arrays, spec), arrays.get(EPISODE))


def demonstration_rows(found: Transitions, layout: RowLayout, *, gamma: float, n_step: int) -> Float32:
    """Returns one row of a batch, of `n_step` steps, fewer at an episode's end, for every transition. [M, W].

    Raises `ConfigError` if sums over steps are asked for and the rows of an episode do not follow each other.
    """
    if n_step > 1:
        found.require_sequences()
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
    units = action + low if spec.choices else np.clip(action, -1.0, 1.0) * (high - low) / 2.0 + (high + low) / 2.0
    return np.asarray(units, np.float32)


def from_env(action: Float64, spec: SpaceSpec) -> Float32:
    """The inverse of `to_env`; 0 where there is nothing to choose."""
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    half = np.where(high > low, (high - low) / 2.0, np.inf)
    own = action - low if spec.choices else np.clip((action - (high + low) / 2.0) / half, -1.0, 1.0)
    return np.asarray(own, np.float32)


def _read_npz(source: str) -> Arrays:
    try:
        with open(source, "rb") as opened:  # np.load leaves a broken file open
            file: Any = np.load(opened, allow_pickle=False)  # Any: an array, or a mapping of them
            return {name: file[name] for name in file.files if name in (*FIELDS, EPISODE)}  # others may be anything
    except OSError as error:
        raise ConfigError(f"{KEY}: got {source!r}, which cannot be read: {error.strerror or error}") from None
    # RuntimeError: a wrong header; AttributeError: a single array.
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, AttributeError) as error:
        raise ConfigError(f"{KEY}: {source} is no .npz of plain numbers: {error}") from None


def _checked(source: str, arrays: Arrays, spec: SpaceSpec) -> Transitions:
    """Returns the fields in their shapes and types. Raises `ConfigError` listing every problem."""
    missing = [name for name in FIELDS if name not in arrays]
    if missing:
        raise ConfigError(f"{KEY}: {source} has no {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    count = len(arrays["reward"]) if arrays["reward"].ndim else 0
    if not count:
        raise ConfigError(f"{KEY}: {source} holds no transition: its reward has shape {arrays['reward'].shape}")
    widths = {"obs": (spec.obs_dim,), "next_obs": (spec.obs_dim,), "action": (spec.action_dim,)}
    fields, problems = dict[str, Float64](), list[str]()
    for name in (*FIELDS, EPISODE) if EPISODE in arrays else FIELDS:
        array, shape = arrays[name], (count, *widths.get(name, ()))
        if array.dtype.kind not in "fiub" or array.shape[:1] != shape[:1] or array.size != np.prod(shape):
            problems.append(f"{name} has shape {array.shape} and type {array.dtype}, needed {shape} of numbers")
        else:
            fields[name] = array.reshape(shape).astype(np.float64)
    if problems := problems or _unsound(fields, spec):
        raise ConfigError([f"{KEY}: {source}: {problem}" for problem in problems])
    return Transitions(
        obs=fields["obs"].astype(np.float32),
        action=from_env(fields["action"], spec),
        reward=fields["reward"],
        next_obs=fields["next_obs"].astype(np.float32),
        terminated=fields["terminated"] != 0,
        truncated=fields["truncated"] != 0,
        first=np.zeros(1, np.int64),
    )


def _unsound(fields: Mapping[str, Float64], spec: SpaceSpec) -> list[str]:
    """Returns what no environment could have given: NaN, actions that it does not have, flags that are none."""
    problems: list[str] = []
    for name, values in fields.items():
        with np.errstate(over="ignore"):  # a number beyond float32 counts as infinite
            bad = ~np.isfinite(values.astype(np.float32)).reshape(len(values), -1).all(axis=1)
        if bad.any():
            problems.append(f"{name} is NaN or Inf in {counted(bad.sum(), 'row')}, first in row {bad.argmax()}")
        if name in ("terminated", "truncated") and not np.isin(values, (0.0, 1.0)).all():
            problems.append(f"{name} holds other values than true and false")
    action, low, high = fields["action"], np.asarray(spec.action_low), np.asarray(spec.action_high)
    slack = np.zeros_like(low) if spec.choices else 1e-4 * (high - low) + 1e-6  # allowance for rounding to float32
    outside = ((action < low - slack) | (action > high + slack)).any(axis=1)
    if outside.any():
        problems.append(
            f"{counted(outside.sum(), 'action')} beyond the environment's bounds, first in row {outside.argmax()}:"
            f" {action[outside.argmax()].tolist()}, allowed {low.tolist()} to {high.tolist()}, its own units"
        )
    between = (np.isfinite(action) & (action != np.rint(action))).any(axis=1)
    if spec.choices and between.any():
        problems.append(
            f"{counted(between.sum(), 'action')} of no whole numbers, first in row {between.argmax()}:"
            f" {action[between.argmax()].tolist()}, allowed the numbers of the environment's actions"
        )
    return problems


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
    """Returns one episode of T transitions, from T + 1 observations.

    Raises `ConfigError` if a part of a Dict that the environment observes is missing.
    """
    length, parts = len(found.rewards), dict(_parts(found.observations))
    keys = spec.obs_keys if isinstance(found.observations, Mapping) else ("",)
    if not keys or not set(keys) <= parts.keys():
        needed = f"a Dict of {', '.join(spec.obs_keys)}" if spec.obs_keys else "a Box"
        raise ConfigError(f"{KEY}: {source} observes a Dict of {', '.join(parts)}, the environment {needed}")
    obs = np.concatenate([np.asarray(parts[key]).reshape(length + 1, -1) for key in keys], axis=1)
    return {
        "obs": obs[:-1],
        "action": np.asarray(found.actions).reshape(length, -1),
        "reward": np.asarray(found.rewards),
        "next_obs": obs[1:],
        "terminated": np.asarray(found.terminations),
        "truncated": np.asarray(found.truncations),
        "episode": np.full(length, number),
    }


def _parts(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the parts of a Dict with their names, nested keys joined by `/`; of anything else itself, without one."""
    if not isinstance(part, Mapping):
        yield name, part
        return
    for key, child in part.items():
        yield from _parts(child, f"{name}/{key}" if name else str(key))
