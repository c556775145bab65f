"""Command-line overrides and the files of conf/ become one checked `RunConfig`; every problem is reported at once.

Hydra parses the overrides and composes the groups; no other module imports it. Values are merged here rather than
by Hydra, which would refuse the first unknown key and stay silent about the others (ADR 0018).
Precedence: command line > experiment > stage_env > algo_env > stage > env > algo > defaults. The files of runner/ and
logging/ and config.yaml show defaults of the dataclasses, or change what no other file does. A file of algo_env or
stage_env is loaded where there is one for the algorithm (and its stage) and the family that the env file names.
"""

from __future__ import annotations

import copy
import difflib
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from offpolicy import plugins
from offpolicy.config.chosen import chosen_classes
from offpolicy.config.extensions import EnvPreset
from offpolicy.config.foreign_names import without_foreign
from offpolicy.config.parsing import KEY_ALLOWED, as_override, clash, flatten, is_key, is_within, merge, nested, quoted
from offpolicy.config.rules import unread_options
from offpolicy.config.schema import RunConfig, read_values
from offpolicy.config.sections import ALGORITHMS, AlgoConfig, AlgorithmInfo, algorithm_info
from offpolicy.config.tokens import homes, instead_of_several, looks_like_id, misshapen
from offpolicy.config.usable import KWARGS, example_word, specs
from offpolicy.errors import ConfigError
from offpolicy.files import too_long
from offpolicy.run_names import find_run

OPTIONAL_GROUPS = ("experiment",)
NAMED_BY = {"algo.name": "algo", "runner.name": "runner", "algo.stage": "stage"}  # the key that names a group's option
PLUGIN_GROUPS = {"algo": plugins.ALGOS, "env": plugins.ENVS}  # the groups that plug-ins add options to
MISSING = "???"
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
    ours = {group.name: {path.stem for path in group.glob("*.yaml")} for group in groups}
    return {group: tuple(sorted(names | set(_plugin_names(group)))) for group, names in ours.items()}


def _plugin_names(group: str) -> tuple[str, ...]:
    """Returns the options of a group that plug-ins add."""
    return plugins.names(PLUGIN_GROUPS[group]) if group in PLUGIN_GROUPS else ()


def _check_clash(group: str, name: str) -> None:
    """Refuses an option that is ours and a plug-in's, or that of two. Raises `ConfigError`."""
    if group in PLUGIN_GROUPS:
        ours = [path.stem for path in (conf_dir() / group).glob("*.yaml")]
        plugins.find(PLUGIN_GROUPS[group], name, group, ours)


def environment_ids() -> dict[str, str]:
    """Returns the Gymnasium ids of the environments that `env=` takes, by name; of a plug-in's, its entry point.

    `gym`, which takes any, has none.
    """
    found = {path.stem: read_values(path) for path in sorted((conf_dir() / "env").glob("*.yaml"))}
    ids = {name: values.get("env", {}).get("id") for name, values in found.items()}
    own = {name: env_id for name, env_id in ids.items() if env_id != MISSING}
    return {**{plugin.name: plugin.target for plugin in plugins.installed(plugins.ENVS)}, **own}


