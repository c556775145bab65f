"""Three-slot publication of one flat block by one writer to many readers: never torn, never blocking either side.

Used for the actor's weights (learner to collectors) and for the cumulative reports (all processes to the supervisor).
Header: the newest version. Each slot carries the version it holds, which the writer zeroes before it overwrites the
slot and sets after; version v lives in slot v % 3. A reader copies the newest slot and looks at the slot's version
again: if it changed, the writer has lapped it (published twice during one copy), and it takes the newer one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLOTS = 3
_HEADER_BYTES = 64


class Mailbox:
    """A mailbox for payloads of `payload_nbytes` bytes, over a block of at least `nbytes(payload_nbytes)` bytes."""

    def __init__(self, buffer: memoryview, payload_nbytes: int) -> None:
        if len(buffer) < self.nbytes(payload_nbytes):
            raise ValueError(f"a mailbox of {payload_nbytes} byte payloads does not fit into {len(buffer)} bytes")
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

    def publish(self, payload: NDArray[Any]) -> int:
        """Makes `payload` the newest; returns its version."""
        version = self._words[0] + 1
        slot = version % _SLOTS
        self._words[1 + slot] = 0
        self._slots[slot] = payload.reshape(-1).view(np.uint8)
        self._words[1 + slot] = version
        self._words[0] = version
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
