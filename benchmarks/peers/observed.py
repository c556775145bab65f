"""What is seen of a repeat while it runs: who used the cores, second by second, and when it chose threads or mode."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from benchmarks.peers.contenders import Progress
from benchmarks.quiet import Usage, share_between

SAMPLE_S = 1.0  # between two readings of the cores' clocks


class Observed:
    """One repeat, on this process's monotonic clock."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores, self._samples = tuple(cores), [Usage.of_tree(cores)]
        self._chosen_s: list[float] = []  # when each choice was seen
        self._offset_s = math.inf  # of its clock; the least one seen: a record is seen late, never early

    def look(self, progress: Progress | None) -> None:
        """Reads the cores' clocks where that is due, and notes how far the repeat is."""
        now_s = time.monotonic()
        if now_s >= self._samples[-1].wall_s + SAMPLE_S:
            self.sample()
        if progress is not None:
            self.note(progress, now_s)

    def sample(self) -> None:
        """Reads the cores' clocks."""
        self._samples.append(Usage.of_tree(self._cores))

    def note(self, progress: Progress, now_s: float) -> None:
        """Notes choices and the repeat's clock, of what it has written until now."""
        self._chosen_s += [now_s] * (progress.num_choices - len(self._chosen_s))
        if progress.ticks:
            self._offset_s = min(self._offset_s, now_s - progress.ticks[-1][1])

    @property
    def settled_s(self) -> float:
        """When the first trial had ended; -inf without one."""
        return self._chosen_s[0] if self._chosen_s else -math.inf

    def on_our_clock(self, ticks: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """Returns ticks of the repeat's clock on ours; as they are for one whose clock is ours."""
        offset_s = self._offset_s if math.isfinite(self._offset_s) else 0.0
        return [(steps, seconds + offset_s) for steps, seconds in ticks]

    def others_share(self, start_s: float, end_s: float) -> float:
        """The part of the cores' time that others took in a window, whose ends are rounded out to samples."""
        return share_between(self._samples, start_s, end_s, len(self._cores))

    def has_changed(self, start_s: float, end_s: float) -> bool:
        """True if another setting was chosen within a window."""
        return any(start_s < chosen_s <= end_s for chosen_s in self._chosen_s)