# Any: values are checked with all others
def load_config(tokens: Sequence[str], given: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """Returns the configuration that the overrides describe. Raises `ConfigError` listing every problem.

    `given`: nested values that come after those of the tokens, and need no quotes.
    """
    overrides = parse_overrides(tokens, given=given)
    problems = list(overrides.problems)
    values = dict(overrides.values)
    tree = _saved(values.pop("config"), overrides.groups) if "config" in values else _chosen(overrides.groups, values)
    if overrides.groups.get("stage") == "adapt" and (algo := tree["algo"]["name"]) != "hora":  # an experiment's, maybe
        raise ConfigError(f"stage: got adapt, allowed nothing with algo={algo}: only algo=hora has stages")
    if isinstance(named := flatten(values).get("log.sinks"), list):  # what another run has set for others stays there
        tree["sinks"] = {name: own for name, own in tree.get("sinks", {}).items() if name in named}
    try:
        config = RunConfig.from_mapping(_resolved(merge(tree, values), problems))
    except ConfigError as error:
        raise ConfigError(problems + list(error.problems)) from None
    problems += unread_options(config, flatten(values)).values()
    if problems:
        raise ConfigError(problems)
    return config


def read_words(words: Sequence[str], config: RunConfig) -> list[str]:
    """Returns overrides without those of options that nothing reads in a configuration, which would be refused.

    It is for programs that add words of their own to those that a user has given. Of `replay={source:prefetch,slots:3}`
    only the options that nothing reads are left out.
    """
    found = list[str]()
    for word in words:
        key, _, text = word.partition("=")
        given = flatten(parse_overrides([word]).values) if text.startswith("{") else {key: text}
        unread = set(unread_options(config, given))
        if not config.log.sinks:
            unread |= {name for name in given if is_within(name, ("sinks",))}
        rest = [f"{name}={as_override(value)}" for name, value in given.items() if name not in unread]
        found += rest if unread else [word]
    return found


def _chosen(groups: Mapping[str, str | None], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the chosen groups."""
    # With env.id it is another environment than the group's, whose tuned values say nothing about this one.
    is_other = "id" in values.get("env", {})
    own = dict(groups) | (dict.fromkeys(AUTOMATIC_GROUPS, "none") if is_other else {})
    tree = RunConfig().to_mapping()
    if (info := algorithm_info(groups.get("algo") or AlgoConfig().name)).options is not None:  # it has no file
        tree["algo"] = RunConfig(algo=info.options()).to_mapping()["algo"]
        own |= {"algo": None, **dict.fromkeys(AUTOMATIC_GROUPS, "none")}
        own |= {"runner": "appo"} if info.learns_from_rollouts and "runner" not in groups else {}
    preset = _preset(groups.get("env"))
    if preset is not None:
        own |= {"env": "gym"} | ({} if is_other or info.options is not None else _tuned(own, info.name, preset.family))
    return merge(merge(tree, _composed(own)), {} if preset is None else preset.values)


def _tuned(groups: Mapping[str, str | None], algo: str, family: str) -> dict[str, str | None]:
    """Returns the files with the values of one of our algorithms, and its stage, for a family of environments."""
    stage = groups.get("stage") or AlgoConfig().stage
    return dict(zip(AUTOMATIC_GROUPS, (f"{algo}_{family}", f"{algo}_{stage}_{family}"), strict=True))


def _preset(name: str | None) -> EnvPreset | None:
    """Returns the environment of a plug-in; None where it is ours. Raises `ConfigError`."""
    plugin = None if name is None else plugins.find(plugins.ENVS, name, "env")
    return None if plugin is None else plugins.load(plugin, EnvPreset)


def _saved(source: Any, groups: Mapping[str, str | None]) -> dict[str, Any]:
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


def _file_of(source: Any) -> Path:
    if source in (None, ""):  # an unset variable of the shell, maybe
        raise ConfigError(f"config: got {source!r}, allowed a run or its config.yaml, such as config=latest")
    if problems := too_long("config", str(source)):
        raise ConfigError(problems)
    path = Path(str(source))
    return path if path.is_file() else find_run(path) / "config.yaml"


def config_file(tokens: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Returns the file that `config=` takes values from, if it is given, and the keys of the command line itself."""
    values = dict(parse_overrides(tokens).values)
    file = _file_of(values.pop("config")) if "config" in values else None
    return file, tuple(flatten(values))


# Any: values are checked with the run's own configuration
def load_values(tokens: Sequence[str], run: Path | None = None) -> dict[str, Any]:
    """Returns the nested values that the overrides of a saved run describe. Raises `ConfigError` with every problem.

    Names of other trainers are answered for the algorithm of `run`, if it is given.
    """
    overrides = parse_overrides(tokens, run)
    problems = list(overrides.problems) + [
        f"{group}: got {option!r}, but a saved run keeps its groups; change single keys, such as log.panel=off"
        for group, option in overrides.groups.items()
    ]
    problems += _missing(overrides.values)
    if problems:
        raise ConfigError(problems)
    return dict(overrides.values)


def parse_overrides(
    tokens: Sequence[str], run: Path | None = None, given: Mapping[str, Any] = MappingProxyType({})
) -> Overrides:
    """Sorts `key=value` tokens into groups and values; later ones win. Keys of other trainers become problems.

    `run` is the saved one that the values are for; None: the tokens say which, or choose the algorithm. `given`: nested
    values that come after those of the tokens.
    """
    options, info = group_options(), _algorithm(tokens, run)
    groups: dict[str, str | None] = {}
    values: dict[str, Any] = {}
    problems: list[str] = []
    queue = list(tokens)
    while queue:
        token = queue.pop(0)
        if token.startswith("-") and "=" not in token and queue and "=" not in queue[0] and queue[0][:1] != "-":
            token = f"{token} {queue.pop(0)}"  # `--key value` is one problem, not two
        try:
            key, value = _parsed(token, options, info)
            if key in options:
                groups[key] = _choice(key, value, options[key])
            else:
                problems += [problem] if (problem := clash(values, key)) is not None else []
                values = merge(values, nested({key: value}))
        except ConfigError as error:
            problems += error.problems
    values = merge(values, given)
    problems += homes(flatten(values))
    return Overrides(groups, without_foreign(values, info, problems), tuple(problems))


def _algorithm(tokens: Sequence[str], run: Path | None) -> AlgorithmInfo:
    """Returns the algorithm that a command line seems to choose, whose names for things its refusals use.

    It is that of the saved `run`, if there is one.
    """
    sources = [_text_of(token) for token in tokens if token.startswith("config=")] if run is None else [str(run)]
    if sources and (saved := _saved_algorithm(sources[-1])) is not None:
        return saved
    words = " ".join(tokens)
    names, stages = (re.findall(rf"\b{group}[= ](\w+)", words) for group in ("algo", "stage"))
    known = [name for name in names if name in group_options()["algo"]]
    return algorithm_info(known[-1] if known else AlgoConfig().name, stages[-1] if stages else "")


def _text_of(token: str) -> str:
    """Returns the value of an override as a text, also of one that is refused."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    text = token.partition("=")[2]
    try:
        override = OverridesParser.create().parse_override(token)
    except HydraException:
        return text
    return text if override.is_sweep_override() else str(override.value())


def _repaired(key: str, text: str) -> str:
    """Returns what to write instead of a value that is not understood."""
    if text.startswith("~"):  # in quotes it would be a directory of that name
        home = f"{key}=$HOME{text[1:]}" if text[1:2] in ("", "/") else f"{key}=/home/..."
        return f"write the whole path: {home}"
    return f"quote the value: {key}={shlex.quote(quoted(text))}"


def _saved_algorithm(source: str) -> AlgorithmInfo | None:
    """Returns the algorithm of another run, `config=RUN`; None where its configuration names none of ours."""
    try:
        algo = _saved(source, {}).get("algo")
    except ConfigError:  # reported by what reads it
        return None
    info = algorithm_info(str(algo.get("name")), str(algo.get("stage") or "")) if isinstance(algo, dict) else None
    return info if info is not None and (info in ALGORITHMS or info.options is not None) else None


def _parsed(token: str, options: Mapping[str, Sequence[str]], info: AlgorithmInfo) -> tuple[str, Any]:
    """Returns key and value of one override. Raises `ConfigError` saying what to write instead."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if problem := misshapen(token, options, info):
        raise ConfigError(problem)
    key, _, text = token.partition("=")
    try:
        override = OverridesParser.create().parse_override(token)
        value = override.value()
    except HydraException:
        if not is_key(key.lstrip("+")):
            raise ConfigError(f"{token}: got the key {key!r}, allowed {KEY_ALLOWED}") from None
        raise ConfigError(f"{token}: not understood; {_repaired(key, text)}") from None
    if override.is_sweep_override():
        instead = instead_of_several(NAMED_BY.get(key, key), text, options)
        raise ConfigError(f"{token}: one run takes one value; {instead}")
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
        _check_clash(group, value)
        return value
    is_id = group == "env" and looks_like_id(str(value))
    near = [] if is_id else difflib.get_close_matches(str(value).lower(), names, 1)
    guess = f"; did you mean {near[0]}?" if near else f"; a Gymnasium id is written env.id={value}" if is_id else ""
    raise ConfigError(f"{group}: got {value!r}, allowed one of {', '.join(names)}{guess}")


def _composed(groups: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns the chosen files of conf/, merged by Hydra. Raises `ConfigError` when one of them is broken."""
    home = conf_dir()
    files = tuple((str(path), path.stat().st_mtime_ns) for path in sorted(home.rglob("*.yaml")))
    return copy.deepcopy(_composed_once(home, files, tuple(_hydra_words(groups))))


@functools.lru_cache(maxsize=128)  # Hydra takes a hundred times as long as the copy, and a sweep asks for every trial
def _composed_once(home: Path, files: tuple[tuple[str, int], ...], words: tuple[str, ...]) -> dict[str, Any]:
    """Composes `home` by Hydra's `words`. `files`, with their times of change, are in the key of the cache alone."""
    del files
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with initialize_config_dir(str(home), version_base="1.3"):
            tree = compose("config", list(words))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{home}: {error}") from error
    return _mapping(OmegaConf.to_container(tree))


def _hydra_words(groups: Mapping[str, str | None]) -> list[str]:
    """Returns the choices of groups as Hydra has them; one of None is left out, as optional ones are by default."""
    chosen = {group: option for group, option in groups.items() if option or group not in OPTIONAL_GROUPS}
    return [f"{group}={option}" if option else f"~{group}" for group, option in chosen.items()]


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
    problems += _missing(resolved)
    return resolved


def _missing(tree: Mapping[str, Any]) -> list[str]:
    """Returns the problems of keys whose value is `???`, OmegaConf's word for one that must be given."""
    known = specs(chosen_classes(tree, []))
    found = [key for key, value in flatten(tree).items() if _is_missing(value)]
    return [
        f"{key}: not given; write {example_word(key)}" for key in found if key in known or is_within(key, (KWARGS,))
    ]


def _is_missing(value: Any) -> bool:
    if isinstance(value, list | tuple | Mapping):
        return any(map(_is_missing, value.values() if isinstance(value, Mapping) else value))
    return bool(value == MISSING)


def _mapping(container: Any) -> dict[str, Any]:
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
