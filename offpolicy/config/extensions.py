"""What the entry points of `offpolicy.networks`, `offpolicy.envs` and `offpolicy.sinks` name.

Those of `offpolicy.algos` name an `AlgorithmInfo`. Options are frozen dataclasses whose fields are `option`s, with
default, meaning and limits; they are checked and shown by `offpolicy help` like our own. Modules that import torch are
named, `module:name`, because the supervisor loads what is here, and has no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from offpolicy import plugins
from offpolicy.config.parsing import option
from offpolicy.errors import ConfigError
from offpolicy.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The encoder in front of actor and critics, `algo.network`. A plug-in's options are fields of a subclass."""

    name: str | None = option(
        None, "encoder in front of actor and critics, of a plug-in (offpolicy.networks); null: none"
    )


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    """An encoder: a torch module, made as `module(options, obs_dim)`.

    It turns observations [..., obs_dim] into features [..., `out_dim`], its attribute. Actor and each critic have
    their own. All it learns is in parameters: collectors get no buffers.
    """

    module: str  # module:Class
    options: type[NetworkConfig]


@dataclass(frozen=True, slots=True)
class SinkInfo:
    """A destination of records: a `logger.sinks.Sink`, made as `open(context)` with a `logger.sinks.SinkContext`."""

    open: str  # module:name
    options: type[object]  # the plug-in's own dataclass


@dataclass(frozen=True, slots=True)
class EnvPreset:
    """An environment: values of the configuration, nested as in a file of conf/env, `{"env": {"id": ...}}`.

    `family` chooses the values that algorithms of ours have for a family of environments, such as `mujoco`.
    """

    values: Mapping[str, Json] = field(hash=False)
    family: str = "none"


def network_plugin(name: str) -> plugins.Plugin:
    """Returns the plug-in of an encoder. Raises `ConfigError`."""
    return _known(plugins.NETWORKS, name, "algo.network.name")


def sink_plugin(name: str) -> plugins.Plugin:
    """Returns the plug-in of a sink. Raises `ConfigError`."""
    return _known(plugins.SINKS, name, "log.sinks")


def _known(group: str, name: str, key: str) -> plugins.Plugin:
    plugin = plugins.find(group, name, key)
    if plugin is None:
        known = ", ".join(plugins.names(group)) or "there is none"
        raise ConfigError(f"{key}: got {name!r}, allowed a plug-in of {group}: {known}")
    return plugin


def options_of(plugin: plugins.Plugin, kind: type[NetworkInfo | SinkInfo]) -> type:
    """Returns the dataclass that has the options of an encoder or a sink. Raises `ConfigError`."""
    options, base = plugins.load(plugin, kind).options, NetworkConfig if kind is NetworkInfo else object
    if isinstance(options, type) and dataclasses.is_dataclass(options) and issubclass(options, base):
        return options
    raise ConfigError(f"{plugin}: its options are {options!r}, allowed a dataclass that inherits from {base.__name__}")
