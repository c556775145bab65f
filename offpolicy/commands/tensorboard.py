"""`offpolicy tensorboard [RUN ...]`: runs in one TensorBoard, each under its own name, with the charts of their layout.

TensorBoard shows a directory of links: `--logdir runs` would show the newest run twice, for `runs/latest` is a link.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import filter as matching
from pathlib import Path

from offpolicy.analysis.records import EVENT_FILES, event_paths
from offpolicy.analysis.runs import paths_by_label
from offpolicy.commands.options import positive
from offpolicy.errors import ConfigError
from offpolicy.launch.run_dir import ATTEMPT
from offpolicy.processes.signals import handle_signals
from offpolicy.runs import ROOT

LINK_AGAIN_S = 5.0  # until runs that have begun meanwhile are shown too
EVERY_ADDRESS = ("0.0.0.0", "::")  # what --host may be to serve other machines; none that a browser opens
OPTIONS = ("port", "host", "reload_interval", "samples_per_plugin")  # of TensorBoard


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and options of TensorBoard."""
    parser.add_argument("runs", nargs="*", metavar="[label=]run", help="runs to show (default: all)")
    parser.add_argument("--logdir", type=Path, default=ROOT, help=f"where all runs are (default: {ROOT})")
    parser.add_argument("--port", type=int, help="port to serve at (default: 6006, or the next free one)")
    parser.add_argument("--host", help="address to serve at, such as 0.0.0.0 for other machines")
    parser.add_argument("--reload_interval", type=positive, help="seconds between two looks for new records")
    parser.add_argument("--samples_per_plugin", help="points kept per chart, such as scalars=5000")


def run(arguments: argparse.Namespace) -> int:
    """Serves the runs, or all below `--logdir`, until TensorBoard is stopped. Returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="offpolicy-tensorboard-") as name:
        directory, root = Path(name), arguments.logdir
        if arguments.runs:
            link(arguments.runs, directory)
        elif not link_all(root, directory):
            raise ConfigError(f"run: {root} holds no run with event files ({EVENT_FILES}): offpolicy train writes one")
        given = {option: getattr(arguments, option) for option in OPTIONS}
        words = [f"--{option}={value}" for option, value in given.items() if value is not None]
        page = "the page #custom_scalars of the address below"  # without a port TensorBoard takes the next free one
        if arguments.port is not None:
            host = arguments.host or "localhost"
            host = socket.gethostname() if host in EVERY_ADDRESS else host
            page = f"http://{host}:{arguments.port}/#custom_scalars"
        sys.stderr.write(f"one chart per phase: {page}\n")
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", name, *words]
        handle_signals((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler)  # they must not leave TensorBoard
        with subprocess.Popen(command) as server:
            try:
                while True:
                    try:
                        return server.wait(LINK_AGAIN_S)
                    except subprocess.TimeoutExpired:
                        link_all(root, directory) if not arguments.runs else None
            except KeyboardInterrupt:
                return 0
            finally:
                server.terminate()


def link(words: Sequence[str], directory: Path) -> list[Path]:
    """Links the runs of `[label=]RUN ...` in `directory`; seeds of a label are numbered. Raises `ConfigError`."""
    named = paths_by_label(words)
    bare = [path for paths in named.values() for path in paths if not event_paths(path)]
    if bare:
        allowed = f"allowed a directory with event files ({EVENT_FILES})"
        raise ConfigError([f"run: got {str(path)!r}, {allowed}" for path in bare])
    # A slash would lead into the run of another label; this one looks like it, and is part of a name.
    names = {label: label.replace("/", "\u2215") for label in named}
    links = [
        (directory / (f"{names[label]}/{index}" if len(paths) > 1 else names[label]), path)
        for label, paths in named.items()
        for index, path in enumerate(paths, 1)
    ]
    return [_link(place, path) for place, path in links]


def link_all(root: Path, directory: Path) -> list[Path]:
    """Links in `directory`, under their paths below `root`, the runs that are not there yet, and returns the links."""
    names = [(path.relative_to(root) if path != root else root.resolve().name, path) for path in _with_events(root)]
    places = [(directory / name, path) for name, path in names]
    return [_link(place, path) for place, path in places if not place.exists()]


def _with_events(root: Path) -> Iterator[Path]:
    """Yields directories below `root` with event files, of whatever trainer; links are not followed.

    An attempt that was set aside in a run is left out: linked before the run has event files, it stood in its place.
    """
    for name, children, files in os.walk(root):
        if matching(files, EVENT_FILES):
            children.clear()
            yield Path(name)
        elif "config.yaml" in files:
            children[:] = [child for child in children if not child.startswith(ATTEMPT)]


def _link(place: Path, path: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path.resolve(), target_is_directory=True)
    return place
