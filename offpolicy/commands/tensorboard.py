"""`make tensorboard runs="a b"`: chosen runs in one TensorBoard, with the charts of their layout.

A directory of links: `--logdir_spec` goes without the fast loader, calls the runs `a/.` and, as TensorBoard says
itself, lacks some features.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from offpolicy.analysis.records import EVENT_FILES, event_paths
from offpolicy.analysis.runs import paths_by_label
from offpolicy.errors import ConfigError


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
    for place, path in links:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve(), target_is_directory=True)
    return [place for place, _ in links]


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


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until TensorBoard is stopped; options of TensorBoard are handed on unchanged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[label=]run", help="a run's directory and what to call it")
    arguments, options = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory(prefix="offpolicy-tensorboard-") as directory:
        try:
            link(arguments.runs, Path(directory))
        except ConfigError as error:
            sys.stderr.write("".join(f"offpolicy: {problem}\n" for problem in error.problems))
            return error.exit_code
        try:
            return subprocess.call([sys.executable, "-m", "tensorboard.main", "--logdir", directory, *options])
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
