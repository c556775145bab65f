"""`offpolicy prune RUN ...`: removes old checkpoints of finished runs and says how many bytes that frees."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from offpolicy.checkpoint import CHECKPOINTS, checkpoint_path, run_store
from offpolicy.commands.options import at_least
from offpolicy.errors import EXIT_OK, SaveError
from offpolicy.launch.run_dir import HOST_DIR, other_hosts
from offpolicy.launch.run_lock import RunLock
from offpolicy.logger.console import plain_console, shown_path
from offpolicy.output import counted
from offpolicy.runs import existing_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and what stays."""
    parser.add_argument("runs", nargs="+", type=existing_run, metavar="run", help="runs to prune")
    parser.add_argument("--keep", type=at_least(1), default=1, help="good checkpoints that stay (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def run(arguments: argparse.Namespace) -> int:
    """Removes what is older than the newest good checkpoints that all hosts of a run have, and prints what went.

    `checkpoints/best` and whatever cannot be read stay. Raises `RunDirBusyError` for a run in progress, or `SaveError`.
    """
    for run in dict.fromkeys(map(_whole, arguments.runs)):
        paths = [run, *(path for path in other_hosts(run) if any((path / CHECKPOINTS).glob("step-*")))]
        # Locked, or a run that goes on might resume from what is being removed; to look harms nothing.
        with contextlib.ExitStack() as locks:
            for path in () if arguments.dry_run else paths:
                locks.callback(RunLock(path).release)
            for line in _prune(paths, keep=arguments.keep, is_dry=arguments.dry_run):
                plain_console().print(line, soft_wrap=True)
    return EXIT_OK


def _whole(run: Path) -> Path:
    """Returns the run of several hosts whose part a directory is, or the directory itself."""
    parent = run.resolve().parent
    return parent if HOST_DIR.fullmatch(run.resolve().name) and (parent / CHECKPOINTS).is_dir() else run


def _prune(paths: Sequence[Path], *, keep: int, is_dry: bool) -> Iterator[str]:
    """Prunes the checkpoints of one run, in the directories of all its hosts, and yields what to say of each."""
    stores = {path: run_store(path) for path in paths}
    whole = {path: [checkpoint.env_steps for checkpoint in store.whole()] for path, store in stores.items()}
    common = sorted(set[int].intersection(*map(set, whole.values())), reverse=True)
    if not common:
        missing = "no good checkpoint" if len(paths) == 1 else "no good checkpoint that all hosts have"
        yield from (f"{shown_path(path)}: {missing}, so nothing is removed" for path in paths)
        return
    oldest_kept = common[:keep][-1]
    for path, store in stores.items():
        old = [checkpoint_path(path, step) for step in sorted(store.steps()) if step < oldest_kept]
        freed = freed_bytes(old)
        try:
            store.remove([] if is_dry else old)
        except OSError as error:
            raise SaveError(f"{path / CHECKPOINTS}: {error.strerror}; nothing else was removed") from error
        names = ", ".join(f"{env_steps:,}" for env_steps in whole[path] if env_steps >= oldest_kept)
        done = f"{'would be ' if is_dry else ''}removed, {freed / 1e6:,.1f} MB"
        yield f"{shown_path(path)}: {counted(len(old), 'checkpoint')} {done}; env step {names} stays"


def freed_bytes(directories: Sequence[Path]) -> int:
    """Returns the bytes that removing the directories frees: a file with another name in a kept one frees none."""
    files = [path.lstat() for directory in directories for path in directory.iterdir()]
    names = Counter(status.st_ino for status in files)
    unique = {status.st_ino: status for status in files}
    return sum(status.st_size for status in unique.values() if names[status.st_ino] == status.st_nlink)
