"""The seams of the learner loop: the methods that it calls on its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from offpolicy.types import Account, RolloutTotals

Batch_co = TypeVar("Batch_co", covariant=True)  # what one iteration consumes: `Batches` of replayed rows, or `Rollouts`


class BatchSource(Protocol[Batch_co]):
    """Where batches come from, as the loop sees it: it calls these in this order, once per iteration."""

    def wait_ready(self) -> None:
        """Block until the collector has produced what this iteration needs, or the run is stopping."""
        ...

    def is_exhausted(self) -> bool:
        """True if the budget is spent and every update it calls for is done."""
        ...

    def wait_batch(self) -> None:
        """Block until the prefetched batch is packed and on the device; returns at once where nothing is prefetched."""
        ...

    def sample(self) -> Tensor:
        """Gather this iteration's rows on this thread: updates [U, B, W], or time steps [T + 1, B, W].

        A prefetched batch is only handed out.
        """
        ...

    def to_device(self, rows: Tensor) -> Batch_co:
        """Copy the rows to the learner's device, and only that."""
        ...

    def release(self) -> None:
        """Grants the collectors their next steps."""
        ...


class StatefulBatchSource(BatchSource[Batch_co], Protocol[Batch_co]):
    """A batch source as the learner process sees it: with counters for the report and state for the checkpoint."""

    first_unseen_row: list[int]  # by ring: the first row whose observation the normaliser has not seen

    @property
    def samples(self) -> int:
        """Number of rows of the replay handed out; demonstrations are not among them."""
        ...

    @property
    def sample_age_sum(self) -> float:
        """Sum over `samples` of the row's age in env steps. May wait for the device."""
        ...

    @property
    def rollouts(self) -> RolloutTotals | None:
        """Counts of the rollouts so far; None where the rows come from a replay."""
        ...

    def random_state(self) -> dict[str, Any]:
        """Returns JSON data from which a new source hands out the batches that this one would hand out next."""
        ...

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Continues from what `random_state` returned, before the first batch."""
        ...

    def packer_account(self) -> Account | None:
        """Returns the account of the thread that packs batches ahead; None if there is none or timing is off."""
        ...

    def describe(self) -> str:
        """Returns a line for the run's header: which source it is and the bytes it holds."""
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...


class Learner(Protocol):
    """A learner as the loop sees it."""

    def update(self, batch: Any, /) -> None:  # Any: what the learner's batch source returns, Batches or Rollouts
        """Learns from what one iteration consumes, without waiting for the device."""
        ...


class DeviceSync(Protocol):
    """Waits for the device."""

    def wait(self) -> None:
        """Returns when the work queued so far is done."""
        ...


class Publisher(Protocol):
    """Publishes weights to the collectors."""

    def publish(self) -> None:
        """Publishes the present weights."""
        ...


class Periodic(Protocol):
    """Something with a cadence of its own."""

    def run_if_due(self) -> None:
        """Do it if its time has come."""
        ...

    def run_last(self, *, is_complete: bool) -> None:
        """Do it once more at the end; `is_complete` is False when the run was asked to stop early."""
        ...


class FinalEvaluation(Protocol):
    """Evaluation, whose last result a run is not complete without."""

    def run_if_due(self) -> None:
        """Do it if its time has come."""
        ...

    def run_last(self, *, is_complete: bool) -> bool:
        """Do it once more, unless the run was asked to stop early; whether it is complete, also after this."""
        ...


class StopSignal(Protocol):
    """Whether the supervisor asked to finish."""

    @property
    def is_stopping(self) -> bool:
        """True from the request on."""
        ...


class StepCount(Protocol):
    """The clock of a run."""

    @property
    def env_steps(self) -> int:
        """Transitions of all collectors, as every rank knows them: the number that decisions go by."""
        ...


class World(StepCount, Protocol):
    """The group of learner ranks; of size 1 it is the identity."""

    def meet(self, *, is_stopping: bool) -> bool:
        """Wait for every rank and agree on `env_steps`; True if any rank is stopping: all leave, or none."""
        ...


class Exchange(Protocol):
    """The collectives of ranks that learn together, as the algorithms use them; for one rank the identity.

    Every rank must make the same calls in the same order. Raises `PeerLostError` when a rank is lost.
    """

    @property
    def num_ranks(self) -> int:
        """The number R of ranks on all hosts."""
        ...

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over the ranks."""
        ...

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vectors [n] of all ranks as [R, n], the same bits on every rank."""
        ...


class StepGate(Protocol):
    """The learner's side of the handshake with the collectors of its host."""

    @property
    def env_steps(self) -> int:
        """Transitions collected so far on this host."""
        ...

    def wait_for(self, env_steps: int) -> None:
        """Block until every collector has done its share of that many, or the run is stopping."""
        ...

    def grant(self, env_steps: int) -> None:
        """Let every collector step up to its share of that many."""
        ...


class RolloutGate(Protocol):
    """The learner's side of the handshake, where collectors hand over whole rollouts."""

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Block until it is, looking whenever a collector has done something, or until the run is stopping."""
        ...

    def grant_each(self, count: int) -> None:
        """Let every collector begin rollouts up to that many, counted from the start of the process."""
        ...

    def wake_collectors(self) -> None:
        """Wake the collectors: there may be room in the rings."""
        ...
