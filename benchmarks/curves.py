"""Learning curves of runs, drawn as SVG over env steps.

    python -m benchmarks.curves --out docs/img/hora-curves.svg teacher=runs/a student=runs/b --key rollout/ep_rew_mean

Runs with the same label get the same colour. Points are records of `metrics.jsonl`; nothing is smoothed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 34, 44
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
STYLE = "text{font:12px sans-serif;fill:#333}.grid{stroke:#ddd}.curve{fill:none;stroke-width:1.6}"


class Curve(NamedTuple):
    """One run."""

    label: str
    steps: list[float]
    values: list[float]


class Axis(NamedTuple):
    """Where values from `low` to `high` lie on the picture."""

    low: float
    high: float
    start: float
    stop: float

    def place(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """About five round values."""
        span = self.high - self.low
        step = 10.0 ** len(str(int(span / 5.0))) / 10.0 if span >= 5.0 else span / 5.0
        step = next(step * factor for factor in (1.0, 2.0, 5.0, 10.0) if span / (step * factor) <= 6.0)
        first = -(-self.low // step)
        return [(first + index) * step for index in range(int((self.high / step) - first) + 1)]


def read_curve(label: str, run: Path, key: str) -> Curve:
    """The values of a key over the env steps of a run. Raises ValueError where it has none."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points = [(float(record["env_steps"]), float(record[key])) for record in records if record.get(key) is not None]
    if not points:
        raise ValueError(f"{run}: no {key} in metrics.jsonl")
    steps, values = zip(*points, strict=True)
    return Curve(label, list(steps), list(values))


def drawn(curves: Sequence[Curve], title: str) -> str:
    """The picture."""
    values = [value for curve in curves for value in curve.values]
    across = Axis(0.0, max(curve.steps[-1] for curve in curves), LEFT, WIDTH - RIGHT)
    upwards = Axis(min(0.0, *values), max(values), HEIGHT - BOTTOM, TOP)
    labels = list(dict.fromkeys(curve.label for curve in curves))
    colours = {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(labels)}
    parts = [*_grid(across, upwards), *(_line(curve, across, upwards, colours[curve.label]) for curve in curves)]
    parts += [f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>', *_legend(colours)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return (
        "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", background, *parts, "</svg>"]) + "\n"
    )


def _grid(across: Axis, upwards: Axis) -> Iterator[str]:
    for value in upwards.ticks():
        y = upwards.place(value)
        yield f'<line class="grid" x1="{across.start}" x2="{across.stop}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{across.start - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>'
    for value in across.ticks():
        x, y = across.place(value), HEIGHT - BOTTOM + 18
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{value:,.10g}</text>'
    middle = (across.start + across.stop) / 2.0
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">env steps</text>'


def _line(curve: Curve, across: Axis, upwards: Axis, colour: str) -> str:
    places = zip(curve.steps, curve.values, strict=True)
    points = " ".join(f"{across.place(step):.1f},{upwards.place(value):.1f}" for step, value in places)
    return f'<polyline class="curve" stroke="{colour}" points="{points}"/>'


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    for index, (label, colour) in enumerate(colours.items()):
        y = TOP + 14 + 20 * index
        yield f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 9}" width="12" height="4" fill="{colour}"/>'
        yield f'<text x="{WIDTH - RIGHT + 32}" y="{y - 2}">{escape(label)}</text>'


def main(argv: Sequence[str] | None = None) -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="label=run", help="a run's directory and what to call it")
    parser.add_argument("--key", default="rollout/ep_rew_mean", help="what to draw (default: rollout/ep_rew_mean)")
    parser.add_argument("--title", help="title (default: the key)")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file to write")
    arguments = parser.parse_args(argv)
    named = [word.rpartition("=")[::2] for word in arguments.runs]
    curves = [read_curve(label or Path(run).name, Path(run), arguments.key) for label, run in named]
    arguments.out.write_text(drawn(curves, arguments.title or arguments.key))


if __name__ == "__main__":
    main()
