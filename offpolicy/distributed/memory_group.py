"""The learner ranks of one host as a group over shared memory.

Each rank writes into a block of its own, which all others read, and sends each of them a message. A rank that waits
sleeps in the kernel. gloo's thread polls for as long as a message waits for its receiver: the rank that comes first
takes the core of the one that it waits for (ADR 9).
"""

from __future__ import annotations

import errno
import os
import resource
import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # exported without saying so

from offpolicy import fault
from offpolicy.distributed.peer_sockets import Arrival, connect
from offpolicy.distributed.rank_group import PeerWatch
from offpolicy.errors import DesyncError
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.protocols import DeviceSync

T = TypeVar("T")
ALIGNMENT = 4096  # bytes: halves of a block begin on a page
MESSAGE = struct.Struct("<qq48s")  # the number of the exchange, the capacity of the sender's block, what is exchanged


class Outbox:
    """The block of one rank, as this process sees it: two halves, written in turns.

    A rank writes a half again two exchanges later. By then every rank has sent its message of the exchange between
    them, so that none still reads what was there.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._bytes = torch.frombuffer(block.buffer, dtype=torch.uint8)
        self.capacity: Final = block.size // 2

    def part(self, number: int, like: Tensor) -> Tensor:
        """Returns the flat tensor of exchange `number`, of the dtype and the number of elements of `like`."""
        start = (number % 2) * self.capacity
        return self._bytes[start : start + like.nbytes].view(like.dtype)


class MemoryGroup:
    """The group of one rank, all of whose peers are processes of this user on this host. See `RankGroup`.

    Every method that exchanges raises OSError if this process gets no memory or descriptor for it, and `DesyncError`
    if the ranks do not exchange the same thing.
    """

    uses_nccl = False

    def __init__(self, store: Store, rank: int, num_ranks: int, *, timeout_s: float, device_sync: DeviceSync) -> None:
        """Joins the group. `device_sync` waits for the device. Raises `PeerLostError` if one does not come in time."""
        self.rank, self.num_ranks = rank, num_ranks
        self._device_sync = device_sync
        self._watch = PeerWatch(store, rank, num_ranks, timeout_s)
        self._count = 0  # exchanges so far
        self._outboxes: dict[int, Outbox] = {}
        self._sockets = self._watch.run(lambda: connect(store, rank, num_ranks, timeout_s))

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the CPU vectors [n] of all ranks as [R, n], the same bits everywhere; waits for all of them."""
        fault.hit("rank.gather")
        return torch.stack(self._swap("gather", vector))

    def sum_bucket(self, bucket: Tensor) -> None:
        """Replaces the CPU bucket [n], in place, by its sum over the ranks, added in their order."""
        fault.hit("rank.reduce")
        parts = self._swap("sum", bucket)
        if len(parts) > 1:
            torch.add(parts[0], parts[1], out=bucket)
        for part in parts[2:]:
            bucket.add_(part)

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a CPU tensor, in place, by that of rank 0."""
        tensor.copy_(self._swap("broadcast", tensor)[0].view_as(tensor))

    def wait_for_device(self) -> None:
        """Returns when the device has done what is queued."""
        self._device_sync.wait()

    def close(self) -> None:
        """Leaves the group: a peer that still waits for this rank loses it."""
        self._sockets.close()
        self._outboxes.clear()

    def _swap(self, kind: str, own: Tensor) -> list[Tensor]:
        """Returns the flat tensors of all ranks, by rank, in memory that the exchange after the next may overwrite."""
        self._count += 1
        new_fds = self._make_room(own.nbytes)
        try:
            outbox = self._outboxes[self.rank]
            outbox.part(self._count, own).copy_(own.reshape(-1))
            what = f"{kind} of {own.numel()} {str(own.dtype).removeprefix('torch.')}"
            self._exchange(
                lambda: self._sockets.send(MESSAGE.pack(self._count, outbox.capacity, what.encode()), new_fds)
            )
        finally:
            for fd in new_fds:
                os.close(fd)  # the mapping has its own
        arrived = self._exchange(lambda: self._sockets.receive(MESSAGE.size))
        try:
            self._read(arrived, what)
        finally:
            for arrival in arrived.values():
                arrival.close_fds()
        return [self._outboxes[rank].part(self._count, own) for rank in range(self.num_ranks)]

    def _exchange(self, step: Callable[[], T]) -> T:
        """Returns what the step returns. If it fails, this rank leaves before it asks which ranks are lost.

        So the others, which may wait for the same rank with more time left, fail too, and mark themselves alive.
        """

        def attempt() -> T:
            try:
                return step()
            except (RuntimeError, OSError):
                self._sockets.close()
                raise

        return self._watch.run(attempt)

    def _make_room(self, nbytes: int) -> list[int]:
        """Returns the descriptor of a new block if the one so far is too small, else nothing. Raises OSError.

        Peers keep the old block mapped until they read this exchange's message, with which the new one comes.
        """
        so_far = self._outboxes[self.rank].capacity if self._outboxes else 0
        if self._outboxes and nbytes <= so_far:
            return []
        capacity = -(-max(nbytes, 2 * so_far, 1) // ALIGNMENT) * ALIGNMENT
        try:
            block = SharedBlock.create(f"rank-{self.rank}", 2 * capacity)
        except OSError as error:
            raise OSError(error.errno, f"no block of {2 * capacity} bytes to exchange in: {error.strerror}") from error
        self._outboxes[self.rank] = Outbox(block)
        return [block.fd]

    def _read(self, arrived: Mapping[int, Arrival], what: str) -> None:
        """Maps the blocks that are new. Raises `DesyncError` if a peer exchanges something else."""
        for rank, arrival in arrived.items():
            number, capacity, theirs = MESSAGE.unpack(arrival.message)
            theirs = theirs.rstrip(b"\0").decode()
            if (number, theirs) != (self._count, what):
                raise DesyncError(f"rank {rank} is at exchange {number}, {theirs}; this rank at {self._count}, {what}")
            if arrival.fds:
                self._outboxes[rank] = Outbox(SharedBlock.attach(arrival.fds[0]))
            if rank not in self._outboxes or self._outboxes[rank].capacity != capacity:
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise OSError(errno.EMFILE, f"no descriptor for the block of rank {rank}: ulimit -n allows {limit}")
