"""Tables of evaluated policies: each with its interval, and all of them against the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from offpolicy.analysis.intervals import Interval, difference_interval, mean_interval, ratio_interval
from offpolicy.types import Episodes, Float64

LARGE = 1000.0


class Contestant(NamedTuple):
    """A policy and its episodes; episode i of every contestant began alike."""

    label: str
    episodes: Episodes


def comparison(contestants: Sequence[Contestant], measure: str | None) -> RenderableType:
    """What the policies reached, and where they differ from the first, with 95 % bootstrap intervals over episodes."""
    count = len(contestants[0].episodes.ep_return)
    note = f"{count} episodes each, begun alike for all; [95 % bootstrap interval over episodes]"
    return Group(_results(contestants, measure), _against_first(contestants, measure), note)


def _quantities(episodes: Episodes, measure: str | None) -> Iterator[tuple[str, Float64]]:
    yield "return", episodes.ep_return
    if measure is not None:
        yield measure, episodes.measure


def _results(contestants: Sequence[Contestant], measure: str | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", overflow="fold")
    for name in ("return", *([measure] if measure else []), "length"):
        table.add_column(name, justify="right")
    for label, episodes in contestants:
        cells = [_text(mean_interval(values[~np.isnan(values)])) for _, values in _quantities(episodes, measure)]
        table.add_row(label, *cells, f"{episodes.length.mean():.1f}")
    return table


def _against_first(contestants: Sequence[Contestant], measure: str | None) -> Table:
    first = contestants[0]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"against {first.label}", overflow="fold")
    for name in ("of", f"{first.label} - it", f"it / {first.label}"):
        table.add_column(name, justify="left" if name == "of" else "right")
    for label, episodes in contestants[1:]:
        pairs = zip(_quantities(first.episodes, measure), _quantities(episodes, measure), strict=True)
        for (name, reference), (_, values) in pairs:
            both = ~np.isnan(reference + values)  # a measure may be told of some episodes only
            difference = difference_interval(reference[both], values[both])
            ratio = ratio_interval(values[both], reference[both])
            table.add_row(label, name, _text(difference), _text(ratio, digits=2))
    return table


def _text(interval: Interval, digits: int = 1) -> str:
    """Value and bounds, without decimals where they are large."""
    decimals = digits if max(map(abs, interval)) < LARGE else 0
    value, low, high = (f"{number:,.{decimals}f}" for number in interval)
    return f"{value} [{low}, {high}]"
