"""The names that every command takes for a run: its directory, `latest`, or a unique beginning of its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from offpolicy import fault
from offpolicy.errors import ConfigError

ROOT = Path("runs")  # directory of the runs that are given no run_dir
LATEST = "latest"
MOST_NAMED = 5  # runs that a refusal lists, at most


class NoSuchRunError(ConfigError):
    """A word names no run."""


def find_run(word: str | Path) -> Path:
    """Returns the directory that `word` names. Raises `NoSuchRunError`, and `ConfigError` where it names several."""
    path = Path(word)
    if path.name == LATEST and path.is_symlink():
        return path.parent / os.readlink(path)
    if (path / "config.yaml").is_file() and str(word):
        return path
    if str(word) == LATEST:
        return _latest()
    start = str(word).removeprefix(f"{ROOT}/").rstrip("/")
    runs = runs_in(ROOT) if start else []
    found = [run for run in runs if start in _names(run)]  # a whole name comes before beginnings of others
    found = found or [run for run in runs if any(name.startswith(start) for name in _names(run))]
    if len(found) == 1:
        return found[0]
    if path.is_dir() and str(word):  # of another trainer, with the files of TensorBoard only
        return path
    if not found:
        allowed = f"allowed a run's directory, {LATEST}, or the beginning of a run's name: offpolicy list shows them"
        raise NoSuchRunError(f"run: got {str(word)!r}, {allowed}")
    named = ", ".join(str(run.relative_to(ROOT)) for run in found[:MOST_NAMED])
    more = ", ..." if len(found) > MOST_NAMED else ""
    raise ConfigError(f"run: got {str(word)!r}, which begins the names of {len(found)} runs: {named}{more}")


def runs_in(root: Path) -> list[Path]:
    """Returns the directories below `root` that hold a run's configuration, the newest first."""
    return sorted(_walk(root), key=lambda run: (run / "config.yaml").stat().st_mtime, reverse=True)


def mark_latest(run: Path, root: Path = ROOT) -> None:
    """Makes `runs/latest` a link to `run`, where there is a directory `runs`; a refusing disk is no error."""
    link, new = root / LATEST, root / f".{LATEST}-{os.getpid()}"
    if not root.is_dir() or (os.path.lexists(link) and not link.is_symlink()):
        return
    with contextlib.suppress(OSError):
        fault.hit("run_dir.latest")
        new.symlink_to(os.path.relpath(run.resolve(), root.resolve()), target_is_directory=True)
        new.replace(link)  # at once: a reader finds the old run or the new one


def _walk(root: Path) -> Iterator[Path]:
    """Yields runs; links are not followed, and nothing inside of a run is read."""
    for directory, children, files in os.walk(root):
        if "config.yaml" in files:
            children.clear()
            yield Path(directory)


def _names(run: Path) -> Iterator[str]:
    """Yields the ends of a run's path below `runs`, from its whole to its last part."""
    parts = run.relative_to(ROOT).parts
    return ("/".join(parts[index:]) for index in range(len(parts)))


def _latest() -> Path:
    """Returns the run of the link `runs/latest`, or the newest one where that leads nowhere."""
    link = ROOT / LATEST
    if link.is_symlink() and link.is_dir():
        return ROOT / os.readlink(link)
    if newest := runs_in(ROOT)[:1]:
        return newest[0]
    raise ConfigError(f"run: got {LATEST!r}, but {ROOT.resolve()} holds no run; write the directory of one")
