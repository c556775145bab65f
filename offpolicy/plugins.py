"""Plug-ins: what other installed packages add by entry points; each is imported, or refused, when its name is used."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection
from typing import Any, NamedTuple, TypeVar

from offpolicy.errors import ConfigError

ALGOS, NETWORKS, ENVS, SINKS = (f"offpolicy.{kind}" for kind in ("algos", "networks", "envs", "sinks"))
T = TypeVar("T")


class Plugin(NamedTuple):
    """An entry point of an installed package."""

    group: str
    name: str
    target: str  # module:name
    package: str
    version: str

    @property
    def label(self) -> str:
        """Name, package and version, as checkpoints and `config.yaml` have them."""
        return f"{self.group.rpartition('.')[2]} {self.name} of {self.package} {self.version}"

    def __str__(self) -> str:
        return f"{self.package} {self.version} (entry point {self.group}: {self.name} = {self.target})"


@functools.cache
def installed(group: str) -> tuple[Plugin, ...]:
    """Returns the plug-ins of a group, by name; nothing is imported."""
    from importlib.metadata import entry_points  # 0.1 s, which `offpolicy --help` need not wait for

    found = {
        Plugin(group, each.name, each.value, each.dist.name, each.dist.version)
        for each in entry_points(group=group)
        if each.dist is not None
    }
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.package)))


def names(group: str) -> tuple[str, ...]:
    """Returns the names that the plug-ins of a group give."""
    return tuple(dict.fromkeys(plugin.name for plugin in installed(group)))


def find(group: str, name: str, key: str, ours: Collection[str] = ()) -> Plugin | None:
    """Returns the plug-in of a name, or None. Raises `ConfigError`, naming `key`, for a name of two, or of `ours`."""
    found = [plugin for plugin in installed(group) if plugin.name == name]
    if found and name in ours:
        raise ConfigError(f"{key}: {name} is ours, and {found[0]} gives it too; uninstall that package")
    if len(found) > 1:
        raise ConfigError(f"{key}: {name} is given by {' and by '.join(map(str, found))}; uninstall one of them")
    return found[0] if found else None


def load(plugin: Plugin, kind: type[T]) -> T:
    """Imports what the entry point names. Raises `ConfigError` if that fails, or it is no `kind`."""
    found = resolve(plugin, plugin.target)
    if not isinstance(found, kind):
        raise ConfigError(f"{plugin} is a {type(found).__name__}, allowed a {kind.__module__}.{kind.__name__}")
    return found


def resolve(plugin: Plugin, target: str) -> Any:  # Any: an object of the package
    """Imports `module:name` of a plug-in's own, where it is needed. Raises `ConfigError` naming the plug-in."""
    module, _, path = target.partition(":")
    try:
        return functools.reduce(getattr, path.split(".") if path else (), importlib.import_module(module))
    except (Exception, SystemExit) as error:  # a package may raise anything when it is imported
        raise ConfigError(f"{plugin}: {target} cannot be imported: {type(error).__name__}: {error}") from error
