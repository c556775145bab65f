"""The seams of the learner loop: what it asks of its parts, and nothing more."""

from __future__ import annotations

from typing import Protocol

from offpolicy.types import Batches, Float32


class BatchSource(Protocol):
    """Where batches come from. The loop calls these in this order, once per iteration."""

    def wait_ready(self) -> None:
        """Block until the collector has produced what this iteration needs, or the run is stopping."""
        ...

    def is_exhausted(self) -> bool:
        """Whether the budget is spent and every update it calls for is done."""
        ...

    def wait_batch(self) -> None:
        """Block until the prefetched batch is packed and on the device; returns at once where nothing is prefetched."""
        ...

    def sample(self) -> Float32:
        """Draw and gather this iteration's rows [U, B, W] on this thread."""
        ...

    def to_device(self, rows: Float32) -> Batches:
        """Copy the rows to the learner's device, and only that."""
        ...

    def release(self) -> None:
        """Let the collector go on."""
        ...


class Trainable(Protocol):
    """A learner as the loop sees it."""

    def update(self, batches: Batches) -> None:
        """Do one gradient update per batch, without waiting for the device."""
        ...


class Fence(Protocol):
    """Waiting for the device."""

    def wait(self) -> None:
        """Return when the work queued so far is done."""
        ...


class Publisher(Protocol):
    """The way of the weights to the collectors."""

    def publish(self) -> None:
        """Make the present weights the newest."""
        ...


class Periodic(Protocol):
    """Something with a cadence of its own."""

    def run_if_due(self) -> None:
        """Do it if its time has come."""
        ...

    def run_last(self, *, is_complete: bool) -> None:
        """Do it once more at the end; `is_complete` is False when the run was asked to stop early."""
        ...


class StopSignal(Protocol):
    """Whether the supervisor asked to finish."""

    @property
    def is_stopping(self) -> bool:
        """True from the request on."""
        ...


class World(Protocol):
    """The group of learner ranks; of size 1 it is the identity."""

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank: everybody leaves, or nobody."""
        ...


class StepGate(Protocol):
    """The learner's side of the handshake with the collector."""

    @property
    def env_steps(self) -> int:
        """Transitions collected so far."""
        ...

    def wait_for(self, env_steps: int) -> None:
        """Block until that many exist, or the run is stopping."""
        ...

    def grant(self, env_steps: int) -> None:
        """Let the collector step up to that many."""
        ...
