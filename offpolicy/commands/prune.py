"""`offpolicy prune RUN ...`: removes old checkpoints of finished runs and says how many bytes that frees."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from offpolicy.checkpoint import CHECKPOINTS, checkpoint_path, run_store
from offpolicy.commands.options import positive
from offpolicy.errors import SaveError
from offpolicy.launch.run_dir import HOST_DIR, other_hosts
from offpolicy.launch.run_lock import RunLock
from offpolicy.logger.console import plain_console, shown_path
from offpolicy.output import counted
from offpolicy.runs import existing_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and what stays."""
    parser.add_argument("runs", nargs="+", type=existing_run, metavar="run", help="runs to prune")
    parser.add_argument("--keep", type=positive, default=1, help="good checkpoints that stay (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def run(arguments: argparse.Namespace) -> int:
    """Prunes the runs."""
    return prune(arguments.runs, keep=arguments.keep, is_dry=arguments.dry_run)


def prune(runs: Sequence[Path], *, keep: int, is_dry: bool) -> int:
    """Removes all checkpoints of the runs that are older than their `keep` newest good ones, and prints what went.

    Of a run of several hosts those count that all hosts have, whichever of their directories is given: a start needs
    the parts of all. The newest good checkpoint and `checkpoints/best` always stay, and so does whatever cannot be
    read: nobody knows what it is worth. Rows of the replay that a kept checkpoint shares with a removed one stay with
    it. Raises `RunDirBusyError` for a run in progress, `SaveError` where the disk refuses; then the runs before it are
    pruned. Raises `OSError` at the end if its lines could not be printed.
    """
    console, refused = plain_console(), None
    for run in dict.fromkeys(map(_run_of_all_hosts, runs)):
        hosts = (path for path in other_hosts(run) if any((path / CHECKPOINTS).glob("step-*")))
        paths = [path for path in (run, *hosts) if (path / CHECKPOINTS).is_dir()] or [run]
        # Locked, or a run that goes on might resume from what is being removed; to look harms nothing.
        with contextlib.ExitStack() as locks:
            for path in () if is_dry else paths:
                locks.enter_context(_locked(path))
            for line in _prune_run(paths, keep=keep, is_dry=is_dry):
                try:
                    console.print(line, soft_wrap=True)
                except OSError as error:  # the runs that are left are pruned all the same
                    refused = error
    if refused is not None:
        raise refused
    return 0


def _run_of_all_hosts(run: Path) -> Path:
    """Returns the run that a host's own directory belongs to; a run itself is returned as it is."""
    whole = run.resolve()
    is_part = HOST_DIR.fullmatch(whole.name) is not None and (whole.parent / CHECKPOINTS).is_dir()
    return whole.parent if is_part else run


def _prune_run(paths: Sequence[Path], *, keep: int, is_dry: bool) -> Iterator[str]:
    """Prunes the checkpoints of one run, in the directories of all its hosts, and yields what to say of each."""
    stores = {path: run_store(path) for path in paths}
    whole = {path: [checkpoint.env_steps for checkpoint in store.whole()] for path, store in stores.items()}
    common = set.intersection(*map(set, whole.values())) if whole else set[int]()
    if not common:
        missing = "no good checkpoint" if len(paths) == 1 else "no good checkpoint that all hosts have"
        yield from (f"{shown_path(path)}: {missing}, so nothing is removed" for path in paths)
        return
    oldest_kept = sorted(common, reverse=True)[:keep][-1]
    for path, store in stores.items():
        old = [checkpoint_path(path, step) for step in sorted(store.steps()) if step < oldest_kept]
        freed = freed_bytes(old)
        try:
            store.remove([] if is_dry else old)
        except OSError as error:
            raise SaveError(f"{path / CHECKPOINTS}: {error.strerror}; nothing else was removed") from error
        names = ", ".join(f"{env_steps:,}" for env_steps in whole[path] if env_steps >= oldest_kept)
        done = "would be removed" if is_dry else "removed"
        count = f"{counted(len(old), 'checkpoint')} {done}, {freed / 1e6:,.1f} MB"
        yield f"{shown_path(path)}: {count}; env step {names} stays"


@contextlib.contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Holds the lock of a run directory, and leaves what it says of the run. Raises `RunDirBusyError`."""
    lock = RunLock(run)
    try:
        yield
    finally:
        lock.withdraw()


def freed_bytes(directories: Sequence[Path]) -> int:
    """Returns the bytes that the disk gets back if the directories are removed.

    A file that has another name elsewhere, as rows of the replay have in a kept checkpoint, frees none.
    """
    files = [status for directory in directories for status in _files(directory)]
    names = Counter((status.st_dev, status.st_ino) for status in files)
    sizes = {(status.st_dev, status.st_ino): (status.st_size, status.st_nlink) for status in files}
    return sum(size for file, (size, links) in sizes.items() if names[file] == links)


def _files(directory: Path) -> Iterator[os.stat_result]:
    return (path.lstat() for path in directory.iterdir())
