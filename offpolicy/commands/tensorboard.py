"""`offpolicy tensorboard [RUN ...]`: runs in one TensorBoard, each under its own name, with the charts of their layout.

TensorBoard shows a directory of links: `--logdir runs` would show the newest run twice, for `runs/latest` is a link.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import filter as matching
from pathlib import Path

from offpolicy.analysis.records import EVENT_FILES, event_paths
from offpolicy.analysis.runs import paths_by_label
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.launch.run_dir import ATTEMPT
from offpolicy.processes.signals import handle_signals
from offpolicy.runs import ROOT

LINK_AGAIN_S = 5.0  # until runs that have begun meanwhile are shown too
OPTIONS = {  # of TensorBoard
    "port": "port to serve at (default: 6006, or the next free one)",
    "host": "address to serve at, such as 0.0.0.0 for other machines",
    "reload_interval": "seconds between two looks for new records",
    "samples_per_plugin": "points kept per chart, such as scalars=5000",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and options of TensorBoard."""
    parser.add_argument("runs", nargs="*", metavar="[label=]run", help="runs to show (default: all)")
    parser.add_argument("--logdir", type=Path, default=ROOT, help=f"where all runs are (default: {ROOT})")
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name}", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Serves the runs, or all below `--logdir`, until TensorBoard is stopped. Returns its exit code."""
    root, named = arguments.logdir, labelled(arguments.runs)
    if not named and not runs_below(root):
        raise ConfigError(f"run: {root} holds no run with event files ({EVENT_FILES}): offpolicy train writes one")
    words = [f"--{name}={value}" for name in OPTIONS if (value := getattr(arguments, name)) is not None]
    sys.stderr.write("one chart per phase: the page #custom_scalars of the address below\n")
    with tempfile.TemporaryDirectory(prefix="offpolicy-tensorboard-") as directory:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", directory, *words]
        handle_signals((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler)  # they must not leave TensorBoard
        with subprocess.Popen(command) as server:
            try:
                while True:
                    link(named or runs_below(root), Path(directory))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return server.wait(LINK_AGAIN_S)
            except KeyboardInterrupt:
                return EXIT_OK
            finally:
                server.terminate()


def labelled(words: Sequence[str]) -> dict[str, Path]:
    """Returns the runs of `[label=]RUN ...` by the name of their link; seeds are numbered. Raises `ConfigError`."""
    named = dict[str, Path]()
    for label, paths in paths_by_label(words).items():
        # A slash would lead into the run of another label; this one looks like it, and is part of a name.
        name = label.replace("/", "\u2215")
        named |= {f"{name}/{index}" if len(paths) > 1 else name: path for index, path in enumerate(paths, 1)}
    allowed = f"allowed a directory with event files ({EVENT_FILES})"
    if problems := [f"run: got {str(path)!r}, {allowed}" for path in named.values() if not event_paths(path)]:
        raise ConfigError(problems)
    return named


def runs_below(root: Path) -> dict[str, Path]:
    """Returns directories with event files, of whatever trainer, by their path below `root`; no attempt set aside."""
    found = dict[str, Path]()
    for name, children, files in os.walk(root):
        path = Path(name)
        if matching(files, EVENT_FILES):
            children.clear()
            found[str(path.relative_to(root)) if path != root else root.resolve().name] = path
        elif "config.yaml" in files:
            children[:] = [child for child in children if not child.startswith(ATTEMPT)]
    return found


def link(named: Mapping[str, Path], directory: Path) -> None:
    """Links in `directory` the runs that are not there yet."""
    for name, path in named.items():
        place = directory / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve(), target_is_directory=True)
