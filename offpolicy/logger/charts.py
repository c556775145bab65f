"""The keys of a record that TensorBoard gets, and the charts of its dashboard of custom scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offpolicy.logger.metrics import CHARTS, METRICS, ONCE_USED, WITH_RANKS
from offpolicy.logger.record import Record

AXIS = ("env_steps", "iteration", "wall_s")
SHOWN = frozenset(key for charts in CHARTS.values() for keys in charts.values() for key in keys)


class ChartSelection:
    """Selects the keys of the charts, or all of them with `log.tensorboard=full`, and knows which have had a value.

    `log.ranks=all` and `log.unilab_keys=true` ask for keys of their own: they are always among them.
    """

    def __init__(self, *, is_full: bool, num_ranks: int) -> None:
        self._is_full = is_full
        self._has_ranks = num_ranks > 1
        self._seen: set[str] = set()

    def select(self, record: Record) -> dict[str, float]:
        """Returns the numbers of a record to write."""
        numbers = {
            key: float(value) for key, value in record.items() if isinstance(value, int | float) and key not in AXIS
        }
        chosen = {key: value for key, value in numbers.items() if self._is_full or self._is_shown(key, value)}
        self._seen |= chosen.keys()
        return chosen

    def charts(self) -> Mapping[str, Mapping[str, list[str]]]:
        """Returns the keys by category and title of the charts that have something to show."""
        found = {category: self._with_values(charts) for category, charts in CHARTS.items()}
        return {category: charts for category, charts in found.items() if charts}

    def _with_values(self, charts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        found = {title: [key for key in keys if key in self._seen] for title, keys in charts.items()}
        return {title: keys for title, keys in found.items() if keys}

    def _is_shown(self, key: str, value: float) -> bool:
        if key not in METRICS:  # a key of one rank, or UniLab's name of another key
            return True
        if key not in SHOWN or (key in WITH_RANKS and not self._has_ranks):
            return False
        return value != 0.0 or key in self._seen or key not in ONCE_USED
