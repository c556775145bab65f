"""Runs as commands read them: by name, their records and summary, and the files that a command may write."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy import fault
from offpolicy.errors import ConfigError

ROOT = Path("runs")  # directory of the runs that are given no run_dir
LATEST = "latest"
SUMMARY = "summary.json"
STDOUT = "-"  # in place of a file to write
LOCK = ".lock"  # file of a run's directory that says which process holds it
TRIAL = "OFFPOLICY_TRIAL"  # environment variable of the runs of `offpolicy sweep`
MOST_NAMED = 5  # runs that a refusal lists, at most
RECORDS = ("config.yaml", "metrics.jsonl", "events.out.tfevents.*")  # a directory with one of them is a run


class NoSuchRunError(ConfigError):
    """A word names no run."""


def find_run(word: str | Path) -> Path:
    """Returns the directory that `word` names. Raises `NoSuchRunError`, and `ConfigError` where it names several."""
    path = Path(word)
    if path.name == LATEST and (path.is_symlink() or not path.exists()):
        return _latest(ROOT / LATEST if str(word) == LATEST and not path.is_symlink() else path)
    if str(word) and path.is_dir() and any(file.is_file() for name in RECORDS for file in path.glob(name)):
        return path  # also of another trainer, with the files of TensorBoard only
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
    raise ConfigError(f"run: got {str(word)!r}, which begins the names of {len(found)} runs, such as {named}")


def existing_run(word: str | Path, key: str = "run") -> Path:
    """Returns the directory of the run of ours that `word` names. Raises `ConfigError` for none, naming `key`."""
    run = find_run(word)
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{key}: got {str(word)!r}, allowed the directory of a run (it has no config.yaml)")
    return run


def runs_in(root: Path) -> list[Path]:
    """Returns the directories below `root` that hold a run's configuration, the one started last first."""
    found = dict[Path, float]()
    for directory, children, files in os.walk(root):
        if "config.yaml" in files:
            children.clear()
            with contextlib.suppress(OSError):  # removed meanwhile, or a link to nothing
                found[Path(directory)] = (Path(directory) / "config.yaml").stat().st_mtime
    return sorted(found, key=found.__getitem__, reverse=True)


def is_of_earlier_start(file: Path) -> bool:
    """True if a file of a run is older than its last start, which goes on or was killed: its pid is in the lock."""
    lock = file.parent / LOCK
    try:
        return "pid" in json.loads(lock.read_text()) and file.stat().st_mtime_ns < lock.stat().st_mtime_ns
    except (OSError, ValueError, TypeError):
        return False


def short_name(run: Path, others: Sequence[Path], taken: Collection[str] = ()) -> str:
    """Returns the shortest end of a run's path that no other one has and that is not `taken`; else the whole path."""
    rest = [other.parts for other in others if other != run]
    for length in range(1, len(run.parts)):
        end = run.parts[-length:]
        if "/".join(end) not in taken and not any(parts[-length:] == end for parts in rest):
            return "/".join(end)
    return str(run)


def read_lines(path: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:  # Any: values of JSON
    """Returns the whole records of a file of JSON lines, those in its `last_bytes` alone if given; or none."""
    lines, found = list[bytes](), list[Any]()
    with contextlib.suppress(OSError), path.open("rb") as file:
        if last_bytes is not None:
            file.seek(max(0, path.stat().st_size - last_bytes))
        lines = file.read().splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # of a run that was killed, or is replacing its last
            found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]


def read_summary(run: Path) -> Mapping[str, Any]:  # Any: values of JSON
    """Returns `summary.json` of a run. Raises `ConfigError` where there is none to read."""
    path = run / SUMMARY
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        again = f"let it end, or write offpolicy resume {shlex.quote(str(run))}"
        raise ConfigError(f"run: {run} has no {SUMMARY}, which is written when a run ends; {again}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"run: {path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"run: {path} cannot be read: got {type(found).__name__}, allowed the mapping of a run")
    return found


def known_summary(run: Path) -> Mapping[str, Any]:  # Any: values of JSON
    """Returns `summary.json` of a run; empty where there is none to read, as before its end."""
    with contextlib.suppress(ConfigError):
        return read_summary(run)
    return {}


def last_summary(run: Path) -> Mapping[str, Any]:  # Any: values of JSON
    """Returns `summary.json` of a run's last start; empty where that start goes on, or was killed."""
    return {} if is_of_earlier_start(run / SUMMARY) else known_summary(run)


def check_output(option: str, path: Path, *endings: str, is_new: bool = False) -> None:
    """Raises `ConfigError` where a command could not write the file that is given with `option`; `-` is stdout."""
    if str(path) == STDOUT and not endings:
        return
    is_fine = path.parent.is_dir() and not path.is_dir() and not (is_new and path.exists())
    is_fine = is_fine and os.access(path if path.exists() else path.parent, os.W_OK)
    if not is_fine or (endings and path.suffix.lower() not in endings):
        what = "a new file" if is_new else "a file that can be written"
        ending = f", ending in {' or '.join(endings)}" if endings else ""
        raise ConfigError(f"{option}: got {str(path)!r}, allowed {what} in a directory that exists{ending}")


def mark_latest(run: Path, root: Path = ROOT) -> None:
    """Makes `runs/latest` a link to `run`, of no sweep, where there is a directory `runs` and the disk allows it."""
    link, new = root / LATEST, root / f".{LATEST}-{os.getpid()}"
    if TRIAL in os.environ or not root.is_dir() or (os.path.lexists(link) and not link.is_symlink()):
        return
    with contextlib.suppress(OSError):
        fault.hit("run_dir.latest")
        new.symlink_to(os.path.relpath(run.resolve(), root.resolve()), target_is_directory=True)
        new.replace(link)  # at once: a reader finds the old run or the new one


def _names(run: Path) -> list[str]:
    """Returns the ends of a run's path below `runs`, from its whole to its last part."""
    parts = run.relative_to(ROOT).parts
    return ["/".join(parts[index:]) for index in range(len(parts))]


def _latest(link: Path) -> Path:
    """Returns the run of a link `latest`, or the newest one beside it where it leads nowhere."""
    if link.is_symlink() and link.is_dir():
        return link.parent / os.readlink(link)
    if newest := runs_in(link.parent)[:1]:
        return newest[0]
    raise ConfigError(f"run: got {LATEST!r}, but {link.parent.resolve()} holds no run; write the directory of one")
