"""Evaluation requests of rank 0 to the evaluator: a copy of the policy with its version and env steps.

A request is never queued: one that was not begun when the next is made is replaced by it. Requests are numbered from 1,
so the evaluator knows how many it has missed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offpolicy.processes.mailbox import Mailbox
from offpolicy.types import Float32


class EvaluationRequest(NamedTuple):
    """One request. `number` counts them; 0: there was none yet."""

    number: int
    env_steps: int
    policy_version: int


class EvaluationRequests:
    """The newest request: the flat policy [P] of float32, its weight version and its env steps, as of one instant."""

    _HEAD = (("env_steps", np.uint64), ("policy_version", np.uint64))

    def __init__(self, buffer: memoryview, policy_size: int) -> None:
        self._record = np.zeros((), np.dtype([*self._HEAD, ("policy", np.float32, (policy_size,))]))
        self._mailbox = Mailbox(buffer, self._record.nbytes)

    @classmethod
    def nbytes(cls, policy_nbytes: int) -> int:
        """Returns the bytes of the block, for policies of at most `policy_nbytes`."""
        return Mailbox.nbytes(np.dtype(list(cls._HEAD)).itemsize + policy_nbytes)

    @property
    def newest(self) -> int:
        """The number of the newest request; 0 before the first."""
        return self._mailbox.version

    def publish(self, policy: Float32, *, env_steps: int, policy_version: int) -> int:
        """Makes a request of a copy of `policy` [P]; returns its number. Only rank 0 does."""
        self._record["env_steps"], self._record["policy_version"] = env_steps, policy_version
        self._record["policy"] = policy
        return self._mailbox.publish(self._record)

    def read(self, out: Float32) -> EvaluationRequest:
        """Copies the newest request's policy into `out` [P]."""
        number = self._mailbox.read(self._record)
        if number:
            out[:] = self._record["policy"]
        return EvaluationRequest(number, int(self._record["env_steps"]), int(self._record["policy_version"]))
