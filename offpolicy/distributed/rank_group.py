"""The learner ranks as a group: what its collectives promise, and who is named when one fails."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # exported without saying so

from offpolicy.children import call_within
from offpolicy.errors import PeerLostError
from offpolicy.timing.clock import Stopwatch

T = TypeVar("T")
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS)  # of this process or host
PEER_CHECK_S = 2.0  # time of the survivors of a failed collective to mark themselves alive in the store


class RankGroup(Protocol):
    """One rank's place among R. Every method but `wait_for_device` is a collective: all ranks call it alike.

    A rank that does not come ends a collective with a `PeerLostError` that names it, one that exchanges something else
    with a `DesyncError`, and what this process may not have, as more files, with OSError.
    """

    rank: int  # over all hosts
    num_ranks: int  # R, over all hosts
    uses_nccl: bool  # True if `sum_bucket` and `broadcast` only queue work on the device

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the CPU vectors [n] of all ranks as [R, n], the same bits everywhere; waits for all of them."""
        ...

    def sum_bucket(self, bucket: Tensor) -> None:
        """Replaces the bucket, in place, by its sum over the ranks, the same bits everywhere."""
        ...

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a tensor of the bucket's device, in place, by that of rank 0."""
        ...

    def wait_for_device(self) -> None:
        """Returns when the device has done what is queued. Raises `PeerLostError` if a rank is lost in a sum."""
        ...

    def close(self) -> None:
        """Leaves the group."""
        ...


class PeerWatch:
    """Runs collectives, and names the ranks that are lost when one fails: they do not mark themselves in the store."""

    def __init__(self, store: Store, rank: int, num_ranks: int, timeout_s: float) -> None:
        self._store, self._rank, self._num_ranks, self._timeout_s = store, rank, num_ranks, timeout_s

    def run(self, collective: Callable[[], T]) -> T:
        """Returns what the collective returns. Raises `PeerLostError` if it fails.

        Raises OSError if this process may have no more files or memory: then no peer is to blame.
        """
        try:
            return collective()
        except (RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise
            raise PeerLostError(self._describe_lost_peers(error)) from error

    def _describe_lost_peers(self, error: Exception) -> str:
        """Returns the cause of a failed collective with the lost ranks, even if the store does not answer."""
        text = str(error) or type(error).__name__
        what = text.splitlines()[0].split(". ")[0]  # gloo adds general advice
        try:
            who = call_within(PEER_CHECK_S + 0.5, self._missing)
        except (RuntimeError, OSError):  # it is frozen, or went down with its process
            who = "rank 0, or whatever else keeps the ranks' store"
        how = f"it died, froze for {self._timeout_s:g} s (runner.timeout_s) or cannot be reached"
        return f"lost {who}: {how} ({what})"

    def _missing(self) -> str:
        """Returns the ranks that do not mark themselves alive in the store, as all do whose collective failed.

        Raises RuntimeError if the store is gone, or goes while rank 0, which keeps it on one host, is missing. If it
        goes while only others are, rank 0 has noticed the loss earlier, and left: they are the lost ones.
        """
        self._store.set(f"alive/{self._rank}", "1")
        watch, missing = Stopwatch(), self._silent()
        while missing and watch.elapsed_s() < PEER_CHECK_S:
            select.select([], [], [], 0.05)
            try:
                missing = self._silent()
            except RuntimeError:
                if 0 in missing:
                    raise
                break
        return ", ".join(f"rank {rank}" for rank in missing) or "a rank that has left since"

    def _silent(self) -> list[int]:
        return [rank for rank in range(self._num_ranks) if not self._store.check([f"alive/{rank}"])]
