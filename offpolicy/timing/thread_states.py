"""What a thread did in each of its phases: it ran, could have run and had no core, or was blocked.

A thread is blocked while it waits for something else than a core: another process, a device, or the interpreter's lock
that another Python thread holds. The kernel's clocks of a thread cost microseconds, so only some iterations are looked
at, and the others pay nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.timing.clock import ThreadTimes, thread_times

States = NDArray[np.int64]  # [phases, 3] nanoseconds: wall, running, runnable
LEAST_WALL_NS = 1_000_000  # wall of a phase in the sampled iterations below which its shares would be noise


class Shares(NamedTuple):
    """Shares of a phase's wall, 0 to 1."""

    running: float
    runnable: float  # could have run; others had the cores
    blocked: float


class StateSampler:
    """The states of the calling thread by phase, over those iterations between `begin` and the last `add`."""

    def __init__(self, num_phases: int) -> None:
        self._totals = [[0, 0, 0] for _ in range(num_phases)]
        self._last = ThreadTimes(0, 0, 0)

    def begin(self) -> None:
        """Starts now, with the phase that is open."""
        self._last = thread_times()

    def add(self, phase: int) -> None:
        """Adds the time since the last call to the phase that ends now."""
        times, last, total = thread_times(), self._last, self._totals[phase]
        for state in range(3):
            total[state] += times[state] - last[state]
        self._last = times

    def states(self) -> States:
        """Returns the totals so far."""
        return np.array(self._totals, np.int64)


def shares_of(states: States) -> Shares | None:
    """Returns the shares of one phase [3], which sum to 1; None where too little of it was sampled.

    The kernel's clocks of a phase may say more than its wall, as one is read after the other: then `running` is less.
    """
    wall_ns, running_ns, runnable_ns = map(int, states)
    if wall_ns < LEAST_WALL_NS:
        return None
    runnable = min(1.0, runnable_ns / wall_ns)
    running = min(1.0 - runnable, running_ns / wall_ns)
    return Shares(running, runnable, max(0.0, 1.0 - running - runnable))
