"""Cumulative reports in a mailbox: the reader subtracts two of them, so a missed one costs freshness, never truth.

A collector writes its own report. The ranks' reports are vectors of float64, so that one collective gathers all of
them; one rank of the host publishes the matrix. Integers are exact in it up to 2^53: nanoseconds for 104 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.processes.mailbox import Mailbox
from offpolicy.types import (
    HISTOGRAM_BINS,
    NUM_LAGS,
    Account,
    CollectorTotals,
    DeviceTotals,
    Float64,
    LearnerTotals,
    MetricTotals,
    RolloutTotals,
    SchedulerStats,
    TaggedTime,
)


class ReportLayout:
    """Where the numbers of a rank lie in its vector [K]; `K` depends on how many metrics there are, not on their names.

    In this order: the account, the packer's account, `updates, samples, sample_age_sum`, what became of the rollouts,
    the device's time, metric sums, metric counts.
    """

    def __init__(self, phases: Sequence[str], metrics: Sequence[str], packer_phases: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        self._account, self._packer = AccountPart(phases), AccountPart(packer_phases, has_histogram=False)
        fixed = (3, _ROLLOUT_NUMBERS, _DEVICE_NUMBERS)
        parts = (self._account.size, self._packer.size, *fixed, len(self.metrics), len(self.metrics))
        self._cuts = np.cumsum(parts)[:-1]
        self.size = sum(parts)

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's vector."""
        return 8 * self.size

    def vector(self, totals: LearnerTotals) -> Float64:
        """The totals as a vector [K]. Raises ValueError if they hold other metrics than the layout."""
        if totals.metrics.names != self.metrics:
            raise ValueError(f"a report of the metrics {self.metrics} got {totals.metrics.names}")
        counters = (totals.updates, totals.samples, totals.sample_age_sum)
        accounts = (self._account.pack(totals.account), self._packer.pack(totals.packer))
        fixed = (*counters, *_pack_rollouts(totals.rollouts), *_pack_device(totals.device))
        return np.concatenate([*accounts, fixed, totals.metrics.sums, totals.metrics.counts])

    def totals(self, vector: Float64) -> LearnerTotals:
        """The totals of a vector [K]; sums that are NaN or infinite arrive as they are."""
        account, packer, counters, rollouts, device, sums, counts = np.split(vector, self._cuts)
        return LearnerTotals(
            account=self._account.unpack(account),
            updates=int(counters[0]),
            samples=int(counters[1]),
            sample_age_sum=float(counters[2]),
            metrics=MetricTotals(self.metrics, sums, counts),
            packer=self._packer.unpack(packer),
            rollouts=RolloutTotals(int(rollouts[1]), rollouts[2:]) if rollouts[0] else None,
            device=DeviceTotals(*map(int, device[1:])) if device[0] else None,
        )


_ROLLOUT_NUMBERS = 2 + NUM_LAGS


def _pack_rollouts(totals: RolloutTotals | None) -> list[float]:
    """Whether there are rollouts at all, those too old, and those learnt from by their lag."""
    return [0.0] * _ROLLOUT_NUMBERS if totals is None else [1.0, totals.too_old, *totals.lags]


_COUNTERS = 8  # of an account, before its phases


_DEVICE_NUMBERS = 1 + len(DeviceTotals._fields)


def _pack_device(totals: DeviceTotals | None) -> list[float]:
    """Whether there is a lane at all, and its numbers."""
    return [0.0] * _DEVICE_NUMBERS if totals is None else [1.0, *totals]


class AccountPart:
    """The part of one account: whether there is one, its counters, the phases, how they are spread.

    The wall is not sent: it is the sum of the phases, so an account that arrives closes, however long the run.
    """

    def __init__(self, phases: Sequence[str], *, has_histogram: bool = True) -> None:
        self._phases = tuple(phases)
        self._shape = (len(self._phases) + 1 if has_histogram else 0, HISTOGRAM_BINS)
        self._num_counters = _COUNTERS + len(self._phases)
        self.size = self._num_counters + self._shape[0] * self._shape[1]

    def pack(self, account: Account | None) -> NDArray[np.int64]:
        """The numbers of the account; zeros for None."""
        numbers = np.zeros(self.size, dtype=np.int64)
        if account is not None:
            counters = (1, account.warmup_ns, account.iterations, account.cpu_ns, *account.scheduler, *account.tagged)
            numbers[:_COUNTERS] = counters
            numbers[_COUNTERS : self._num_counters] = [account.phases_ns[phase] for phase in self._phases]
            if account.histogram is not None and self._shape[0]:
                numbers[self._num_counters :] = account.histogram.ravel()
        return numbers

    def unpack(self, numbers: NDArray[Any]) -> Account | None:  # Any: int64, or float64 that holds integers
        """The account of `numbers`, or None."""
        if not numbers[0]:
            return None
        counters = [int(number) for number in numbers[1 : self._num_counters]]
        warmup_ns, iterations, cpu_ns, runnable_ns, preemptions, num_tagged, tagged_ns, *phases = counters
        phases_ns = dict(zip(self._phases, phases, strict=True))
        histogram = numbers[self._num_counters :].astype(np.int64).reshape(self._shape)
        scheduler, tagged = SchedulerStats(runnable_ns, preemptions), TaggedTime(num_tagged, tagged_ns)
        return Account(
            sum(phases),
            warmup_ns,
            iterations,
            phases_ns,
            cpu_ns,
            scheduler,
            tagged,
            histogram if self._shape[0] else None,
        )


