"""Cumulative reports in a mailbox: the reader subtracts two of them, so a missed one costs freshness, never truth.

A collector and the evaluator write their own reports. The ranks' reports are rows of float64, so that one collective
gathers all of them; one rank of the host publishes the matrix. Integers are exact in it up to 2^53: nanoseconds for 104
days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from offpolicy.processes.mailbox import Mailbox
from offpolicy.types import (
    HISTOGRAM_BINS,
    NO_ACCOUNT,
    NUM_LAGS,
    Account,
    CollectorTotals,
    Cooldown,
    DeviceTotals,
    EvaluatorTotals,
    Float64,
    LateTotals,
    LearnerTotals,
    MetricTotals,
    RolloutTotals,
    SchedulerStats,
    TaggedTime,
)

Totals = TypeVar("Totals", CollectorTotals, EvaluatorTotals)
Record = NDArray[Any]  # of one structured dtype; Any: numpy has no type for its fields


def account_dtype(phases: Sequence[str], number: type[np.number[Any]], *, has_histogram: bool = True) -> np.dtype[Any]:
    """Returns the record of an account. The wall is not sent: it is the sum of the phases."""
    spread = [("histogram", number, (len(phases) + 1, HISTOGRAM_BINS))]
    return np.dtype(
        [
            ("warmup_ns", number),
            ("iterations", number),
            ("cpu_ns", number),
            ("scheduler", [(name, number) for name in SchedulerStats._fields]),
            ("tagged", [(name, number) for name in TaggedTime._fields]),
            ("phases_ns", number, (len(phases),)),
            ("cooldown", _cooldown_fields(phases, number)),
            *(spread if has_histogram else []),
        ]
    )


def _cooldown_fields(phases: Sequence[str], number: type[np.number[Any]]) -> list[Any]:
    """Returns the fields of a cooldown; `is_given` is 0 for none."""
    scheduler = [(name, number) for name in SchedulerStats._fields]
    return [("is_given", number), ("cpu_ns", number), ("scheduler", scheduler), ("phases_ns", number, (len(phases),))]


def write_account(record: Record, account: Account, phases: Sequence[str]) -> None:
    """Fills a record of zeros with the account."""
    if account.is_empty:
        return
    record["warmup_ns"], record["iterations"], record["cpu_ns"] = account.warmup_ns, account.iterations, account.cpu_ns
    record["scheduler"], record["tagged"] = tuple(account.scheduler), tuple(account.tagged)
    record["phases_ns"] = [account.phases_ns[phase] for phase in phases]
    if (cooldown := account.cooldown) is not None:
        phases_ns = [cooldown.phases_ns[phase] for phase in phases]
        record["cooldown"] = (1, cooldown.cpu_ns, tuple(cooldown.scheduler), phases_ns)
    if account.histogram is not None and "histogram" in _names(record):
        record["histogram"] = account.histogram


def read_account(record: Record, phases: Sequence[str]) -> Account:
    """Returns the account of a record. It closes, however much float64 has rounded."""
    phases_ns = dict(zip(phases, map(int, record["phases_ns"]), strict=True))
    account = Account(
        wall_ns=sum(phases_ns.values()),
        warmup_ns=int(record["warmup_ns"]),
        iterations=int(record["iterations"]),
        phases_ns=phases_ns,
        cpu_ns=int(record["cpu_ns"]),
        scheduler=SchedulerStats(*map(int, record["scheduler"].item())),
        tagged=TaggedTime(*map(int, record["tagged"].item())),
        cooldown=_read_cooldown(record["cooldown"], phases),
        histogram=record["histogram"].astype(np.int64) if "histogram" in _names(record) else None,
    )
    return NO_ACCOUNT if account.is_empty else account


def _read_cooldown(record: Record, phases: Sequence[str]) -> Cooldown | None:
    if not record["is_given"]:
        return None
    phases_ns = dict(zip(phases, map(int, record["phases_ns"]), strict=True))
    return Cooldown(phases_ns, int(record["cpu_ns"]), SchedulerStats(*map(int, record["scheduler"].item())))


def _names(record: Record) -> tuple[str, ...]:
    return record.dtype.names or ()


def learner_dtype(phases: Sequence[str], packer_phases: Sequence[str], num_metrics: int) -> np.dtype[Any]:
    """Returns the record of one rank's report; its size depends on how many metrics there are, not on their names."""
    number = np.float64
    return np.dtype(
        [
            ("account", account_dtype(phases, number)),
            ("packer", account_dtype(packer_phases, number, has_histogram=False)),
            ("updates", number),
            ("warmup_updates", number),
            ("samples", number),
            ("sample_age_sum", number),
            ("rollouts", [("is_given", number), ("too_old", number), ("lags", number, (NUM_LAGS,))]),
            ("device", [("is_given", number), ("totals", [(name, number) for name in DeviceTotals._fields])]),
            ("late", [(name, number) for name in LateTotals._fields]),
            ("metric_sums", number, (num_metrics,)),
            ("metric_counts", number, (num_metrics,)),
        ]
    )


