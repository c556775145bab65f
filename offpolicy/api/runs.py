"""A run as an object: its summary, its curves and its policy."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offpolicy.api.arguments import AnyRun, path_of
from offpolicy.config.run_files import read_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.runs import SUMMARY, existing_run, is_of_earlier_start, known_summary, read_lines
from offpolicy.types import Float64

if TYPE_CHECKING:
    from offpolicy.api.acting import LoadedPolicy

SHOWN = ("status", "env_steps", "updates", "wall_s")  # of the summary, by `repr`


@dataclass(frozen=True)
class TrainedRun:
    """A run directory, read when something of it is asked for. Finished or not, of this process or any other.

    `read` and `train` make its path absolute: the working directory may change before it is read.
    """

    run_dir: Path

    @classmethod
    def read(cls, run: AnyRun) -> TrainedRun:
        """Returns the run of a directory, of the beginning of its name, or `latest`. Raises `ConfigError`."""
        return cls(existing_run(path_of(run)).absolute())

    @property
    def summary(self) -> Mapping[str, Any]:  # Any: values of a JSON file
        """What `summary.json` holds. A resumed run has that of its last end; a run that never ended has none."""
        return known_summary(self.run_dir)

    @property
    def status(self) -> str:
        """`completed`, `interrupted` or `failed`; '' before the run has ended, also where it goes on or was killed."""
        return "" if is_of_earlier_start(self.run_dir / SUMMARY) else str(self.summary.get("status", ""))

    @property
    def config(self) -> RunConfig:
        """The whole configuration. Raises `ConfigError` where this version cannot read it."""
        return read_config(self.run_dir)

    @cached_property
    def curves(self) -> Mapping[str, Float64]:
        """Every number of the records by its key, such as `eval/mean_reward`: arrays [R], NaN where a record has none.

        `env_steps` is the axis of them all. They are read once: `TrainedRun.read` reads a run that goes on again.
        """
        return _columns(read_lines(self.run_dir / "metrics.jsonl"))

    @cached_property
    def episodes(self) -> Mapping[str, Float64]:
        """Every finished training episode, the same way: `env_steps`, `ep_return`, `ep_length` and others, [E]."""
        return _columns(read_lines(self.run_dir / "episodes.jsonl"))

    def curve(self, key: str) -> tuple[Float64, Float64]:
        """Returns env steps [P] and values [P] of one key, without the records that do not have it.

        Raises `ConfigError` for a key that no record has.
        """
        if key not in self.curves:
            raise ConfigError(f"key: got {key!r}, allowed one of {', '.join(self.curves) or 'none: no record yet'}")
        is_known = ~np.isnan(self.curves[key])
        return self.curves["env_steps"][is_known], self.curves[key][is_known]

    def frame(self) -> Any:  # Any: pandas.DataFrame; pandas is no dependency of ours
        """Returns the curves as a pandas DataFrame, one row per record. Raises `ConfigError` without pandas."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise ConfigError(
                "frame: needs pandas: pip install pandas; .curves has the same as numpy arrays"
            ) from error
        return pandas.DataFrame(dict(self.curves))

    def policy(self, *, step: int | None = None, device: str = "cpu", trust: bool = False) -> LoadedPolicy:
        """Returns the policy of the newest checkpoint, or of the one at env step `step`, as `offpolicy.load` does."""
        acting = importlib.import_module("offpolicy.api.acting")  # it imports torch
        loaded: LoadedPolicy = acting.load(self.run_dir, step=step, device=device, trust=trust)
        return loaded

    def __repr__(self) -> str:
        known = [f"{name}={self.summary[name]!r}" for name in SHOWN if name in self.summary]
        evaluation = self.summary.get("eval") or {}
        known += [f"mean_reward={evaluation['mean_reward']!r}"] if "mean_reward" in evaluation else []
        return f"TrainedRun({', '.join([repr(str(self.run_dir)), *known])})"


def plain_value(value: Any) -> Any:  # Any: a value of a Python program, and one of the configuration
    """Returns a value as the configuration has it: a path or a run as text, an array as lists, NumPy's as Python's."""
    if isinstance(value, TrainedRun):
        return str(value.run_dir)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain_value(value.tolist()) if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, list | tuple) else value


def _columns(records: list[dict[str, Any]]) -> dict[str, Float64]:
    """Returns the numbers of records by key; keys of texts are left out."""
    is_number = {key: isinstance(value, int | float) for record in records for key, value in record.items()}
    return {
        key: np.array(
            [record[key] if isinstance(record.get(key), int | float) else np.nan for record in records], np.float64
        )
        for key, is_kept in is_number.items()
        if is_kept
    }
