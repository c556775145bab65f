"""Demonstrations become replay rows by the code that writes the collector's, and a policy's episodes a file of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.collect.post import Episode, Interval
from offpolicy.collect.replay_writer import ReplayWriter
from offpolicy.errors import SaveError
from offpolicy.files import atomic_file
from offpolicy.replay.demonstrations import Transitions, to_env
from offpolicy.replay.ring import Ring
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import Bool, Choice, Float32, Float64, SpaceSpec, StepOutcome


def demonstration_rows(found: Transitions, layout: RowLayout, *, gamma: float, n_step: int) -> Float32:
    """One row [W] of `n_step` steps, fewer at an episode's end, for every transition. [M, W].

    Raises `ConfigError` if sums over steps are asked for and the rows of an episode do not follow each other.
    """
    if n_step > 1:
        found.require_sequences("algo.n_step")
    ring = Ring(memoryview(bytearray(Ring.nbytes(len(found), layout.width, 4))), layout.width, np.float32)
    writer = ReplayWriter(ring, layout, gamma=gamma, n_step=n_step, num_envs=len(found.first))
    if n_step == 1:
        index = np.arange(len(found))
        writer.write(found.obs, _choice(found.action), _outcome(found, index, np.ones(len(found), np.bool_)))
    else:  # every episode is an environment: all take their step t together
        for step in range(int(found.length.max())):
            is_valid = step < found.length
            index = found.first + np.where(is_valid, step, 0)
            writer.write(found.obs[index], _choice(found.action[index]), _outcome(found, index, is_valid))
    return np.array(ring.read_range(0, ring.committed), dtype=np.float32)


def _choice(action: Float32) -> Choice:
    return Choice(action, None, 0)


def _outcome(found: Transitions, index: np.ndarray[tuple[int], np.dtype[np.int64]], is_valid: Bool) -> StepOutcome:
    untold = np.full(len(index), np.nan, np.float32)
    ends = found.terminated[index], found.truncated[index]
    return StepOutcome(found.next_obs[index], found.reward[index], *ends, is_valid, untold, untold)


class Recorder:
    """Collects the transitions of whole episodes, each at its end."""

    def __init__(self, spec: SpaceSpec) -> None:
        self._spec = spec
        self._columns: dict[str, list[Float32 | Float64 | Bool]] = {}

    def __call__(self, episode: Episode, _: Interval) -> None:
        """Keep the transitions of an episode."""
        is_last = np.arange(episode.length) == episode.length - 1
        steps: dict[str, Float32 | Float64 | Bool] = {
            "obs": episode.obs[:-1],
            "action": to_env(episode.action, self._spec),
            "reward": episode.reward,
            "next_obs": episode.obs[1:],
            "terminated": is_last & episode.terminated,
            "truncated": is_last & episode.truncated,
            "episode": np.full(episode.length, episode.index, np.float64),
        }
        for name, values in steps.items():
            self._columns.setdefault(name, []).append(values)

    def save(self, path: Path) -> int:
        """Write an `.npz` of demonstrations, episode after episode; returns its transitions. Raises `SaveError`."""
        columns = {name: np.concatenate(values) for name, values in self._columns.items()}
        order = np.argsort(columns["episode"], kind="stable")
        arrays: dict[str, NDArray[Any]] = {name: values[order] for name, values in columns.items()}
        arrays["episode"] = arrays["episode"].astype(np.int64)
        try:
            with atomic_file(path, durable=False) as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
        except OSError as error:
            raise SaveError(f"{path}: {error.strerror}") from error
        return len(order)
