"""What rank 0 asks of the evaluator, and what the evaluator reports of itself.

A request is a copy of the policy with what it is of. It is never queued: one that was not begun when the next is made
is replaced by it. Requests are numbered from 1, so the evaluator knows how many it has missed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offpolicy.processes.mailbox import Mailbox
from offpolicy.processes.reports import CollectorLayout
from offpolicy.types import EvaluatorTotals, Float32

_COUNTERS = 3  # episodes, skipped, post_failures
_HEAD = np.dtype(np.uint64)  # env_steps, policy_version


class EvaluationRequest(NamedTuple):
    """One request. `number` counts them; 0: there was none yet."""

    number: int
    env_steps: int
    policy_version: int


class EvaluationRequests:
    """The newest request: the flat policy [P] of float32, its weight version and its env steps, as of one instant."""

    def __init__(self, buffer: memoryview, policy_size: int) -> None:
        self._payload = np.zeros(self._payload_nbytes(4 * policy_size), np.uint8)
        self._head = self._payload[: 2 * _HEAD.itemsize].view(_HEAD)
        self._flat: Float32 = self._payload[2 * _HEAD.itemsize :].view(np.float32)
        self._mailbox = Mailbox(buffer, len(self._payload))

    @staticmethod
    def _payload_nbytes(policy_nbytes: int) -> int:
        return 2 * _HEAD.itemsize + policy_nbytes

    @classmethod
    def nbytes(cls, policy_nbytes: int) -> int:
        """Bytes of the block, for policies of at most `policy_nbytes`."""
        return Mailbox.nbytes(cls._payload_nbytes(policy_nbytes))

    @property
    def newest(self) -> int:
        """The number of the newest request; 0 before the first."""
        return self._mailbox.version

    def ask(self, flat: Float32, *, env_steps: int, policy_version: int) -> int:
        """Make a request of a copy of `flat` [P]; returns its number. Only rank 0 asks."""
        self._head[:] = env_steps, policy_version
        self._flat[:] = flat
        return self._mailbox.publish(self._payload)

    def read(self, out: Float32) -> EvaluationRequest:
        """Copy the newest request's policy into `out` [P]."""
        number = self._mailbox.read(self._payload)
        if number:
            out[:] = self._flat
        env_steps, policy_version = self._head.tolist()
        return EvaluationRequest(number, env_steps, policy_version)


class EvaluatorReports:
    """The evaluator's cumulative report, in a mailbox of `layout(phases).nbytes` bytes."""

    def __init__(self, mailbox: Mailbox, layout: CollectorLayout) -> None:
        self._mailbox, self._layout = mailbox, layout

    @staticmethod
    def layout(phases: tuple[str, ...]) -> CollectorLayout:
        """An account and three counters."""
        return CollectorLayout(phases, counters=_COUNTERS)

    def publish(self, totals: EvaluatorTotals) -> None:
        """Make `totals` the newest report."""
        payload, ints, _ = self._layout.new()
        ints[: self._layout.account.size] = self._layout.account.pack(totals.account)
        ints[-_COUNTERS:] = totals.episodes, totals.skipped, totals.post_failures
        self._mailbox.publish(payload)

    def read(self) -> EvaluatorTotals | None:
        """The newest report; None before the first."""
        payload, ints, _ = self._layout.new()
        if self._mailbox.read(payload) == 0:
            return None
        episodes, skipped, post_failures = ints[-_COUNTERS:].tolist()
        account = self._layout.account.unpack(ints[: self._layout.account.size])
        return EvaluatorTotals(account, episodes, skipped, post_failures)
