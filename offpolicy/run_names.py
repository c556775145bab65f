"""The names that every command takes for a run: its directory, `latest`, or a unique beginning of its name."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from offpolicy import fault
from offpolicy.errors import ConfigError
from offpolicy.files import too_long

ROOT = Path("runs")  # directory of the runs that are given no run_dir
LATEST = "latest"
LOCK = ".lock"  # file of a run's directory that says which process holds it
TRIAL = "OFFPOLICY_TRIAL"  # environment variable of the runs of `offpolicy sweep`
MOST_NAMED = 5  # runs that a refusal lists, at most
RECORDS = ("config.yaml", "metrics.jsonl", "events.out.tfevents.*")  # a directory with one of them is a run


class NoSuchRunError(ConfigError):
    """A word names no run."""


def find_run(word: str | Path) -> Path:
    """Returns the directory that `word` names. Raises `NoSuchRunError`, and `ConfigError` where it names several."""
    if problems := too_long("run", word):
        raise ConfigError(problems)
    path = Path(word)
    if path.name == LATEST and (path.is_symlink() or not path.exists()):
        return _latest(ROOT / LATEST if str(word) == LATEST and not path.is_symlink() else path)
    if str(word) and _has_records(path):  # also of another trainer, with the files of TensorBoard only
        return path
    start = str(word).removeprefix(f"{ROOT}/").rstrip("/")
    runs = runs_in(ROOT) if start else []
    found = [run for run in runs if start in _names(run)]  # a whole name comes before beginnings of others
    found = found or [run for run in runs if any(name.startswith(start) for name in _names(run))]
    if len(found) == 1:
        return found[0]
    if path.is_dir() and str(word):  # what reads it says what it lacks
        return path
    if not found:
        allowed = f"allowed a run's directory, {LATEST}, or the beginning of a run's name: offpolicy list shows them"
        raise NoSuchRunError(f"run: got {str(word)!r}, {allowed}")
    named = ", ".join(str(run.relative_to(ROOT)) for run in found[:MOST_NAMED])
    more = ", ..." if len(found) > MOST_NAMED else ""
    raise ConfigError(f"run: got {str(word)!r}, which begins the names of {len(found)} runs: {named}{more}")


def runs_in(root: Path) -> list[Path]:
    """Returns the directories below `root` that hold a run's configuration, the one started last first."""
    found = {run: time_s for run in _walk(root) if (time_s := _modified_s(run / "config.yaml")) is not None}
    return sorted(found, key=lambda run: found[run], reverse=True)


def is_of_earlier_start(file: Path) -> bool:
    """True if a file of a run is older than its last start, which goes on or was killed.

    A start that has ended otherwise has removed its pid from the lock, and written what it had to.
    """
    lock = file.parent / LOCK
    try:
        return "pid" in json.loads(lock.read_text()) and file.stat().st_mtime_ns < lock.stat().st_mtime_ns
    except (OSError, ValueError, TypeError):
        return False


def mark_latest(run: Path, root: Path = ROOT) -> None:
    """Makes `runs/latest` a link to `run`, where there is a directory `runs`; a refusing disk is no error.

    A run of `offpolicy sweep` leaves the link as it is.
    """
    link, new = root / LATEST, root / f".{LATEST}-{os.getpid()}"
    if TRIAL in os.environ or not root.is_dir() or (os.path.lexists(link) and not link.is_symlink()):
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


def _has_records(path: Path) -> bool:
    return path.is_dir() and any(found.is_file() for name in RECORDS for found in path.glob(name))


def _modified_s(file: Path) -> float | None:
    """Returns when a file was written, in Unix seconds; None for one that was removed, or a link to nothing."""
    try:
        return file.stat().st_mtime
    except OSError:
        return None


def _latest(link: Path) -> Path:
    """Returns the run of a link `latest`, or the newest one beside it where it leads nowhere."""
    if link.is_symlink() and link.is_dir():
        return link.parent / os.readlink(link)
    if newest := runs_in(link.parent)[:1]:
        return newest[0]
    raise ConfigError(f"run: got {LATEST!r}, but {link.parent.resolve()} holds no run; write the directory of one")
