"""A curve in one line of text, and the thinned history that it is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_POINTS = 512  # of a history; beyond, two neighbours become their mean
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*%#"


class History:
    """The values of a run in order. Of a long run, each point is the mean of as many values as all others."""

    def __init__(self) -> None:
        self.first: float | None = None
        self._points: list[float] = []
        self._pending: list[float] = []
        self._per_point = 1

    def add(self, value: float | None) -> None:
        """Appends a value; an unknown one is left out."""
        if value is None or not math.isfinite(value):
            return
        self.first = value if self.first is None else self.first
        self._pending.append(value)
        if len(self._pending) == self._per_point:
            self._points.append(_mean(self._pending))
            self._pending.clear()
        if len(self._points) > MOST_POINTS:
            self._points = [_mean(self._points[i : i + 2]) for i in range(0, MOST_POINTS, 2)] + self._points[-1:]
            self._pending, self._points = [self._points[-1]] * self._per_point, self._points[:-1]
            self._per_point *= 2

    @property
    def points(self) -> Sequence[float]:
        """The points, the newest last."""
        return [*self._points, _mean(self._pending)] if self._pending else self._points


def sparkline(points: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Returns the points in at most `width` characters, from the lowest to the highest; '' for fewer than two."""
    if len(points) < 2 or width < 1:
        return ""
    num = min(width, len(points))
    edges = [round(i * len(points) / num) for i in range(num + 1)]
    means = [_mean(points[start:stop]) for start, stop in zip(edges[:-1], edges[1:], strict=True)]
    levels = ASCII_LEVELS if ascii_only else BLOCKS
    low, span = min(means), max(means) - min(means)
    return "".join(
        levels[min(len(levels) - 1, int(len(levels) * (mean - low) / span)) if span else 0] for mean in means
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
