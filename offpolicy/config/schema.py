"""The configuration of a run, checked as a whole, and its files.

`RunConfig.from_mapping` turns a plain nested mapping into a checked `RunConfig` and reports every problem at once:
unknown keys with the nearest known one, wrong types, values out of range, impossible combinations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from offpolicy import __version__
from offpolicy.config.chosen import chosen_classes
from offpolicy.config.parsing import build, flatten, keys_of
from offpolicy.config.rules import broken_rules
from offpolicy.config.sections import ALGORITHMS, EnvConfig, RunSections, algorithm_info, algorithm_plugin
from offpolicy.config.usable import keys_for
from offpolicy.errors import ConfigError, SaveError
from offpolicy.files import atomic_write
from offpolicy.types import SpaceSpec

PLUGIN_NOTE = "# plug-in: "  # begins the comment on a plug-in that the start of a run has used
VERSION_NOTE = "# offpolicy "  # begins the comment on a start of the run, with the version that wrote it
OWN_KWARGS = ("env.kwargs.groups", "env.kwargs.num_threads")  # observations and stepping: not another task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(RunSections):
    """Everything a run needs; the resolved form is written to `config.yaml` of the run directory."""

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Returns the checked configuration. Raises `ConfigError` listing every problem."""
        problems: list[str] = []
        chosen = dict(chosen_classes(raw, problems))
        if problems:  # the options of a plug-in that cannot be used are unknown
            raise ConfigError(problems)
        config = build(cls, raw, problems, _usable_keys(raw), chosen=chosen)
        if not problems:
            problems += broken_rules(config)
        if problems:
            raise ConfigError(problems)
        return config


def all_keys() -> list[str]:
    """Returns every dotted key of the configuration."""
    return keys_of(RunConfig)


def _usable_keys(raw: Mapping[str, Any]) -> list[str]:
    """Returns the keys of the algorithm that a configuration names; all of them where it names none."""
    algo = raw.get("algo")
    given = (algo.get("name"), algo.get("stage")) if isinstance(algo, Mapping) else (None, None)
    infos = [info for info in ALGORITHMS if info.name == given[0]]
    infos = [info for info in infos if info.stage == given[1]] or infos[:1]
    if not infos and isinstance(given[0], str) and algorithm_plugin(given[0]) is not None:
        infos = [algorithm_info(given[0])]
    return list(keys_for(infos[0])) if infos else all_keys()


def write_config(path: Path, cfg: RunConfig, spec: SpaceSpec) -> None:
    """Writes `config.yaml`, the resolved configuration, and `spaces.json`, the spaces. Raises `SaveError`."""
    files = {
        path / "config.yaml": yaml.safe_dump(cfg.to_mapping(), sort_keys=False),
        path / "spaces.json": json.dumps(asdict(spec)),
    }
    for file, text in files.items():  # each whole or not at all: without it the run could not be resumed
        text += _notes(file)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        try:
            atomic_write(file, text, durable=True)
        except OSError as error:
            raise SaveError(f"{file}: {error.strerror}") from error


def _notes(file: Path) -> str:
    """Returns the comments of an earlier start of the run."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return "".join(f"{line}\n" for line in lines if line.startswith("#"))


def read_config(path: Path) -> RunConfig:
    """Returns the configuration of a run directory. Raises `ConfigError`."""
    file = path / "config.yaml"
    tree = read_values(file)
    try:
        return RunConfig.from_mapping(tree)
    except ConfigError as error:
        raise ConfigError([*_other_version(file), *error.problems]) from None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Refuses a key that a mapping has twice: YAML would keep the last and drop the others without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # Any: an anchor, which PyYAML does not type
        """Returns the mapping. Raises `yaml.MarkedYAMLError`."""
        node = super().compose_mapping_node(anchor)
        keys = [(key.tag, key.value) for key, _ in node.value]
        for index, (key, _) in enumerate(node.value):
            if keys[index] in keys[:index]:
                raise yaml.MarkedYAMLError(None, None, f"got the key {key.value!r} twice, allowed once", key.start_mark)
        return node


def read_values(file: Path, allowed: str = "the mapping that a run writes") -> dict[str, Any]:
    """Returns the values of a YAML file such as `config.yaml`, unchecked. Raises `ConfigError` for no mapping."""
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: got {_kind(tree)}, allowed {allowed}")
    return tree


def _kind(tree: object) -> str:
    return "nothing" if tree is None else f"a {type(tree).__name__}"


def _other_version(file: Path) -> list[str]:
    """Returns a line on the version that wrote a configuration which this one refuses."""
    text = file.read_text(encoding="utf-8")
    # A version begins with a digit: the comment after it holds the command, `offpolicy train ...`.
    wrote = re.findall(rf"^{VERSION_NOTE}(\d[\w.+]*)", text, re.MULTILINE)
    used = dict.fromkeys(re.findall(rf"^{PLUGIN_NOTE}(.+)$", text, re.MULTILINE))
    needed = [f"{file}: used the plug-in {label}; is it installed?" for label in used]
    if not wrote or wrote[-1] == __version__:
        return needed
    return [
        *needed,
        f"{file}: written by offpolicy {wrote[-1]}, this is {__version__}; pip install 'offpolicy=={wrote[-1]}'",
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
