"""`offpolicy train` and `offpolicy resume`: configuration in, exit code out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpolicy.config import RunConfig, merge
from offpolicy.errors import ConfigError

from .launch import launch
from .preflight import read_config

# What may change when a run goes on; anything else would make it another experiment.
RESUMABLE = ("total_timesteps", "device", "log", "eval", "checkpoint", "timing", "threads", "env.step_timeout_s")


def train(cfg: RunConfig) -> int:
    """Train, and return the exit code of the run."""
    return launch(cfg)


def resume(run: Path, overrides: Mapping[str, Any]) -> int:
    """Go on with the run in directory `run`; `overrides` may change what `RESUMABLE` lists."""
    refused = [key for key in _flat_keys(overrides) if not key.startswith(RESUMABLE)]
    if refused:
        allowed = ", ".join(RESUMABLE)
        raise ConfigError([f"{key}: cannot change when a run is resumed; allowed {allowed}" for key in refused])
    saved = read_config(run).to_mapping()
    return launch(RunConfig.from_mapping(merge(saved, {**overrides, "run_dir": str(run), "resume": "must"})))


def _flat_keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in tree.items():
        keys += _flat_keys(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [prefix + name]
    return keys
