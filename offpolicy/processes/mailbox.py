"""Three-slot publication of one flat block by one writer to many readers: never torn, never blocking either side.

Header: the newest version. Each slot carries the version it holds, which the writer zeroes before it overwrites the
slot and sets after; version v lives in slot v % 3. A reader copies the newest slot and looks at the slot's version
again: if it changed, the writer has lapped it (published twice during one copy), and it takes the newer one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy import fault
from offpolicy.types import Float32

_SLOTS = 3
_HEADER_BYTES = 64


class Mailbox:
    """A mailbox for payloads of `payload_nbytes` bytes, over a block of at least `nbytes(payload_nbytes)` bytes."""

    def __init__(self, buffer: memoryview, payload_nbytes: int) -> None:
        self._words = buffer[:_HEADER_BYTES].cast("Q")  # [newest, version of slot 0, 1, 2]
        payload = np.frombuffer(buffer, dtype=np.uint8, offset=_HEADER_BYTES, count=_SLOTS * payload_nbytes)
        self._slots = payload.reshape(_SLOTS, payload_nbytes)

    @staticmethod
    def nbytes(payload_nbytes: int) -> int:
        """Returns the bytes of the block of a mailbox."""
        return _HEADER_BYTES + _SLOTS * payload_nbytes

    @property
    def version(self) -> int:
        """Number of payloads published so far."""
        return self._words[0]

    def publish(self, payload: NDArray[Any], version: int = 0) -> int:
        """Makes `payload` the newest; returns its version: the one given, above those before, or the next one."""
        version = version or self._words[0] + 1
        slot = version % _SLOTS
        self._words[1 + slot] = 0
        fault.hit("mailbox.cleared")
        self._slots[slot] = payload.reshape(-1).view(np.uint8)
        fault.hit("mailbox.copied")
        self._words[1 + slot] = version
        self._words[0] = version
        fault.hit("mailbox.published")
        return version

    def read(self, out: NDArray[Any]) -> int:
        """Copies the newest payload into `out` and returns its version; 0 and `out` untouched before the first."""
        target = out.reshape(-1).view(np.uint8)
        while True:
            version = self._words[0]
            if version == 0:
                return 0
            np.copyto(target, self._slots[version % _SLOTS])
            if self._words[1 + version % _SLOTS] == version:
                return version


class EvaluationRequest(NamedTuple):
    """What identifies one request."""

    number: int  # 0: there was none yet
    env_steps: int
    policy_version: int


class EvaluationRequests:
    """The newest evaluation request of rank 0, which replaces the one before; they are numbered from 1."""

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
        """Makes a request of a copy of `policy` [P] of float32; returns its number. Only rank 0 does."""
        self._record["env_steps"], self._record["policy_version"] = env_steps, policy_version
        self._record["policy"] = policy
        return self._mailbox.publish(self._record)

    def read(self, out: Float32) -> EvaluationRequest:
        """Copies the newest request's policy into `out` [P]."""
        number = self._mailbox.read(self._record)
        if number:
            out[:] = self._record["policy"]
        return EvaluationRequest(number, int(self._record["env_steps"]), int(self._record["policy_version"]))
