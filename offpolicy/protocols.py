"""The seams that have several implementations: batches, collectives of ranks, and the wait for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from offpolicy.types import Account, Batches, Rollouts, RolloutTotals


class BatchSource(Protocol):
    """Where batches come from. The loop calls six of them, in the order in which they stand."""

    kind: str  # direct, prefetch or resident, as `replay.source` names them; rollouts
    first_unseen_row: list[int]  # by ring: the first row whose observation the normaliser has not seen

    def wait_ready(self) -> None:
        """Blocks until the collector has produced what this iteration needs, or the run is stopping."""

    def is_exhausted(self) -> bool:
        """True if the budget is spent and every update it calls for is done."""

    def wait_batch(self) -> None:
        """Blocks until the prefetched batch is packed and on the device; returns at once if nothing is prefetched."""

    def sample(self) -> Tensor:
        """Gathers this iteration's rows on this thread: updates [U, B, W], or time steps [T + 1, B, W].

        A prefetched batch is gathered already.
        """

    def to_device(self, rows: Tensor) -> Batches | Rollouts:
        """Copies the rows to the learner's device, and only that."""

    def release(self) -> None:
        """Grants the collectors their next steps."""

    @property
    def has_batch_wait(self) -> bool:
        """False if `wait_batch` never does anything."""

    @property
    def samples(self) -> int:
        """Number of rows of the replay handed out; demonstrations are not among them."""

    @property
    def sample_age_sum(self) -> float:
        """Sum over `samples` of the row's age in env steps. May wait for the device."""

    @property
    def rollouts(self) -> RolloutTotals | None:
        """Counts of the rollouts so far; None where the rows come from a replay."""

    def random_state(self) -> dict[str, Any]:
        """Returns JSON data from which a new source hands out the batches that this one would hand out next."""

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Continues from what `random_state` returned, before the first batch."""

    def packer_account(self) -> Account:
        """Returns the account of the thread that packs batches ahead; empty where there is none."""

    def describe(self) -> str:
        """Returns a line for the run's header: which source it is and the bytes it holds."""

    def close(self) -> None:
        """Ends what it started."""


class DeviceSync(Protocol):
    """Waits for the device."""

    def wait(self) -> None:
        """Returns when the work queued so far is done."""


class Exchange(Protocol):
    """The collectives of ranks that learn together, as the algorithms use them; for one rank the identity.

    Every rank must make the same calls in the same order. Raises `PeerLostError` when a rank is lost.
    """

    @property
    def num_ranks(self) -> int:
        """The number R of ranks on all hosts."""

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over the ranks."""

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vectors [n] of all ranks as [R, n], the same bits on every rank."""
