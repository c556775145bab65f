"""The configuration of a run, checked as a whole, and its files.

`RunConfig.from_mapping` turns a plain nested mapping into a checked `RunConfig` and reports every problem at once:
unknown keys with the nearest known one, wrong types, values out of range, impossible combinations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from offpolicy.config.parsing import build, flatten, keys_of
from offpolicy.config.rules import broken_rules
from offpolicy.config.sections import EnvConfig, RunSections
from offpolicy.errors import ConfigError, SaveError
from offpolicy.files import atomic_write
from offpolicy.types import SpaceSpec

OWN_KWARGS = ("env.kwargs.groups", "env.kwargs.num_threads")  # observations and stepping: not another task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(RunSections):
    """Everything a run needs; the resolved form is written to `config.yaml` of the run directory."""

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Returns the checked configuration. Raises `ConfigError` listing every problem."""
        problems: list[str] = []
        config = build(cls, raw, problems, all_keys())
        if not problems:
            problems += broken_rules(config)
        if problems:
            raise ConfigError(problems)
        return config


def all_keys() -> list[str]:
    """Returns every dotted key of the configuration."""
    return keys_of(RunConfig)


def write_config(path: Path, cfg: RunConfig, spec: SpaceSpec) -> None:
    """Writes `config.yaml`, the resolved configuration, and `spaces.json`, the spaces. Raises `SaveError`."""
    files = {
        path / "config.yaml": yaml.safe_dump(cfg.to_mapping(), sort_keys=False),
        path / "spaces.json": json.dumps(asdict(spec)),
    }
    for file, text in files.items():  # each whole or not at all: without it the run could not be resumed
        if file.exists() and file.read_text() == text:
            continue
        try:
            atomic_write(file, text, durable=False)
        except OSError as error:
            raise SaveError(f"{file}: {error.strerror}") from error


def read_config(path: Path) -> RunConfig:
    """Returns the configuration of a run directory. Raises `ConfigError`."""
    try:
        tree = yaml.safe_load((path / "config.yaml").read_text())
        if threads := tree.get("threads"):  # null was auto
            tree["threads"] = {role: "auto" if number is None else number for role, number in threads.items()}
        return RunConfig.from_mapping(tree)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path / 'config.yaml'}: cannot be read: {error}") from None


def read_spec(path: Path) -> SpaceSpec:
    """Returns the spaces of a run directory. Raises `ConfigError`."""
    try:
        return SpaceSpec.from_json(json.loads((path / "spaces.json").read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / 'spaces.json'}: cannot be read: {error}") from None


def env_differences(one: EnvConfig, other: EnvConfig) -> list[str]:
    """Returns where the tasks of two configurations differ, as `key value, other value`."""
    first, second = ({"env.id": env.id} | flatten(env.kwargs, "env.kwargs.") for env in (one, other))
    keys = (key for key in first | second if key not in OWN_KWARGS and first.get(key) != second.get(key))
    return [f"{key} {first.get(key)!r}, {second.get(key)!r}" for key in keys]
