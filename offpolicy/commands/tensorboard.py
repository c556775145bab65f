"""`make tensorboard runs="a=RUN b=RUN" port=6006`: chosen runs in one TensorBoard, with the charts of their layout.

A directory of links: `--logdir_spec` goes without the fast loader, calls the runs `a/.` and, as TensorBoard says
itself, lacks some features.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from offpolicy.analysis.records import EVENT_FILES, event_paths
from offpolicy.analysis.runs import paths_by_label
from offpolicy.errors import ConfigError

# Options of TensorBoard that are handed on: type, default, meaning.
OPTIONS: Mapping[str, tuple[type[int] | type[str], int | str | None, str]] = {
    "port": (int, 6006, "port to serve at"),
    "host": (str, None, "address to serve at, such as 0.0.0.0 for other machines"),
    "reload_interval": (int, None, "seconds between two looks for new records"),
    "samples_per_plugin": (str, None, "points kept per chart, such as scalars=5000"),
}


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
    """Serves until TensorBoard is stopped."""
    arguments = _parser().parse_args(argv)
    options = [f"--{name}={getattr(arguments, name)}" for name in OPTIONS if getattr(arguments, name) is not None]
    with tempfile.TemporaryDirectory(prefix="offpolicy-tensorboard-") as directory:
        try:
            link(arguments.runs, Path(directory))
        except ConfigError as error:
            sys.stderr.write("".join(f"offpolicy: {problem}\n" for problem in error.problems))
            return error.exit_code
        sys.stderr.write(f"one chart per phase: http://localhost:{arguments.port}/#custom_scalars\n")
        try:
            return subprocess.call([sys.executable, "-m", "tensorboard.main", "--logdir", directory, *options])
        except KeyboardInterrupt:
            return 0


def _parser() -> argparse.ArgumentParser:
    """Returns the parser: each option of TensorBoard by name, or its value would be taken for a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[label=]run", help="a run's directory and what to call it")
    for name, (kind, default, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{text} (default: {default})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
