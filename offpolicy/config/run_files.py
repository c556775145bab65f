"""The files of a run that hold its configuration and spaces: `config.yaml` and `spaces.json`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import yaml

from offpolicy import __version__
from offpolicy.config.parsing import flatten
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError, SaveError
from offpolicy.files import atomic_write
from offpolicy.types import Json, SpaceSpec

PLUGIN_NOTE = "# plug-in: "  # begins the comment on a plug-in that the start of a run has used
VERSION_NOTE = "# offpolicy "  # begins the comment on a start of the run, with the version that wrote it
OWN_KWARGS = ("env.kwargs.groups", "env.kwargs.num_threads")  # observations and stepping: not another task


def write_config(path: Path, cfg: RunConfig, spec: SpaceSpec) -> None:
    """Writes `config.yaml`, the resolved configuration, and `spaces.json`, the spaces. Raises `SaveError`."""
    files = {
        path / "config.yaml": yaml.safe_dump(cfg.to_mapping(), sort_keys=False),
        path / "spaces.json": json.dumps(asdict(spec)),
    }
    for file, text in files.items():  # each whole or not at all: without it the run could not be resumed
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        text += "".join(f"{line}\n" for line in before.splitlines() if line.startswith("#"))  # of earlier starts
        if before == text:
            continue
        try:
            atomic_write(file, text, durable=True)
        except OSError as error:
            raise SaveError(f"{file}: {error.strerror}") from error


def read_config(path: Path) -> RunConfig:
    """Returns the configuration of a run directory. Raises `ConfigError`."""
    file = path / "config.yaml"
    try:
        return RunConfig.from_mapping(read_values(file))
    except ConfigError as error:
        raise ConfigError([*_other_versions(file), *error.problems]) from None


def read_values(file: Path) -> dict[str, Json]:
    """Returns the values of a YAML file such as `config.yaml`, unchecked. Raises `ConfigError` for no mapping."""
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise ConfigError(f"{file}: got {found}, allowed a mapping")
    return tree


def _other_versions(file: Path) -> list[str]:
    """Returns lines on the plug-ins and the version that wrote a configuration which this one refuses."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    used = dict.fromkeys(re.findall(rf"^{PLUGIN_NOTE}(.+)$", text, re.MULTILINE))
    # A version begins with a digit: the comment after it holds the command, `offpolicy train ...`.
    wrote = re.findall(rf"^{VERSION_NOTE}(\d[\w.+]*)", text, re.MULTILINE)
    return [f"{file}: used the plug-in {label}; is it installed?" for label in used] + [
        f"{file}: written by offpolicy {version}, this is {__version__}; pip install 'offpolicy=={version}'"
        for version in wrote[-1:]
        if version != __version__
    ]


def read_spec(path: Path) -> SpaceSpec:
    """Returns the spaces of a run directory. Raises `ConfigError`."""
    try:
        return SpaceSpec.from_json(json.loads((path / "spaces.json").read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the last two: of another program, or version
        raise ConfigError(f"{path / 'spaces.json'}: cannot be read: {error}") from None


def env_differences(one: EnvConfig, other: EnvConfig) -> list[str]:
    """Returns where the tasks of two configurations differ, as `key value, other value`."""
    first, second = (
        {"env.id": env.id, "env.wrappers": list(env.wrappers)} | flatten(env.kwargs, "env.kwargs.")
        for env in (one, other)
    )
    keys = (key for key in first | second if key not in OWN_KWARGS and first.get(key) != second.get(key))
    return [f"{key} {first.get(key)!r}, {second.get(key)!r}" for key in keys]