class LearnerReports:
    """The cumulative reports of all ranks, by global rank, in a mailbox of `num_ranks * layout.nbytes` bytes."""

    def __init__(self, mailbox: Mailbox, layout: ReportLayout, num_ranks: int) -> None:
        self._mailbox, self._layout, self._shape = mailbox, layout, (num_ranks, layout.size)

    @staticmethod
    def layout(phases: Sequence[str], metrics: Sequence[str], packer_phases: Sequence[str]) -> ReportLayout:
        """The layout of one rank's vector."""
        return ReportLayout(phases, metrics, packer_phases)

    @property
    def version(self) -> int:
        """How many reports were published."""
        return self._mailbox.version

    def vector(self, totals: LearnerTotals) -> Float64:
        """One rank's totals as its row [K] of the matrix to publish."""
        return self._layout.vector(totals)

    def publish(self, matrix: Float64) -> None:
        """Make `matrix` [R, K], a row per rank, the newest report. Raises ValueError on another shape or type."""
        if matrix.shape != self._shape or matrix.dtype != np.float64:
            raise ValueError(f"reports are float64 {self._shape}, got {matrix.dtype} {matrix.shape}")
        self._mailbox.publish(matrix)

    def read(self) -> tuple[LearnerTotals, ...]:
        """The newest report of every rank; empty before the first."""
        matrix = np.empty(self._shape, dtype=np.float64)
        if self._mailbox.read(matrix) == 0:
            return ()
        return tuple(self._layout.totals(vector) for vector in matrix)


class CollectorLayout:
    """Where the numbers of a collector's report lie: the account, counters (exact integers), then one float."""

    def __init__(self, phases: Sequence[str], counters: int) -> None:
        self.account = AccountPart(phases)
        self._num_ints = self.account.size + counters

    @property
    def nbytes(self) -> int:
        """Bytes of a report."""
        return 8 * (self._num_ints + 1)

    def new(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A blank report: the whole payload, its integers and its float."""
        payload = np.zeros(self._num_ints + 1, dtype=np.int64)
        return payload, payload[: self._num_ints], payload[self._num_ints :].view(np.float64)


class CollectorReports:
    """A collector's cumulative report: the counters of `CollectorTotals` and the float `policy_lag_sum`."""

    def __init__(self, mailbox: Mailbox, layout: CollectorLayout) -> None:
        self._mailbox, self._layout = mailbox, layout

    @staticmethod
    def layout(phases: Sequence[str]) -> CollectorLayout:
        """The layout of a collector's report."""
        return CollectorLayout(phases, counters=5)

    @property
    def version(self) -> int:
        """How many reports were published."""
        return self._mailbox.version

    def publish(self, totals: CollectorTotals) -> None:
        """Make `totals` the newest report."""
        payload, ints, floats = self._layout.new()
        ints[: self._layout.account.size] = self._layout.account.pack(totals.account)
        counters = (totals.env_steps, totals.vector_steps, totals.policy_steps)
        ints[-5:] = *counters, totals.rollouts, totals.rollouts_dropped
        floats[0] = totals.policy_lag_sum
        self._mailbox.publish(payload)

    def read(self) -> CollectorTotals | None:
        """The newest report; None before the first."""
        payload, ints, floats = self._layout.new()
        if self._mailbox.read(payload) == 0:
            return None
        env_steps, vector_steps, policy_steps, rollouts, dropped = ints[-5:].tolist()
        account = self._layout.account.unpack(ints[: self._layout.account.size])
        return CollectorTotals(account, env_steps, vector_steps, float(floats[0]), policy_steps, rollouts, dropped)
