"""A run as an object: its summary, its curves and its policy; and what Python programs give, checked."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offpolicy.commands.options import PolicyChoice
from offpolicy.config.run_files import read_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.runs import SUMMARY, existing_run, find_run, is_of_earlier_start, known_summary, read_lines
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
    def read(cls, run: str | Path | TrainedRun) -> TrainedRun:
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
            instead = ".curves has the same as numpy arrays"
            raise ConfigError(f"frame: needs pandas: pip install pandas; {instead}") from error
        return pandas.DataFrame(dict(self.curves))

    def policy(self, *, step: int | None = None, device: str = "cpu", trust: bool = False) -> LoadedPolicy:
        """Returns the policy of the newest checkpoint, or of the one at env step `step`, as `offpolicy.load` does."""
        return load(self, step=step, device=device, trust=trust)

    def __repr__(self) -> str:
        known = [f"{name}={self.summary[name]!r}" for name in SHOWN if name in self.summary]
        evaluation = self.summary.get("eval") or {}
        known += [f"mean_reward={evaluation['mean_reward']!r}"] if "mean_reward" in evaluation else []
        return f"TrainedRun({', '.join([repr(str(self.run_dir)), *known])})"


AnyRun = str | Path | TrainedRun


def load(
    run: AnyRun, *, step: int | None = None, device: str = "cpu", seed: int = 0, trust: bool = False
) -> LoadedPolicy:
    """Returns the policy of a run's newest checkpoint, or of the one at env step `step`. No process is started.

    `run` is a directory, the beginning of a run's name, `latest`, or a `TrainedRun`. `seed` is that of actions with
    exploration. Raises `ConfigError`, also for a run whose configuration names code that may not be the caller's own
    (`trust=True` allows it, as `--trust` does), and `CheckpointError` where there is no usable checkpoint.
    """
    step = None if step is None else whole_number("step", step, 0)
    seed = whole_number("seed", seed, 0)
    path = path_of(run)
    from offpolicy.api.acting import LoadedPolicy  # these import torch
    from offpolicy.commands.saved_run import SavedRun

    return LoadedPolicy(SavedRun.find(path, PolicyChoice(step=step, device=device, is_trusted=trust)), seed)


def path_of(run: object) -> Path:
    """Returns the directory of a run that a program names. Raises `ConfigError` where it names none, or several."""
    if isinstance(run, TrainedRun):
        return run.run_dir
    if isinstance(run, str | Path):
        return find_run(run)
    allowed = "a directory, latest, the beginning of a run's name, or a TrainedRun"
    raise ConfigError(f"run: got {kind(run)}, allowed {allowed}")


def kind(given: object) -> str:
    """Returns what a program has given in place of something else: None, or its type."""
    return "None" if given is None else f"a {type(given).__name__}"


def whole_number(name: str, given: object, least: int) -> int:
    """Returns a whole number, also one of NumPy's. Raises `ConfigError` for anything else and below `least`."""
    number = plain_value(given)
    if type(number) is int and number >= least:  # not a bool
        return number
    raise ConfigError(f"{name}: got {number!r}, allowed a whole number in [{least}, inf)")


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
    rows = [{key: value for key, value in record.items() if isinstance(value, int | float)} for record in records]
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: np.array([row.get(key, np.nan) for row in rows], np.float64) for key in keys}
