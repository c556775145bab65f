"""Cumulative reports in a mailbox: the reader subtracts two of them, so a missed one costs freshness, never truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offpolicy.ipc.mailbox import Mailbox
from offpolicy.types import Account, CollectorTotals, LearnerTotals, MetricTotals


class ReportLayout:
    """Where the numbers of a report lie: integers first (exact nanoseconds), then floats."""

    def __init__(self, phases: Sequence[str], counters: int, metrics: Sequence[str] = ()) -> None:
        self.phases, self.metrics = tuple(phases), tuple(metrics)
        self._num_ints = 4 + 1 + len(self.phases) + counters  # account, is_timed, phases, counters
        self._num_floats = 2 + 2 * len(self.metrics)

    @property
    def nbytes(self) -> int:
        """Bytes of a report."""
        return 8 * (self._num_ints + self._num_floats)

    def new(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A blank report: the whole payload, its integers and its floats."""
        payload = np.zeros(self._num_ints + self._num_floats, dtype=np.int64)
        return payload, payload[: self._num_ints], payload[self._num_ints :].view(np.float64)

    def put_account(self, ints: np.ndarray, account: Account | None) -> None:
        """Write the account's part."""
        if account is not None:
            ints[:5] = account.wall_ns, account.warmup_ns, account.iterations, account.cpu_ns, 1
            ints[5 : 5 + len(self.phases)] = [account.phases_ns[phase] for phase in self.phases]

    def account(self, ints: np.ndarray) -> Account | None:
        """Read the account's part."""
        if not ints[4]:
            return None
        phases_ns = dict(zip(self.phases, ints[5 : 5 + len(self.phases)].tolist(), strict=True))
        wall_ns, warmup_ns, iterations, cpu_ns = ints[:4].tolist()
        return Account(wall_ns, warmup_ns, iterations, phases_ns, cpu_ns)


class LearnerReports:
    """A learner's cumulative report: counters `updates, samples`; floats `sample_age_sum`, metric sums and counts."""

    def __init__(self, mailbox: Mailbox, layout: ReportLayout) -> None:
        self._mailbox, self._layout = mailbox, layout

    @staticmethod
    def layout(phases: Sequence[str], metrics: Sequence[str]) -> ReportLayout:
        """The layout of a learner's report."""
        return ReportLayout(phases, counters=2, metrics=metrics)

    @property
    def version(self) -> int:
        """How many reports were published."""
        return self._mailbox.version

    def publish(self, totals: LearnerTotals) -> None:
        """Make `totals` the newest report."""
        payload, ints, floats = self._layout.new()
        self._layout.put_account(ints, totals.account)
        ints[-2:] = totals.updates, totals.samples
        floats[0] = totals.sample_age_sum
        count = len(self._layout.metrics)
        floats[2 : 2 + count] = totals.metrics.sums
        floats[2 + count :] = totals.metrics.counts
        self._mailbox.publish(payload)

    def read(self) -> LearnerTotals | None:
        """The newest report; None before the first."""
        payload, ints, floats = self._layout.new()
        if self._mailbox.read(payload) == 0:
            return None
        count = len(self._layout.metrics)
        metrics = MetricTotals(self._layout.metrics, floats[2 : 2 + count].copy(), floats[2 + count :].copy())
        updates, samples = ints[-2:].tolist()
        return LearnerTotals(self._layout.account(ints), updates, samples, float(floats[0]), metrics)


class CollectorReports:
    """A collector's cumulative report: counters `env_steps, vector_steps, policy_steps`; float `policy_lag_sum`."""

    def __init__(self, mailbox: Mailbox, layout: ReportLayout) -> None:
        self._mailbox, self._layout = mailbox, layout

    @staticmethod
    def layout(phases: Sequence[str]) -> ReportLayout:
        """The layout of a collector's report."""
        return ReportLayout(phases, counters=3)

    @property
    def version(self) -> int:
        """How many reports were published."""
        return self._mailbox.version

    def publish(self, totals: CollectorTotals) -> None:
        """Make `totals` the newest report."""
        payload, ints, floats = self._layout.new()
        self._layout.put_account(ints, totals.account)
        ints[-3:] = totals.env_steps, totals.vector_steps, totals.policy_steps
        floats[0] = totals.policy_lag_sum
        self._mailbox.publish(payload)

    def read(self) -> CollectorTotals | None:
        """The newest report; None before the first."""
        payload, ints, floats = self._layout.new()
        if self._mailbox.read(payload) == 0:
            return None
        env_steps, vector_steps, policy_steps = ints[-3:].tolist()
        account = self._layout.account(ints)
        return CollectorTotals(account, env_steps, vector_steps, float(floats[0]), policy_steps)
