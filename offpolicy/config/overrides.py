"""Command-line overrides and the files of conf/ become one checked `RunConfig`; every problem is reported at once.

Hydra parses the overrides and composes the groups; no other module imports it. Values are merged here rather than
by Hydra, which would refuse the first unknown key and stay silent about the others (ADR 18).
Precedence: command line > experiment > stage_env > algo_env > stage > env > algo > defaults. The files of runner/ and
logging/ and config.yaml show defaults of the dataclasses, or change what no other file does. A file of algo_env or
stage_env is loaded where there is one for the algorithm (and its stage) and the family that the env file names.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from offpolicy import plugins
from offpolicy.config.algorithms import AlgoConfig, algorithm_info
from offpolicy.config.extensions import EnvPreset
from offpolicy.config.parsing import flatten, merge, nested
from offpolicy.config.run_files import read_values
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.runs import find_run
from offpolicy.types import Json

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OPTIONAL_GROUPS = ("experiment",)
NAMED_BY = {"algo.name": "algo", "runner.name": "runner", "algo.stage": "stage"}  # the key that names a group's option
PLUGIN_GROUPS = {"algo": plugins.ALGOS, "env": plugins.ENVS}  # the groups that plug-ins add options to
AUTOMATIC_GROUPS = ("algo_env", "stage_env")  # their options follow from other groups
Groups = Mapping[str, str | None]  # the options of groups; None: an optional one is left out


@dataclass(frozen=True, slots=True)
class Overrides:
    """A parsed command line: group choices, nested values, and the problems found."""

    groups: Groups
    values: Mapping[str, Json]  # checked by RunConfig.from_mapping
    problems: tuple[str, ...]


def conf_dir() -> Path:
    """Returns the directory of the YAML files: inside the package when it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def group_options() -> dict[str, tuple[str, ...]]:
    """Returns the options of every group that a user can choose: the files of its directory, and plug-ins."""
    groups = sorted(path for path in conf_dir().iterdir() if path.is_dir() and path.name not in AUTOMATIC_GROUPS)
    ours = {group.name: {path.stem for path in group.glob("*.yaml")} for group in groups}
    theirs = {group: plugins.names(entry_points) for group, entry_points in PLUGIN_GROUPS.items()}
    return {group: tuple(sorted({*names, *theirs.get(group, ())})) for group, names in ours.items()}


def algorithms() -> tuple[str, ...]:
    """Returns the names of the algorithms, as `algo=` takes them."""
    return group_options()["algo"]


def environments() -> dict[str, str]:
    """Returns the Gymnasium ids of the environments that `env=` takes, by name; of a plug-in's, its entry point.

    Any other Gymnasium id is given as `env.id=...`, also as `module:EnvId-v0`.
    """
    found = {path.stem: read_values(path)["env"]["id"] for path in sorted((conf_dir() / "env").glob("*.yaml"))}
    own = {name: env_id for name, env_id in found.items() if name != "gym"}  # which takes any, and has none
    return {**{plugin.name: plugin.target for plugin in plugins.installed(plugins.ENVS)}, **own}


def load_config(tokens: Sequence[str], given: Mapping[str, Json] = MappingProxyType({})) -> RunConfig:
    """Returns the configuration that the overrides describe. Raises `ConfigError` listing every problem.

    `given`: nested values that come after those of the tokens, and need no quotes.
    """
    overrides = parse_overrides(tokens)
    problems, values = list(overrides.problems), merge(overrides.values, given)
    tree = _saved(values.pop("config"), overrides.groups) if "config" in values else _chosen(overrides.groups, values)
    try:
        config = RunConfig.from_mapping(_resolved(merge(tree, values), problems))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return config


def _chosen(groups: Groups, values: Mapping[str, Json]) -> dict[str, Json]:
    """Returns the values of the chosen groups."""
    # With env.id it is another environment than the group's, whose tuned values say nothing about this one.
    is_other = bool({"id", "batch"} & values.get("env", {}).keys())
    own = dict(groups) | (dict.fromkeys(AUTOMATIC_GROUPS, "none") if is_other else {})
    if "batch" in values.get("env", {}):
        values["env"].setdefault("id", "")
    tree = RunConfig().to_mapping()
    if (info := algorithm_info(groups.get("algo") or AlgoConfig().name)).options is not None:  # it has no file
        tree["algo"] = RunConfig(algo=info.options()).to_mapping()["algo"]
        own |= {"algo": None, **dict.fromkeys(AUTOMATIC_GROUPS, "none")}
        own |= {"runner": "appo"} if info.learns_from_rollouts and "runner" not in groups else {}
    preset = EnvPreset({})
    if (plugin := plugins.find(plugins.ENVS, groups.get("env") or "", "env")) is not None:
        preset, own["env"] = plugins.load(plugin, EnvPreset), "gym"
        if not is_other and info.options is None:
            stage = groups.get("stage") or AlgoConfig().stage
            own |= {"algo_env": f"{info.name}_{preset.family}", "stage_env": f"{info.name}_{stage}_{preset.family}"}
    chosen = {group: option for group, option in own.items() if option or group not in OPTIONAL_GROUPS}
    words = tuple(f"{group}={option}" if option else f"~{group}" for group, option in chosen.items())
    return merge(merge(tree, _composed(conf_dir(), words)), preset.values)