class LearnerReports:
    """The cumulative reports of all ranks, by global rank, over a block of `nbytes(...)` bytes."""

    def __init__(
        self,
        buffer: memoryview,
        num_ranks: int,
        *,
        phases: Sequence[str],
        packer_phases: Sequence[str],
        metrics: Sequence[str],
    ) -> None:
        self._phases, self._packer_phases, self._metrics = tuple(phases), tuple(packer_phases), tuple(metrics)
        self._dtype = learner_dtype(phases, packer_phases, len(metrics))
        self._shape = (num_ranks, self._dtype.itemsize // 8)
        self._mailbox = Mailbox(buffer, num_ranks * self._dtype.itemsize)

    @staticmethod
    def nbytes(num_ranks: int, phases: Sequence[str], packer_phases: Sequence[str], num_metrics: int) -> int:
        """Returns the bytes of the block."""
        return Mailbox.nbytes(num_ranks * learner_dtype(phases, packer_phases, num_metrics).itemsize)

    @property
    def version(self) -> int:
        """Number of reports published so far."""
        return self._mailbox.version

    def vector(self, totals: LearnerTotals) -> Float64:
        """Returns one rank's totals as its row [K] of the matrix to publish. Raises ValueError on other metrics."""
        if totals.metrics.names != self._metrics:
            raise ValueError(f"a report of the metrics {self._metrics} got {totals.metrics.names}")
        record = np.zeros((), self._dtype)
        write_account(record["account"], totals.account, self._phases)
        write_account(record["packer"], totals.packer, self._packer_phases)
        record["updates"], record["warmup_updates"] = totals.updates, totals.warmup_updates
        record["samples"] = totals.samples
        record["sample_age_sum"] = totals.sample_age_sum
        if totals.rollouts is not None:
            record["rollouts"] = (1, totals.rollouts.too_old, totals.rollouts.lags)
        if totals.device is not None:
            record["device"] = (1, tuple(totals.device))
        record["late"] = tuple(totals.late)
        record["metric_sums"], record["metric_counts"] = totals.metrics.sums, totals.metrics.counts
        return record.reshape(1).view(np.float64)

    def publish(self, matrix: Float64) -> None:
        """Makes `matrix` [R, K], a row per rank, the newest report. Raises ValueError on another shape or type."""
        if matrix.shape != self._shape or matrix.dtype != np.float64:
            raise ValueError(f"reports are float64 {self._shape}, got {matrix.dtype} {matrix.shape}")
        self._mailbox.publish(matrix)

    def read(self) -> tuple[LearnerTotals, ...]:
        """Returns the newest report of every rank; empty before the first."""
        records = np.empty(self._shape[0], self._dtype)
        if self._mailbox.read(records) == 0:
            return ()
        return tuple(self._totals(records[rank : rank + 1].reshape(())) for rank in range(len(records)))

    def _totals(self, record: Record) -> LearnerTotals:
        rollouts, device = record["rollouts"], record["device"]
        return LearnerTotals(
            account=read_account(record["account"], self._phases),
            updates=int(record["updates"]),
            warmup_updates=int(record["warmup_updates"]),
            samples=int(record["samples"]),
            sample_age_sum=float(record["sample_age_sum"]),
            metrics=MetricTotals(self._metrics, record["metric_sums"], record["metric_counts"]),
            packer=read_account(record["packer"], self._packer_phases),
            rollouts=RolloutTotals(int(rollouts["too_old"]), rollouts["lags"]) if rollouts["is_given"] else None,
            device=DeviceTotals(*map(int, device["totals"].item())) if device["is_given"] else None,
            late=LateTotals(*map(int, record["late"].item())),
        )


class ProcessReports(Generic[Totals]):
    """The cumulative report of one process, an account and counters, over a block of `nbytes(phases)` bytes."""

    totals: ClassVar[type[Any]]  # Any: `Totals` of the subclass
    counters: ClassVar[tuple[tuple[str, Any], ...]]  # fields of `totals` besides the account, with numpy's types

    def __init__(self, buffer: memoryview, phases: Sequence[str]) -> None:
        self._phases, self._dtype = tuple(phases), self._record_dtype(phases)
        self._mailbox = Mailbox(buffer, self._dtype.itemsize)

    @classmethod
    def _record_dtype(cls, phases: Sequence[str]) -> np.dtype[Any]:
        return np.dtype([("account", account_dtype(phases, np.int64)), ("counters", list(cls.counters))])

    @classmethod
    def nbytes(cls, phases: Sequence[str]) -> int:
        """Returns the bytes of the block."""
        return Mailbox.nbytes(cls._record_dtype(phases).itemsize)

    @property
    def version(self) -> int:
        """Number of reports published so far."""
        return self._mailbox.version

    def publish(self, totals: Totals) -> None:
        """Makes `totals` the newest report."""
        record = np.zeros((), self._dtype)
        write_account(record["account"], totals.account, self._phases)
        record["counters"] = tuple(getattr(totals, name) for name, _ in self.counters)
        self._mailbox.publish(record)

    def read(self) -> Totals | None:
        """Returns the newest report; None before the first."""
        record = np.zeros((), self._dtype)
        if self._mailbox.read(record) == 0:
            return None
        counters = dict(zip((name for name, _ in self.counters), record["counters"].item(), strict=True))
        totals: Totals = self.totals(account=read_account(record["account"], self._phases), **counters)
        return totals


class CollectorReports(ProcessReports[CollectorTotals]):
    """The cumulative report of a collector."""

    totals = CollectorTotals
    counters = (
        ("env_steps", np.int64),
        ("vector_steps", np.int64),
        ("policy_lag_sum", np.float64),
        ("policy_steps", np.int64),
        ("rollouts", np.int64),
        ("rollouts_dropped", np.int64),
    )


class EvaluatorReports(ProcessReports[EvaluatorTotals]):
    """The cumulative report of the evaluator."""

    totals = EvaluatorTotals
    counters = (("episodes", np.int64), ("skipped", np.int64))
