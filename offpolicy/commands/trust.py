"""The code that a run's directory names: `env.id=module:Id` and callbacks are imported when the run is used again.

Before that the module's name and place are printed, and where the directory may have brought it along, `--trust` is
needed. Nothing else of a directory can execute anything.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from offpolicy.config.overrides import config_file
from offpolicy.config.parsing import flatten
from offpolicy.config.run_files import read_values
from offpolicy.errors import ConfigError
from offpolicy.types import Json

KEYS = ("env.id", "env.wrappers", "callbacks")  # their values may be `module:name`, or many


def check_trust(run: Path, *, is_trusted: bool, overridden: Sequence[str] = ()) -> None:
    """Prints which modules the run of a directory, or of its `config.yaml`, imports; imports nothing itself.

    Keys that are `overridden` on the command line are the user's own. Raises `ConfigError` for what needs `--trust`.
    """
    problems, file, values = [], run if run.is_file() else run / "config.yaml", dict[str, Json]()
    with contextlib.suppress(ConfigError):  # the command, which reads it in the same way, refuses it
        values = flatten(read_values(file))
    for key in KEYS:
        given = [] if key in overridden else values.get(key) or []
        for target in given if isinstance(given, list) else [given]:
            module = str(target).rpartition(":")[0]
            if not module or module.partition(".")[0] == "offpolicy":
                continue
            places = list(_executed(module))
            where = places[-1] if places else "no directory of sys.path"
            sys.stderr.write(f"offpolicy: {file}: {key} imports {module}, found in {where}\n")
            reasons = [f"{place}, which {why}" for place in places if (why := why_not_trusted(file, place))]
            if reasons and not is_trusted:
                problems.append(f"{key}: {module} would run {reasons[0]}; read it, then add --trust")
    if problems:
        raise ConfigError(problems)


def check_source(words: Sequence[str], *, is_trusted: bool) -> None:
    """Does the same for the run of `config=RUN` among overrides, whose modules a new run would import."""
    file, overridden = config_file(words)
    if file is not None:
        check_trust(file, is_trusted=is_trusted, overridden=overridden)


def why_not_trusted(file: Path, place: Path) -> str | None:
    """Returns why a module may not be the user's own; None if it is, or is installed. `file`: the configuration."""
    # A link counts where it lies, too: it may lead out of the directory that it came with.
    paths = {place.absolute(), place.resolve()}
    if any(path.is_relative_to(run) for path in paths for run in (file.parent.absolute(), file.parent.resolve())):
        return "lies inside the run's directory"
    here = Path.cwd()
    inside = [path for path in paths if path.is_relative_to(here)]
    between = {folder for path in inside for folder in path.parents if folder != here and folder.is_relative_to(here)}
    found = sorted(path for path in paths | between if os.path.lexists(path))  # not what lies inside an archive
    for path in (*found, file) if inside else ():
        if (owner := path.lstat().st_uid) != os.getuid():
            return f"lies in the current directory, and user {owner} made {path}"
    return None


def _executed(module: str) -> Iterator[Path]:
    """Yields the files that importing `module` would execute: of `a.b` what `a` executes, and then `b`."""
    entries = [entry or os.getcwd() for entry in (*sys.path, os.getcwd())]
    for name in module.split("."):
        spec = PathFinder.find_spec(name, entries)
        if spec is None:
            return
        if spec.has_location and spec.origin is not None:
            yield Path(spec.origin)
        entries = list(spec.submodule_search_locations or ())
