"""Cumulative reports in a mailbox: the reader subtracts two of them, so a missed one costs freshness, never truth.

A collector and the evaluator write their own reports. The ranks' reports are rows of float64, so that one collective
gathers all of them; one rank of the host publishes the matrix. Integers are exact in it up to 2^53.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

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
COUNTERS = ("updates", "warmup_updates", "samples", "sample_age_sum")  # of a learner rank
Record = NDArray[Any]  # of one structured dtype; Any: numpy has no type for its fields


def account_dtype(phases: Sequence[str], number: type[np.number[Any]], *, has_histogram: bool = True) -> np.dtype[Any]:
    """Returns the record of an account. The wall is not sent: it is the sum of the phases."""
    scheduler = [(name, number) for name in SchedulerStats._fields]
    cooldown = [("cpu_ns", number), ("scheduler", scheduler), ("phases_ns", number, (len(phases),))]
    histogram = [("histogram", number, (len(phases) + 1, HISTOGRAM_BINS))]
    return np.dtype([
        *((name, number) for name in ("warmup_ns", "iterations", "cpu_ns")),
        ("scheduler", scheduler),
        ("tagged", [(name, number) for name in TaggedTime._fields]),
        ("phases_ns", number, (len(phases),)),
        ("has_cooldown", number),
        ("cooldown", cooldown),
        *(histogram if has_histogram else []),
    ])  # fmt: skip


def write_account(record: Record, account: Account, phases: Sequence[str]) -> None:
    """Fills a record of zeros with the account."""
    if account.is_empty:
        return
    record["warmup_ns"], record["iterations"], record["cpu_ns"] = account.warmup_ns, account.iterations, account.cpu_ns
    record["scheduler"], record["tagged"] = tuple(account.scheduler), tuple(account.tagged)
    record["phases_ns"] = [account.phases_ns[phase] for phase in phases]
    if (cooldown := account.cooldown) is not None:
        phases_ns = [cooldown.phases_ns[phase] for phase in phases]
        record["has_cooldown"], record["cooldown"] = 1, (cooldown.cpu_ns, tuple(cooldown.scheduler), phases_ns)
    if account.histogram is not None and "histogram" in (record.dtype.names or ()):
        record["histogram"] = account.histogram


def read_account(record: Record, phases: Sequence[str]) -> Account:
    """Returns the account of a record. It closes, however much float64 has rounded."""

    def phases_of(part: Record) -> dict[str, int]:
        return dict(zip(phases, map(int, part["phases_ns"]), strict=True))

    def scheduler_of(part: Record) -> SchedulerStats:
        return SchedulerStats(*map(int, part["scheduler"].item()))

    late = record["cooldown"]
    account = Account(
        wall_ns=sum(phases_of(record).values()),
        warmup_ns=int(record["warmup_ns"]),
        iterations=int(record["iterations"]),
        phases_ns=phases_of(record),
        cpu_ns=int(record["cpu_ns"]),
        scheduler=scheduler_of(record),
        tagged=TaggedTime(*map(int, record["tagged"].item())),
        cooldown=Cooldown(phases_of(late), int(late["cpu_ns"]), scheduler_of(late)) if record["has_cooldown"] else None,
        histogram=record["histogram"].astype(np.int64) if "histogram" in (record.dtype.names or ()) else None,
    )
    return NO_ACCOUNT if account.is_empty else account


def learner_dtype(phases: Sequence[str], packer_phases: Sequence[str], num_metrics: int) -> np.dtype[Any]:
    """Returns the record of one rank's report; its size depends on how many metrics there are, not on their names."""
    number = np.float64
    return np.dtype([
        ("account", account_dtype(phases, number)),
        ("packer", account_dtype(packer_phases, number, has_histogram=False)),
        *((name, number) for name in COUNTERS),
        ("rollouts", [("is_given", number), ("too_old", number), ("lags", number, (NUM_LAGS,))]),
        ("device", [("is_given", number), ("totals", [(name, number) for name in DeviceTotals._fields])]),
        ("late", [(name, number) for name in LateTotals._fields]),
        ("metric_sums", number, (num_metrics,)),
        ("metric_counts", number, (num_metrics,)),
    ])  # fmt: skip


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
        self._num_ranks = num_ranks
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
        """Returns one rank's totals as its row [K] of the matrix to publish."""
        record = np.zeros((), self._dtype)
        write_account(record["account"], totals.account, self._phases)
        write_account(record["packer"], totals.packer, self._packer_phases)
        for name in COUNTERS:
            record[name] = getattr(totals, name)
        if totals.rollouts is not None:
            record["rollouts"] = (1, totals.rollouts.too_old, totals.rollouts.lags)
        if totals.device is not None:
            record["device"] = (1, tuple(totals.device))
        record["late"] = tuple(totals.late)
        record["metric_sums"], record["metric_counts"] = totals.metrics.sums, totals.metrics.counts
        return record.reshape(1).view(np.float64)

    def publish(self, matrix: Float64) -> None:
        """Makes `matrix` [R, K], a row per rank, the newest report."""
        self._mailbox.publish(matrix)

    def read(self) -> tuple[LearnerTotals, ...]:
        """Returns the newest report of every rank; empty before the first."""
        records = np.empty(self._num_ranks, self._dtype)
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
    """The cumulative report of one process, an account and counters, over a block of `nbytes(kind, phases)` bytes."""

    def __init__(self, buffer: memoryview, kind: type[Totals], phases: Sequence[str]) -> None:
        self._kind: type[Totals] = kind
        self._phases, self._dtype = tuple(phases), process_dtype(kind, phases)
        self._mailbox = Mailbox(buffer, self._dtype.itemsize)

    @staticmethod
    def nbytes(kind: type[Totals], phases: Sequence[str]) -> int:
        """Returns the bytes of the block."""
        return Mailbox.nbytes(process_dtype(kind, phases).itemsize)

    @property
    def version(self) -> int:
        """Number of reports published so far."""
        return self._mailbox.version

    def publish(self, totals: Totals) -> None:
        """Makes `totals` the newest report."""
        record = np.zeros((), self._dtype)
        write_account(record["account"], totals.account, self._phases)
        record["counters"] = tuple(getattr(totals, name) for name in self._dtype["counters"].names or ())
        self._mailbox.publish(record)

    def read(self) -> Totals | None:
        """Returns the newest report; None before the first."""
        record = np.zeros((), self._dtype)
        if self._mailbox.read(record) == 0:
            return None
        totals: Totals = self._kind(read_account(record["account"], self._phases), *record["counters"].item())
        return totals


def process_dtype(kind: type[CollectorTotals | EvaluatorTotals], phases: Sequence[str]) -> np.dtype[Any]:
    """Returns the record of a process's report: its account, which is the first field of `kind`, and the others."""
    counters = [(each.name, np.float64 if each.type == "float" else np.int64) for each in fields(kind)[1:]]
    return np.dtype([("account", account_dtype(phases, np.int64)), ("counters", counters)])
