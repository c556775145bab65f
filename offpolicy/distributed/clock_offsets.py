"""The offset of every host's monotonic clock to that of the first host, between bounds that exchanges prove.

No rank ends an exchange before every rank has arrived at it. Read on two clocks, each exchange bounds their offset from
both sides. The bounds of many exchanges are intersected, and widened with time, because clocks drift apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Nanoseconds = NDArray[np.int64]
MAX_DRIFT = 50e-6  # seconds by which two clocks may part in a second
UNKNOWN_NS = 1 << 60  # bound of an offset before the first exchange


class ClockOffsets:
    """The offsets of ranks on several hosts: rank r is on host `r // ranks_per_host`, whose ranks share a clock.

    All ranks observe the same instants, so they compute the same offsets.
    """

    def __init__(self, num_ranks: int, ranks_per_host: int) -> None:
        self._num_hosts, self._ranks_per_host = num_ranks // ranks_per_host, ranks_per_host
        self.are_needed = self._num_hosts > 1
        self.by_rank_ns: Nanoseconds = np.zeros(num_ranks, dtype=np.int64)
        self.error_ns = 0  # bound of the error of any of them
        self._low_ns = np.full(self._num_hosts, -UNKNOWN_NS)
        self._high_ns = np.full(self._num_hosts, UNKNOWN_NS)
        self._observed_ns = 0

    def observe(self, arrived_ns: Nanoseconds, ended_ns: Nanoseconds) -> None:
        """Narrows the bounds by K exchanges. [R, K] each, by the ranks' own clocks."""
        num_exchanges = arrived_ns.shape[1]
        if num_exchanges == 0:
            return
        by_host = (self._num_hosts, self._ranks_per_host, num_exchanges)
        last_ns, first_end_ns = arrived_ns.reshape(by_host).max(axis=1), ended_ns.reshape(by_host).min(axis=1)
        low_ns = (last_ns - first_end_ns[0]).max(axis=1)
        high_ns = (first_end_ns - last_ns[0]).min(axis=1)
        now_ns = int(last_ns[0, -1])
        drift_ns = round(MAX_DRIFT * (now_ns - self._observed_ns)) if self._observed_ns else 0
        self._observed_ns = now_ns
        self._low_ns = np.maximum(self._low_ns - drift_ns, low_ns)
        self._high_ns = np.minimum(self._high_ns + drift_ns, high_ns)
        # Bounds that exclude each other: a clock was set forward, or drifts faster; what was seen last counts.
        is_void = self._low_ns > self._high_ns
        self._low_ns[is_void], self._high_ns[is_void] = low_ns[is_void], high_ns[is_void]
        offset_ns = (self._low_ns + self._high_ns) // 2
        offset_ns[0] = 0
        self.by_rank_ns = np.repeat(offset_ns, self._ranks_per_host)
        self.error_ns = int((self._high_ns - self._low_ns)[1:].max() + 1) // 2
