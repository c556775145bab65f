"""The code that a run's directory names: `env.id=module:Id` and hooks are imported when the run is used again.

Nothing else of a directory can execute anything. Before such a module is imported, its name and place are printed, and
where the directory may have brought it along, `--trust` is needed.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from offpolicy.config.parsing import flatten
from offpolicy.config.schema import read_values
from offpolicy.errors import ConfigError

KEYS = ("env.id", "eval.hook", "collect.hook")  # their values may be `module:name`


class NamedModule(NamedTuple):
    """A module that a run's configuration names, and the file or directory it would be imported from."""

    key: str
    module: str
    place: Path | None  # None: nowhere


def check_trust(run: Path, *, is_trusted: bool, overridden: tuple[str, ...] = ()) -> None:
    """Prints which modules the run of a directory imports. Raises `ConfigError` for those that need `--trust`.

    Keys that are `overridden` on the command line are the user's own. Nothing is imported here.
    """
    problems = []
    for named in named_modules(run, overridden):
        where = named.place or "no directory of sys.path"
        sys.stderr.write(f"offpolicy: {run / 'config.yaml'}: {named.key} imports {named.module}, found in {where}\n")
        why = why_not_trusted(run, named.place)
        if why is not None and not is_trusted:
            problems.append(
                f"{named.key}: {named.module} would run {named.place}, which {why}; read it, then add --trust"
            )
    if problems:
        raise ConfigError(problems)


def named_modules(run: Path, overridden: tuple[str, ...] = ()) -> list[NamedModule]:
    """Returns the modules that a run's configuration names, but for our own."""
    try:
        values = flatten(read_values(run / "config.yaml"))
    except ConfigError:  # the command, which reads it in the same way, refuses it
        return []
    found = []
    for key in KEYS:
        module, colon, _ = str(values.get(key) or "").rpartition(":")
        top = module.partition(".")[0]
        if colon and top != __name__.partition(".")[0] and key not in overridden:
            found.append(NamedModule(key, module, _find(top)))
    return found


def why_not_trusted(run: Path, place: Path | None) -> str | None:
    """Returns why a module may not be the user's own; None if it is, or is installed."""
    if place is None:
        return None
    resolved = place.resolve()
    if resolved.is_relative_to(run.resolve()):
        return "lies inside the run's directory"
    if not resolved.is_relative_to(Path.cwd()):
        return None
    for path in (resolved, run / "config.yaml"):
        if (owner := path.stat().st_uid) != os.getuid():
            return f"lies in the current directory, and user {owner} made {path}"
    return None


def _find(top: str) -> Path | None:
    """Returns where a top-level module would be imported from, as `make_env` would, without importing it."""
    spec = PathFinder.find_spec(top, [entry or os.getcwd() for entry in (*sys.path, os.getcwd())])
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or []), spec.origin]
    return Path(places[0]) if places[0] else None
