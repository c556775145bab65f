"""What the entry points of `offpolicy.networks`, `offpolicy.envs` and `offpolicy.sinks` name.

Those of `offpolicy.algos` name an `AlgorithmInfo`. Options are frozen dataclasses whose fields are `option`s, with
default, meaning and limits; they are checked and shown by `--help` like our own. Modules that import torch are named,
`module:name`, because the supervisor loads what is here, and has no torch.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offpolicy import plugins
from offpolicy.config.parsing import option
from offpolicy.errors import ConfigError

FIELD_ALLOWED = "letters of a to z, digits and _, a letter first, and no keyword of Python: sinks.<name> has options"
_FIELD = re.compile("[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The encoder in front of actor and critics, `algo.network`. A plug-in's options are fields of a subclass."""

    name: str | None = option(
        None, "encoder in front of actor and critics, of a plug-in (offpolicy.networks); null: none"
    )


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    """An encoder: a torch module, made as `module(options, obs_dim)`.

    It turns observations [..., obs_dim] into features [..., `out_dim`], its attribute. Actor and each critic have one
    of their own. All it learns is in parameters: collectors get no buffers.
    """

    module: str  # module:Class
    options: type[NetworkConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksConfig:
    """The options of the plug-in sinks that `log.sinks` names: a section for each."""


@dataclass(frozen=True, slots=True)
class SinkInfo:
    """A destination of records: a `logger.sinks.Sink`, made as `open(context)` with a `logger.sinks.SinkContext`."""

    open: str  # module:name
    options: type[Any]  # Any: the plug-in's own dataclass


@dataclass(frozen=True, slots=True)
class EnvPreset:
    """An environment: values of the configuration, nested as in a file of conf/env, `{"env": {"id": ...}}`.

    `family` chooses the values that algorithms of ours have for a family of environments, such as `mujoco`.
    """

    values: Mapping[str, Any] = field(hash=False)  # Any: checked with all others
    family: str = "none"


def network_plugin(name: str) -> plugins.Plugin:
    """Returns the plug-in of an encoder. Raises `ConfigError`."""
    return _known(plugins.NETWORKS, name, "algo.network.name")


def sink_plugin(name: str) -> plugins.Plugin:
    """Returns the plug-in of a sink. Raises `ConfigError`."""
    return _known(plugins.SINKS, name, "log.sinks")


def network_options(name: str) -> type[NetworkConfig]:
    """Returns the options of an encoder. Raises `ConfigError`."""
    plugin = network_plugin(name)
    options: type[NetworkConfig] = _options(plugin, plugins.load(plugin, NetworkInfo).options, NetworkConfig)
    return options


def sinks_options(names: Iterable[str]) -> type[SinksConfig]:
    """Returns a class with a section for each of some sinks. Raises `ConfigError`."""
    found = {}
    for name in names:
        plugin = sink_plugin(name)
        if not _FIELD.fullmatch(name) or keyword.iskeyword(name):
            raise ConfigError(f"log.sinks: {plugin}: got the name {name!r}, allowed {FIELD_ALLOWED}")
        found[name] = _options(plugin, plugins.load(plugin, SinkInfo).options, object)
    return _sections(tuple(found.items()))


_MADE: dict[tuple[tuple[str, type], ...], type[SinksConfig]] = {}


def _sections(options: tuple[tuple[str, type], ...]) -> type[SinksConfig]:
    """Returns one class for the same sinks, always: configurations are compared."""
    if options not in _MADE:
        fields = [(name, kind, field(default_factory=kind)) for name, kind in options]
        _MADE[options] = dataclasses.make_dataclass(
            "SinksConfig", fields, bases=(SinksConfig,), frozen=True, slots=True, kw_only=True
        )
    return _MADE[options]


def _known(group: str, name: str, key: str) -> plugins.Plugin:
    plugin = plugins.find(group, name, key)
    if plugin is None:
        known = ", ".join(plugins.names(group)) or "none: no installed package has an entry point"
        raise ConfigError(f"{key}: got {name!r}, allowed a plug-in of {group}: {known}")
    return plugin


def _options(plugin: plugins.Plugin, options: Any, base: type) -> Any:  # Any: not checked yet
    if isinstance(options, type) and dataclasses.is_dataclass(options) and issubclass(options, base):
        return options
    raise ConfigError(f"{plugin}: its options are {options!r}, allowed a dataclass that inherits from {base.__name__}")
