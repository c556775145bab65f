"""Learning curves of runs alone, over env steps; `offpolicy compare --png` draws them beside the time.

    python -m benchmarks.curves --out docs/img/hora-curves.svg teacher=runs/a student=runs/b --key rollout/ep_rew_mean

Runs of one label become their mean with a band from the least to the most of them. Nothing is smoothed. The
file's ending says what it is: .svg or .png.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from offpolicy.analysis.drawing import curves_file
from offpolicy.analysis.runs import read_run
from offpolicy.types import Float64


def read_curve(run: Path, key: str) -> tuple[Float64, Float64]:
    """Env steps and values of a key. Raises ValueError where the run has none, `ConfigError` where it is no run."""
    curve = read_run(run).curve(key)
    if not len(curve.value):
        raise ValueError(f"{run}: no {key} in its records")
    return curve.env_steps, curve.value


def main(argv: Sequence[str] | None = None) -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="label=run", help="a run's directory and what to call it")
    parser.add_argument("--key", default="rollout/ep_rew_mean", help="what to draw (default: rollout/ep_rew_mean)")
    parser.add_argument("--title", help="title (default: the key)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write: .svg or .png")
    arguments = parser.parse_args(argv)
    curves: dict[str, list[tuple[Float64, Float64]]] = {}
    for word in arguments.runs:
        label, _, run = word.rpartition("=")
        curves.setdefault(label or Path(run).name, []).append(read_curve(Path(run), arguments.key))
    is_svg = arguments.out.suffix == ".svg"
    arguments.out.write_bytes(curves_file(curves, arguments.title or arguments.key, is_svg=is_svg))


if __name__ == "__main__":
    main()
