"""Demonstrations from a Minari data set, with the optional package `minari` (`pip install 'offpolicy[minari]'`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.errors import ConfigError
from offpolicy.types import SpaceSpec

PREFIX = "minari:"


def is_minari(source: str) -> bool:
    """Whether a name means a Minari data set: `minari:<id>`, or the directory of one."""
    return source.startswith(PREFIX) or (Path(source) / "data").is_dir()


def read_minari(source: str, spec: SpaceSpec) -> Mapping[str, NDArray[Any]]:
    """The data set as the arrays of an `.npz` of demonstrations. Raises `ConfigError`; nothing is downloaded."""
    try:
        minari: Any = importlib.import_module("minari")  # Any: optional, so no type checker may count on it
    except ImportError:
        raise ConfigError(f"replay.demos: {source} needs Minari: pip install 'offpolicy[minari]'") from None
    try:
        if source.startswith(PREFIX):
            data = minari.load_dataset(source.removeprefix(PREFIX))
        else:
            data = minari.MinariDataset(Path(source) / "data")
        episodes = [_episode(number, found, spec) for number, found in enumerate(data.iterate_episodes())]
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"replay.demos: {source} cannot be read by Minari: {error}") from None
    if not episodes:
        raise ConfigError(f"replay.demos: {source} holds no episode")
    return {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}


def _episode(number: int, found: Any, spec: SpaceSpec) -> dict[str, NDArray[Any]]:
    """One episode of T transitions, whose observations are T + 1."""
    obs, length = _flat(found.observations, spec), len(found.rewards)
    return {
        "obs": obs[:length],
        "action": np.asarray(found.actions).reshape(length, -1),
        "reward": np.asarray(found.rewards),
        "next_obs": obs[1 : length + 1],
        "terminated": np.asarray(found.terminations),
        "truncated": np.asarray(found.truncations),
        "episode": np.full(length, number),
    }


def _flat(observations: Any, spec: SpaceSpec) -> NDArray[Any]:
    """Observations [T + 1, O]: those of a Dict side by side in the order of the environment. Raises `KeyError`."""
    if not isinstance(observations, Mapping):
        return np.asarray(observations).reshape(len(observations), -1)
    columns = []
    for key in spec.obs_keys:
        part: Any = observations
        for name in key.split("/"):
            part = part[name]
        columns.append(np.asarray(part).reshape(len(part), -1))
    return np.concatenate(columns, axis=1)
