"""`offpolicy tensorboard [RUN ...]`: runs in one TensorBoard, each under its own name, with the charts of their layout.

A directory of links: `--logdir_spec` goes without the fast loader, calls the runs `a/.` and, as TensorBoard says
itself, lacks some features. `--logdir runs` would show the newest run twice, for `runs/latest` is a link to it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import filter as matching
from pathlib import Path

from offpolicy.analysis.records import EVENT_FILES, event_paths
from offpolicy.analysis.runs import paths_by_label
from offpolicy.errors import ConfigError

LINK_AGAIN_S = 5.0  # until runs that have begun meanwhile are shown too
EVERY_ADDRESS = ("0.0.0.0", "::")  # what --host may be to serve other machines; none that a browser opens
Options = Mapping[str, int | str | None]  # of TensorBoard, by name; None: its own default


def tensorboard(words: Sequence[str], root: Path, options: Options) -> int:
    """Serves the runs of `[label=]RUN ...`, or all below `root`, until TensorBoard is stopped. Raises `ConfigError`."""
    with tempfile.TemporaryDirectory(prefix="offpolicy-tensorboard-") as name:
        directory = Path(name)
        if words:
            link(words, directory)
        elif not link_all(root, directory):
            raise ConfigError(f"run: {root} holds no run with event files ({EVENT_FILES}): offpolicy train writes one")
        given = [f"--{option}={value}" for option, value in options.items() if value is not None]
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", name, *given]
        sys.stderr.write(f"one chart per phase: {_page(options)}\n")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with subprocess.Popen(command) as server:
            try:
                while True:
                    try:
                        return server.wait(LINK_AGAIN_S)
                    except subprocess.TimeoutExpired:
                        if not words:
                            link_all(root, directory)
            except KeyboardInterrupt:
                return 0
            finally:
                server.terminate()


def _page(options: Options) -> str:
    """Returns the page to open; without a port TensorBoard takes the next free one, and says which."""
    if options["port"] is None:
        return "the page #custom_scalars of the address below"
    host = options["host"] or "localhost"
    return f"http://{socket.gethostname() if host in EVERY_ADDRESS else host}:{options['port']}/#custom_scalars"


def link(words: Sequence[str], directory: Path) -> list[Path]:
    """Links the runs of `[label=]RUN ...` in `directory`; seeds of a label are numbered. Raises `ConfigError`."""
    named = paths_by_label(words)
    bare = [path for paths in named.values() for path in paths if not event_paths(path)]
    if bare:
        allowed = f"allowed a directory with event files ({EVENT_FILES})"
        raise ConfigError([f"run: got {str(path)!r}, {allowed}" for path in bare])
    names = _names(list(named))
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
    """Yields directories below `root` with event files, of whatever trainer; links are not followed."""
    for name, children, files in os.walk(root):
        if matching(files, EVENT_FILES):
            children.clear()
            yield Path(name)


def _link(place: Path, path: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path.resolve(), target_is_directory=True)
    return place


def _names(labels: Sequence[str]) -> dict[str, str]:
    """Returns a file name per label; a slash would lead into the run of another one. Raises `ConfigError`."""
    names: dict[str, str] = {}
    for label in labels:
        name = label.replace("/", "_")
        if name in (".", ".."):
            raise ConfigError(f"run: got the label {label!r}, allowed a label that can name a file")
        if name in names.values():
            other = next(known for known in names if names[known] == name)
            raise ConfigError(f"run: the labels {other} and {label} are both linked as {name}; call one otherwise")
        names[label] = name
    return names
