"""`offpolicy train` and `offpolicy resume`: configuration in, exit code out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpolicy.config.parsing import flatten, is_within, merge
from offpolicy.config.run_files import read_config
from offpolicy.config.schema import ReplayConfig, RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError
from offpolicy.launch.preflight import RESUMABLE

from .launch import launch


def train(cfg: RunConfig) -> int:
    """Train, and return the exit code of the run."""
    return launch(cfg)


def resume(run: Path, overrides: Mapping[str, Any]) -> int:
    """Go on with the run in directory `run`; `overrides` may change what `RESUMABLE` lists."""
    refused = [key for key in flatten(overrides) if not is_within(key, RESUMABLE)]
    if refused:
        allowed = ", ".join(RESUMABLE)
        raise ConfigError([f"{key}: cannot change when a run is resumed; allowed {allowed}" for key in refused])
    if HostInfo.of_launcher().job:
        raise ConfigError("resume: under torchrun write `offpolicy train run_dir=...` with the command of the start")
    saved = merge(read_config(run).to_mapping(), overrides)
    if saved["replay"]["demos"] is None and "replay.demo_share" not in flatten(overrides):
        saved = merge(saved, {"replay": {"demo_share": ReplayConfig().demo_share}})  # the share goes with them
    return launch(RunConfig.from_mapping(merge(saved, {"run_dir": str(run), "resume": "must"})))
