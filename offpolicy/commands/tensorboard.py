"""`offpolicy tensorboard [RUN ...]`: runs in one TensorBoard, each under its own name, with the charts of their layout.

A directory of links: `--logdir_spec` goes without the fast loader, calls the runs `a/.` and, as TensorBoard says
itself, lacks some features. `--logdir runs` would show the newest run twice, for `runs/latest` is a link to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import filter as matching
from pathlib import Path

from offpolicy.analysis.records import EVENT_FILES, event_paths
from offpolicy.analysis.runs import paths_by_label
from offpolicy.children import handle_signals
from offpolicy.errors import ConfigError
from offpolicy.launch.run_dir import ATTEMPT
from offpolicy.timing.clock import Every, Stopwatch

LINK_AGAIN_S = 5.0  # until runs that have begun meanwhile are shown too
POLL_S = 0.1  # until a signal is noticed: the wait for the server goes on after its handler
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
        return _serve(command, link_more=lambda: None if words else link_all(root, directory))


def _serve(command: Sequence[str], link_more: Callable[[], object]) -> int:
    """Runs the server until it ends, or until Ctrl-C or SIGTERM, which end it: 0 then, else its exit code.

    The signals raise nothing: between the start of the server and the next line an exception would leave it behind.
    """
    stopped: list[int] = []  # by which signals
    before = handle_signals([signal.SIGINT, signal.SIGTERM], lambda number, _: stopped.append(number))
    try:
        with subprocess.Popen(command) as server:
            link_again, code = Every(Stopwatch().elapsed_s, LINK_AGAIN_S), None
            try:
                while code is None and not stopped:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = server.wait(POLL_S)
                    if code is None and link_again.is_due():
                        link_more()
            finally:
                server.terminate()
        return 0 if stopped or code is None else code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
