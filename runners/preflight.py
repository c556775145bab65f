"""What can be refused before a training process exists, and the files that describe a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from offpolicy.checkpoint import Checkpoint
from offpolicy.config import RunConfig
from offpolicy.envs.probe import check_id, probe
from offpolicy.errors import ConfigError, SaveError
from offpolicy.logger.wandb_sink import require_login
from offpolicy.types import SpaceSpec

from . import wiring


def preflight(cfg: RunConfig) -> SpaceSpec:
    """Look at the environment and the memory. Raises `ConfigError`, or `EnvFailure` if the environment itself fails."""
    check_id(cfg.env.id)
    if cfg.device.startswith("cuda"):
        _check_cuda(cfg.device)
    if cfg.log.wandb == "online":
        require_login()
    spec = probe(cfg.env)
    wiring.check_memory(wiring.replay_nbytes(cfg, spec))
    return spec


def _check_cuda(device: str) -> None:
    """Refuse a CUDA device that is not there. Another process asks torch: the supervisor stays free of it."""
    command = [sys.executable, "-P", "-c", "import torch; print(torch.cuda.device_count())"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    count = int(answer.stdout or 0)
    if int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(f"device: got {device}, allowed auto, cpu or one of the {count} CUDA devices of this machine")


# What may change when a run goes on; anything else would make it another experiment.
RESUMABLE = ("total_timesteps", "device", "log", "eval", "checkpoint", "timing", "threads", "env.step_timeout_s")


def check_same(cfg: RunConfig, saved: RunConfig) -> None:
    """Refuse to go on with a run under another configuration, naming every difference. Raises `ConfigError`."""
    before, now = flat(saved.to_mapping()), flat(cfg.to_mapping())
    free = (*RESUMABLE, "run_dir", "resume")
    differences = [
        f"{key}: the run has {before.get(key)!r}, this command {now.get(key)!r}; cannot change when a run goes on"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not is_within(key, free)
    ]
    if differences:
        raise ConfigError(differences)


def is_within(key: str, sections: tuple[str, ...]) -> bool:
    """Whether a dotted key is one of the sections or inside one."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a nested mapping by dotted key."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return values


def check_fits(cfg: RunConfig, spec: SpaceSpec, checkpoint: Checkpoint) -> None:
    """Refuse to continue a checkpoint of another shape, naming every difference. Raises `ConfigError`."""
    saved = checkpoint.json("state")["fingerprint"]
    now = wiring.fingerprint(cfg, spec)
    differences = [
        f"{key}: the checkpoint {checkpoint.path} has {saved.get(key)}, this configuration {value}"
        for key, value in now.items()
        if saved.get(key) != value
    ]
    if differences:
        raise ConfigError(differences)


def write_config(path: Path, cfg: RunConfig, spec: SpaceSpec) -> None:
    """`config.yaml`, the resolved configuration, and `spaces.json`, what the environment said of itself."""
    _replace(path / "config.yaml", yaml.safe_dump(cfg.to_mapping(), sort_keys=False))
    _replace(path / "spaces.json", json.dumps(asdict(spec)))


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all: without it the run could not be resumed."""
    if path.exists() and path.read_text() == text:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SaveError(f"{path}: {error.strerror}") from error


def read_config(path: Path) -> RunConfig:
    """The configuration of a run directory. Raises `ConfigError`."""
    try:
        return RunConfig.from_mapping(yaml.safe_load((path / "config.yaml").read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path / 'config.yaml'}: cannot be read: {error}") from None


def read_spec(path: Path) -> SpaceSpec:
    """The spaces of a run directory."""
    return wiring.spec_from_json(json.loads((path / "spaces.json").read_text()))
