"""Learning curves of runs alone, over env steps; `offpolicy compare --png` draws them beside the time.

    python -m benchmarks.curves --out curves.svg teacher=runs/a student=runs/b --key rollout/ep_rew_mean

Runs of one label become their mean with a band from the least to the most of them. Nothing is smoothed. The
file's ending says what it is: .svg or .png.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from offpolicy.analysis.plots import curves_file
from offpolicy.analysis.records import read_run
from offpolicy.analysis.runs import paths_by_label
from offpolicy.types import Float64


def read_curve(run: Path, key: str) -> tuple[Float64, Float64]:
    """Returns env steps and values of a key. Raises ValueError where the run has none, `ConfigError` without a run."""
    curve = read_run(run).curve(key)
    if not len(curve.value):
        raise ValueError(f"{run}: no {key} in its records")
    return curve.env_steps, curve.value


def main(argv: Sequence[str] | None = None) -> None:
    """Draws what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="label=run", help="a run's directory and what to call it")
    parser.add_argument("--key", default="rollout/ep_rew_mean", help="what to draw (default: rollout/ep_rew_mean)")
    parser.add_argument("--title", help="title (default: the key)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write: .svg or .png")
    arguments = parser.parse_args(argv)
    named = paths_by_label(arguments.runs)
    curves = {label: [read_curve(path, arguments.key) for path in paths] for label, paths in named.items()}
    is_svg = arguments.out.suffix == ".svg"
    arguments.out.write_bytes(curves_file(curves, arguments.title or arguments.key, is_svg=is_svg))


if __name__ == "__main__":
    main()
