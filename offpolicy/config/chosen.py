"""The classes that a configuration's sections have, where plug-ins add options to ours; and those plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offpolicy import plugins
from offpolicy.config.extensions import (
    NetworkConfig,
    SinksConfig,
    network_options,
    network_plugin,
    sink_plugin,
    sinks_options,
)
from offpolicy.config.sections import AlgoConfig, RunSections, algorithm_info, algorithm_plugin
from offpolicy.errors import ConfigError

Classes = tuple[tuple[type, type], ...]  # a declared class, and the one in its place


def chosen_classes(raw: Mapping[str, Any], problems: list[str]) -> Classes:
    """Returns the classes that the names in a nested mapping choose; adds to `problems` what cannot be used."""
    found: list[tuple[type, type]] = []
    algo, log = (section if isinstance(section, Mapping) else {} for section in (raw.get("algo"), raw.get("log")))
    network = algo.get("network")
    encoder = network.get("name") if isinstance(network, Mapping) else None
    sinks = log.get("sinks")
    try:
        if isinstance(name := algo.get("name"), str) and (options := algorithm_info(name).options) is not None:
            found.append((AlgoConfig, options))
        if isinstance(encoder, str):
            found.append((NetworkConfig, network_options(encoder)))
        if isinstance(sinks, list | tuple) and sinks and all(isinstance(name, str) for name in sinks):
            found.append((SinksConfig, sinks_options(sinks)))
    except ConfigError as error:
        problems += error.problems
    given = raw.get("sinks")
    unnamed = [name for name in given if name not in (sinks or ())] if isinstance(given, Mapping) else []
    problems += [
        f"sinks.{name}: got options, but log.sinks does not name it; write log.sinks=[{name}]" for name in unnamed
    ]
    return tuple(found)


def classes_of(cfg: RunSections) -> Classes:
    """Returns the classes of a checked configuration."""
    return (AlgoConfig, type(cfg.algo)), (NetworkConfig, type(cfg.algo.network)), (SinksConfig, type(cfg.sinks))


def plugins_of(cfg: RunSections) -> list[plugins.Plugin]:
    """Returns the plug-ins that a checked configuration uses, but for an environment's preset: its values are used."""
    found = [] if (plugin := algorithm_plugin(cfg.algo.name)) is None else [plugin]
    found += [] if cfg.algo.network.name is None else [network_plugin(cfg.algo.network.name)]
    return found + [sink_plugin(name) for name in cfg.log.sinks]