def _saved(source: Json, groups: Groups) -> dict[str, Json]:
    """Returns the values of another run, `config=RUN` or `config=RUN/config.yaml`, without its directory.

    Raises `ConfigError`, also for groups: those of that run stay.
    """
    if groups:
        fix = f"leave config={source} out, or change single keys, such as algo.gamma=0.98"
        raise ConfigError(
            [f"{name}: got {option!r}, but config= has chosen the groups; {fix}" for name, option in groups.items()]
        )
    values = read_values(_file_of(source))
    return {key: value for key, value in values.items() if key not in ("run_dir", "resume")}


def _file_of(source: Json) -> Path:
    path = Path(str(source))
    return path if path.is_file() else find_run(path) / "config.yaml"


def config_file(tokens: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Returns the file that `config=` takes values from, if it is given, and the keys of the command line itself."""
    values = dict(parse_overrides(tokens).values)
    file = _file_of(values.pop("config")) if "config" in values else None
    return file, tuple(flatten(values))


def load_values(tokens: Sequence[str]) -> dict[str, Json]:
    """Returns the nested values that the overrides of a saved run describe. Raises `ConfigError` with every problem."""
    overrides = parse_overrides(tokens)
    fix = "but a saved run keeps its groups; change single keys, such as log.panel=off"
    problems = [f"{group}: got {option!r}, {fix}" for group, option in overrides.groups.items()]
    if problems or overrides.problems:
        raise ConfigError([*overrides.problems, *problems])
    return dict(overrides.values)


def parse_overrides(tokens: Sequence[str]) -> Overrides:
    """Sorts `key=value` tokens into groups and values; later ones win."""
    options = group_options()
    groups: dict[str, str | None] = {}
    values: dict[str, Json] = {}
    problems: list[str] = []
    for token in tokens:
        try:
            key, value = _key_and_value(token, options)
            if key in options:
                groups[key] = _choice(key, value, options[key])
            else:
                values = merge(values, nested({key: value}))
        except ConfigError as error:
            problems += error.problems
    return Overrides(groups, values, tuple(problems))


def _key_and_value(token: str, options: Mapping[str, Sequence[str]]) -> tuple[str, Json]:
    """Returns key and value of one override. Raises `ConfigError` saying what to write instead."""
    from hydra.errors import HydraException

    key, equals, text = token.partition("=")
    if token.startswith("-"):
        raise ConfigError(f"{token}: overrides have no dashes; write {key.lstrip('-')}={text or '...'}")
    if not equals:
        near = next((f"{group}={token}" for group, names in options.items() if token in names), "seed=1")
        raise ConfigError(f"{token}: got no '=', allowed a group or key and its value, such as {near}")
    try:
        override = _override(token)
        value = override.value()
    except HydraException:
        raise ConfigError(f"{token}: not understood; quote the value: {key}={shlex.quote(_quoted(text))}") from None
    if override.is_sweep_override():
        raise ConfigError(f"{token}: one run takes one value; a list is written {key}=[1,2]")
    if override.is_delete() or override.package is not None or "/" in override.key_or_group:
        raise ConfigError(f"{token}: got {key!r}, allowed a group ({', '.join(options)}) or a dotted key")
    if (group := NAMED_BY.get(override.key_or_group)) in options:
        raise ConfigError(f"{token}: alone it would leave the group's other values behind; write {group}={value}")
    return override.key_or_group, value


def _override(token: str) -> Override:
    """Returns an override as Hydra's grammar reads it. Raises `HydraException`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(token)


def _choice(group: str, value: Json, names: Sequence[str]) -> str | None:
    """Returns the chosen option of a group; None for `null` where that is allowed."""
    if value is None and group in OPTIONAL_GROUPS:
        return None
    if isinstance(value, str) and value in names:
        if group in PLUGIN_GROUPS:  # refuses a name that is ours too, or that of two plug-ins
            plugins.find(PLUGIN_GROUPS[group], value, group, [path.stem for path in (conf_dir() / group).iterdir()])
        return value
    near = difflib.get_close_matches(str(value).lower(), names, 1)
    guess = f"; did you mean {near[0]}?" if near else ""
    any_id = f"; a Gymnasium id is written env.id={value}" if group == "env" else ""
    raise ConfigError(f"{group}: got {value!r}, allowed one of {', '.join(names)}{guess}{any_id}")


@functools.cache  # 0.2 s, and a sweep asks for every trial
def _composed(home: Path, words: tuple[str, ...]) -> dict[str, Json]:
    """Returns the chosen files of conf/, merged by Hydra. Raises `ConfigError` when one of them is broken."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with initialize_config_dir(str(home), version_base="1.3"):
            tree: Json = OmegaConf.to_container(compose("config", list(words)))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{home}: {error}") from error
    return dict(tree)


def _resolved(tree: Mapping[str, Json], problems: list[str]) -> dict[str, Json]:
    """Returns `tree` with interpolations such as `${seed}` filled in; adds those that fail, and missing values."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.create(dict(tree))
        problems += [f"{key}: not given; write {key}=..." for key in sorted(OmegaConf.missing_keys(config))]
        resolved: Json = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        problems.append(f"{error.full_key}: {str(error.msg).splitlines()[0]}")
        return dict(tree)
    return dict(resolved)


def as_override(value: Json) -> str:
    """Returns a value as it is written on the command line, in Hydra's grammar."""
    from hydra.errors import HydraException

    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{as_override(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(as_override, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    with contextlib.suppress(HydraException):
        if value and _override(f"key={value}").value() == value:
            return value
    return _quoted(value)


def _quoted(text: str) -> str:
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.double).with_quotes()
