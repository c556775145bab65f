"""The learner ranks of one host as a group over shared memory.

Each rank writes into a block of its own, which all others read, and tells them so by a message. A rank that waits
sleeps in the kernel. gloo's thread polls for as long as a message waits for its receiver: the rank that comes first
takes the core of the one that it waits for (ADR 39).
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # exported without saying so

from offpolicy import fault
from offpolicy.distributed.rank_group import PeerWatch
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.protocols import DeviceSync

ALIGNMENT = 4096  # bytes: halves of a block begin on a page
MESSAGE = struct.Struct("<q")  # the number of the exchange; in the first one of a connection, the sender's rank
CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of a socket's other end


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
    """The group of one rank, all of whose peers are processes of this user on this host. See `RankGroup`."""

    uses_nccl = False

    def __init__(self, store: Store, rank: int, num_ranks: int, *, timeout_s: float, device_sync: DeviceSync) -> None:
        """Joins the group. `device_sync` waits for the device. Raises `PeerLostError` if one does not come in time."""
        self.rank, self.num_ranks = rank, num_ranks
        self._device_sync = device_sync
        self._watch = PeerWatch(store, rank, num_ranks, timeout_s)
        self._count = 0  # exchanges so far
        self._outboxes: dict[int, Outbox] = {}
        fault.hit("rank.join")
        self._peers = self._watch.run(lambda: connect(store, rank, num_ranks, timeout_s))

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the CPU vectors [n] of all ranks as [R, n], the same bits everywhere; waits for all of them."""
        fault.hit("rank.gather")
        return torch.stack(self._swap(vector))

    def sum_bucket(self, bucket: Tensor) -> None:
        """Replaces the CPU bucket [n], in place, by its sum over the ranks, added in their order."""
        fault.hit("rank.reduce")
        first, *others = self._swap(bucket)
        bucket.copy_(first)
        for part in others:
            bucket.add_(part)

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a CPU tensor, in place, by that of rank 0."""
        tensor.copy_(self._swap(tensor)[0].view_as(tensor))

    def wait_for_device(self) -> None:
        """Returns when the device has done what is queued."""
        self._device_sync.wait()

    def close(self) -> None:
        """Leaves the group: a peer that still waits for this rank loses it."""
        for peer in self._peers.values():
            peer.close()
        self._outboxes.clear()

    def _swap(self, own: Tensor) -> list[Tensor]:
        """Returns the flat tensors of all ranks, by rank, in memory that the exchange after the next may overwrite."""
        return self._watch.run(lambda: self._write_and_wait(own))

    def _write_and_wait(self, own: Tensor) -> list[Tensor]:
        self._count += 1
        new_fds = self._make_room(own.nbytes)
        self._outboxes[self.rank].part(self._count, own).copy_(own.reshape(-1))
        fault.hit("rank.send")
        message = MESSAGE.pack(self._count)
        for peer in self._peers.values():
            socket.send_fds(peer, [message], new_fds)
        for fd in new_fds:
            os.close(fd)  # the mapping has its own
        for rank in self._peers:
            self._receive(rank)
        return [self._outboxes[rank].part(self._count, own) for rank in range(self.num_ranks)]

    def _make_room(self, nbytes: int) -> list[int]:
        """Returns the descriptor of a new block if the one so far is too small, else nothing.

        Peers keep the old block mapped until they read this exchange's message, with which the new one comes.
        """
        if self.rank in self._outboxes and nbytes <= self._outboxes[self.rank].capacity:
            return []
        capacity = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        block = SharedBlock.create(f"rank-{self.rank}", 2 * capacity)
        self._outboxes[self.rank] = Outbox(block)
        return [block.fd]

    def _receive(self, rank: int) -> None:
        """Waits for a peer's message of this exchange."""
        message, fds, _, _ = socket.recv_fds(self._peers[rank], MESSAGE.size, 1)
        for fd in fds:
            self._outboxes[rank] = Outbox(SharedBlock.attach(fd))
            os.close(fd)
        if not message:
            raise RuntimeError(f"rank {rank} has closed its socket")
        (number,) = MESSAGE.unpack(message)
        if number != self._count:
            raise RuntimeError(f"rank {rank} is at exchange {number}, this rank at {self._count}")


def connect(store: Store, rank: int, num_ranks: int, timeout_s: float) -> dict[int, socket.socket]:
    """Returns a socket to each other rank: each connects to those below it. Raises OSError or RuntimeError."""
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(timeout_s)
        listener.bind("")  # a free name that only this network namespace knows
        listener.listen(num_ranks)
        store.set(f"memory/{rank}", listener.getsockname())
        for lower in range(rank):
            name = store.get(f"memory/{lower}")
            peers[lower] = peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.settimeout(timeout_s)
            peer.connect(name)
            peer.send(MESSAGE.pack(rank))
        while len(peers) < num_ranks - 1:
            peer, _ = listener.accept()
            peer.settimeout(timeout_s)
            if is_ours(peer):
                (higher,) = MESSAGE.unpack(peer.recv(MESSAGE.size))
                peers[higher] = peer
            else:
                peer.close()
    return dict(sorted(peers.items()))


def is_ours(peer: socket.socket) -> bool:
    """True if the process at the other end runs as this user: any user of the host may connect to a socket's name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, uid, _ = CREDENTIALS.unpack(credentials)
    return bool(uid == os.geteuid())
