"""Command-line overrides and the files of conf/ become one checked `RunConfig`; every problem is reported at once.

Hydra parses the overrides and composes the groups; no other module imports it. Values are merged here rather than
by Hydra, which would refuse the first unknown key and stay silent about the others (ADR 0018).
Precedence: command line > experiment > stage_env > algo_env > stage > env > algo > defaults. The files of runner/ and
logging/ and config.yaml show defaults of the dataclasses, or change what no other file does. A file of algo_env or
stage_env is loaded where there is one for the algorithm (and its stage) and the family that the env file names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpolicy.config.parsing import flatten, merge
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError

OPTIONAL_GROUPS = ("experiment",)
NAMED_BY = {"algo.name": "algo", "runner.name": "runner", "algo.stage": "stage"}  # the key that names a group's option
AUTOMATIC_GROUPS = ("algo_env", "stage_env")  # their options follow from other groups


@dataclass(frozen=True, slots=True)
class Overrides:
    """A parsed command line: group choices, nested values, and the problems found."""

    groups: Mapping[str, str | None]  # None: an optional group left out
    values: Mapping[str, Any]  # Any: a value of the configuration, checked by RunConfig.from_mapping
    problems: tuple[str, ...]


def conf_dir() -> Path:
    """Returns the directory of the YAML files: inside the package when it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf: no config.yaml in {package / 'conf'} or {package.parent / 'conf'}; reinstall offpolicy")


def group_options() -> dict[str, tuple[str, ...]]:
    """Returns the options of every group that a user can choose: the files of its directory."""
    groups = sorted(path for path in conf_dir().iterdir() if path.is_dir() and path.name not in AUTOMATIC_GROUPS)
    return {group.name: tuple(sorted(path.stem for path in group.glob("*.yaml"))) for group in groups}


def load_config(tokens: Sequence[str]) -> RunConfig:
    """Returns the configuration that the overrides describe. Raises `ConfigError` listing every problem."""
    overrides = parse_overrides(tokens)
    problems = list(overrides.problems)
    algo, stage = (overrides.groups.get(group) for group in ("algo", "stage"))
    if stage == "adapt" and algo != "hora":
        raise ConfigError(f"stage: got adapt, allowed nothing with algo={algo or 'sac'}: only algo=hora has stages")
    # With env.id it is another environment than the group's, whose tuned values say nothing about this one.
    is_other = "id" in overrides.values.get("env", {})
    groups = dict(overrides.groups) | (dict.fromkeys(AUTOMATIC_GROUPS, "none") if is_other else {})
    tree = merge(merge(RunConfig().to_mapping(), _composed(groups)), overrides.values)
    try:
        config = RunConfig.from_mapping(_resolved(tree, problems))
    except ConfigError as error:
        raise ConfigError(problems + list(error.problems)) from None
    if problems:
        raise ConfigError(problems)
    return config


def load_values(tokens: Sequence[str]) -> dict[str, Any]:  # Any: values are checked with the run's own configuration
    """Returns the nested values that the overrides of a saved run describe. Raises `ConfigError` with every problem."""
    overrides = parse_overrides(tokens)
    problems = list(overrides.problems) + [
        f"{group}: got {option!r}, but a saved run keeps its groups; change single keys, such as log.panel=off"
        for group, option in overrides.groups.items()
    ]
    if problems:
        raise ConfigError(problems)
    return dict(overrides.values)


def parse_overrides(tokens: Sequence[str]) -> Overrides:
    """Sorts `key=value` tokens into groups and values; later ones win."""
    options = group_options()
    groups: dict[str, str | None] = {}
    values: dict[str, Any] = {}
    problems: list[str] = []
    queue = list(tokens)
    while queue:
        token = queue.pop(0)
        if token.startswith("--") and "=" not in token and queue and "=" not in queue[0] and queue[0][:1] != "-":
            token = f"{token} {queue.pop(0)}"  # `--key value` is one problem, not two
        try:
            key, value = _parsed(token, options)
            if key in options:
                groups[key] = _choice(key, value, options[key])
            else:
                for part in reversed(key.split(".")):
                    value = {part: value}
                values = merge(values, value)
        except ConfigError as error:
            problems += error.problems
    return Overrides(groups, values, tuple(problems))


def _parsed(token: str, options: Mapping[str, Sequence[str]]) -> tuple[str, Any]:
    """Returns key and value of one override. Raises `ConfigError` saying what to write instead."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if token.startswith("-"):
        key, _, text = token.lstrip("-").replace(" ", "=", 1).partition("=")
        raise ConfigError(f"{token}: overrides have no dashes; write {key}={text or '<value>'}")
    if token.startswith("~"):
        raise ConfigError(f"{token}: keys cannot be deleted; write {token[1:].partition('=')[0]}=<value>")
    if "=" not in token:
        homes = [group for group, names in options.items() if token in names]
        example = f"{homes[0]}={token}" if homes else f"{token}=<value>"
        raise ConfigError(f"{token}: no '=' in it; write {example}")
    key, _, text = token.partition("=")
    try:
        override = OverridesParser.create().parse_override(token)
        value = override.value()
    except HydraException:
        raise ConfigError(f"{token}: not understood; quote the value: {key}='\"{text}\"'") from None
    if override.is_sweep_override():
        raise ConfigError(
            f"{token}: one run takes one value; write a list as {key}=[{text}], text as {key}='\"{text}\"'"
        )
    if override.package is not None or "/" in override.key_or_group:
        raise ConfigError(
            f"{token}: got {override.key_or_group!r}, allowed a group ({', '.join(options)}) or a dotted key"
        )
    group = NAMED_BY.get(override.key_or_group)
    if group in options:
        raise ConfigError(f"{token}: alone it would leave the group's other values behind; write {group}={value}")
    return override.key_or_group, value


def _choice(group: str, value: Any, names: Sequence[str]) -> str | None:
    """Returns the chosen option of a group; None for `null` where that is allowed."""
    if value is None and group in OPTIONAL_GROUPS:
        return None
    if isinstance(value, str) and value in names:
        return value
    near = difflib.get_close_matches(str(value).lower(), names, 1)
    guess = f"; did you mean {near[0]}?" if near else ""
    other = f"; any other Gymnasium id: env.id={value}" if group == "env" and not near else ""
    raise ConfigError(f"{group}: got {value!r}, allowed one of {', '.join(names)}{guess}{other}")


def _composed(groups: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the chosen files of conf/, merged by Hydra. Raises `ConfigError` when one of them is broken."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            tree = compose("config", [f"{group}={option}" for group, option in groups.items() if option])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{conf_dir()}: {error}") from error
    return _mapping(OmegaConf.to_container(tree))


def _resolved(tree: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Returns `tree` with interpolations such as `${seed}` filled in; adds missing values and keys to `problems`."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        container = OmegaConf.to_container(OmegaConf.create(dict(tree)), resolve=True)
    except OmegaConfBaseException as error:
        problems.append(f"{error.full_key}: {str(error.msg).splitlines()[0]}")
        return dict(tree)
    resolved = _mapping(container)
    problems += [f"{key}: not given; write {key}=<value>" for key, value in flatten(resolved).items() if value == "???"]
    return resolved


def _mapping(container: Any) -> dict[str, Any]:
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
