"""The seams of the learner loop: the methods that it calls on its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from offpolicy.types import Account, RolloutTotals

Batch_co = TypeVar("Batch_co", covariant=True)  # what one iteration consumes: `Batches` of replayed rows, or `Rollouts`


class BatchSource(Protocol[Batch_co]):
    """Where batches come from, as the loop sees it: it calls these in this order, once per iteration."""

    def wait_ready(self) -> None:
        """Blocks until the collector has produced what this iteration needs, or the run is stopping."""
        ...

    def is_exhausted(self) -> bool:
        """True if the budget is spent and every update it calls for is done."""
        ...

    def wait_batch(self) -> None:
        """Blocks until the prefetched batch is packed and on the device; returns at once if nothing is prefetched."""
        ...

    def sample(self) -> Tensor:
        """Gathers this iteration's rows on this thread: updates [U, B, W], or time steps [T + 1, B, W].

        A prefetched batch is gathered already.
        """
        ...

    def to_device(self, rows: Tensor) -> Batch_co:
        """Copies the rows to the learner's device, and only that."""
        ...

    def release(self) -> None:
        """Grants the collectors their next steps."""
        ...


class StatefulBatchSource(BatchSource[Batch_co], Protocol[Batch_co]):
    """A batch source as the learner process sees it: with counters for the report and state for the checkpoint."""

    kind: str  # direct, prefetch or resident, as `replay.source` names them; rollouts
    first_unseen_row: list[int]  # by ring: the first row whose observation the normaliser has not seen

    @property
    def has_batch_wait(self) -> bool:
        """False if `wait_batch` never does anything."""
        ...

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

    def packer_account(self) -> Account:
        """Returns the account of the thread that packs batches ahead; empty where there is none."""
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


class StepCount(Protocol):
    """The number of env steps, by which a run counts its time."""

    @property
    def env_steps(self) -> int:
        """Transitions of all collectors, as every rank knows them: the number that decisions go by."""
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
        """Blocks until the collectors have done that many together, or the run is stopping."""
        ...

    def grant(self, env_steps: int) -> None:
        """Lets the collectors step until they have done that many together."""
        ...
