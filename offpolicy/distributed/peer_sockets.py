"""Unix sockets between the learner ranks of one host: in every exchange each rank sends one message to all others."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from torch.distributed import Store  # type: ignore[attr-defined]  # exported without saying so

from offpolicy import fault
from offpolicy.children import call_within
from offpolicy.distributed.deadline import Deadline
from offpolicy.machine import LONGEST_WAIT_S

GREETING = struct.Struct("<q")  # the rank that connects
FD = struct.Struct("i")  # a descriptor beside a message
CREDENTIALS = struct.Struct("iII")  # pid, uid and gid of a socket's other end
STORE_GRACE_S = 0.5  # beyond a call's own deadline, so that its own error is the one that is raised
LEFT_S = 1.0  # time for the messages on their way once a peer has left that had sent its own
RETRY_MS = 10  # pause before another try to connect to a rank whose queue of connections is full


class Arrival(NamedTuple):
    """What a peer sent in one exchange."""

    message: bytes
    fds: Sequence[int]  # empty, too, if this process may open no more files

    def close_fds(self) -> None:
        """Closes the descriptors that came with the message."""
        for fd in self.fds:
            os.close(fd)


class PeerSockets:
    """One connected socket to each other rank."""

    def __init__(self, peers: dict[int, socket.socket], timeout_s: float) -> None:
        self._peers, self._timeout_s = peers, timeout_s
        for peer in peers.values():
            peer.settimeout(min(timeout_s, LONGEST_WAIT_S))

    def send(self, message: bytes, fds: Sequence[int]) -> None:
        """Sends a message, with descriptors, to every peer: also to the others of one that is gone. Raises OSError.

        It does not block: a peer has at most two messages unread.
        """
        fault.hit("rank.send")
        failures: list[OSError] = []
        for peer in self._peers.values():
            try:
                socket.send_fds(peer, [message], fds)
            except OSError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def receive(self, size: int) -> dict[int, Arrival]:
        """Waits for one message of `size` bytes of every peer, by rank; the caller closes the descriptors.

        Raises TimeoutError, and RuntimeError as soon as any peer that has sent none closes its socket. One that closes
        it after its message has failed, or has made its last exchange: what is missing then must come at once.
        """
        deadline, poll = Deadline(self._timeout_s), select.poll()
        rank_of = {peer.fileno(): rank for rank, peer in self._peers.items()}
        for fd in rank_of:
            poll.register(fd, select.POLLIN)
        arrived: dict[int, Arrival] = {}
        try:
            while len(arrived) < len(rank_of):
                for fd, _ in deadline.wait(poll):
                    rank = rank_of[fd]
                    if rank in arrived:
                        poll.unregister(fd)
                        deadline.hasten(LEFT_S)
                        continue
                    poll.modify(fd, 0)  # its end is still reported, the next message of one that is ahead is not
                    arrived[rank] = _take(self._peers[rank], size)
                    if not arrived[rank].message:
                        raise RuntimeError(f"rank {rank} has closed its socket")
        except BaseException:
            for arrival in arrived.values():
                arrival.close_fds()
            raise
        return arrived

    def close(self) -> None:
        """Closes the sockets: a peer that waits for this rank loses it."""
        for peer in self._peers.values():
            peer.close()


def _take(peer: socket.socket, size: int) -> Arrival:
    """Returns the message that has come; an empty one if the peer is gone."""
    try:
        # `socket.recv_fds` of Python 3.11 drops the flags.
        message, extras, _, _ = peer.recvmsg(size, socket.CMSG_LEN(FD.size), socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # it has left messages of ours unread
        return Arrival(b"", ())
    fds = [FD.unpack(data)[0] for _, kind, data in extras if kind == socket.SCM_RIGHTS and len(data) == FD.size]
    return Arrival(message, fds)


def connect(store: Store, rank: int, num_ranks: int, timeout_s: float) -> PeerSockets:
    """Connects this rank to all others, whose names are in the store. Raises OSError or RuntimeError."""
    fault.hit("rank.join")
    deadline = Deadline(timeout_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ExitStack() as on_failure:
        listener.bind("")  # a free name that only this network namespace knows
        listener.listen(socket.SOMAXCONN)
        store.set(f"memory/{rank}", listener.getsockname())
        peers: dict[int, socket.socket] = {}
        for lower in range(rank):
            ask = partial(_name_of, store, lower, deadline.left_s())
            name = call_within(deadline.left_s() + STORE_GRACE_S, ask)
            peers[lower] = on_failure.enter_context(_call(name, deadline))
            peers[lower].send(GREETING.pack(rank))
        for higher, peer in _answer(listener, range(rank + 1, num_ranks), deadline):
            peers[higher] = on_failure.enter_context(peer)
        on_failure.pop_all()
    return PeerSockets(dict(sorted(peers.items())), timeout_s)


def _name_of(store: Store, rank: int, timeout_s: float) -> bytes:
    """Returns the name of a rank's socket as soon as it is in the store. Raises RuntimeError."""
    store.wait([f"memory/{rank}"], timedelta(seconds=timeout_s))
    return store.get(f"memory/{rank}")


def _call(name: bytes, deadline: Deadline) -> socket.socket:
    """Returns a socket that is connected to that name. Raises RuntimeError if another user's process is there."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        peer.settimeout(deadline.left_s())
        while True:
            try:
                peer.connect(name)
                break
            except BlockingIOError:  # its queue is full: with a timeout, Python's socket does not wait for that
                select.poll().poll(min(RETRY_MS, 1000.0 * deadline.left_s()))
        if not is_ours(peer):
            raise RuntimeError(f"the socket {name!r} is another user's")
    except BaseException:
        peer.close()
        raise
    return peer


def _answer(listener: socket.socket, ranks: range, deadline: Deadline) -> Iterator[tuple[int, socket.socket]]:
    """Yields the connections of these ranks as they greet; others are closed, and none is waited for alone."""
    poll, missing = select.poll(), set(ranks)
    poll.register(listener, select.POLLIN)
    guests: dict[int, socket.socket] = {}
    try:
        while missing:
            for fd, _ in deadline.wait(poll):
                if fd == listener.fileno():
                    guest, _ = listener.accept()
                    if is_ours(guest):
                        guests[guest.fileno()] = guest
                        poll.register(guest, select.POLLIN)
                    else:
                        guest.close()
                    continue
                poll.unregister(fd)
                guest = guests.pop(fd)
                greeting = _take(guest, GREETING.size).message
                rank = GREETING.unpack(greeting)[0] if len(greeting) == GREETING.size else None
                if rank in missing:
                    missing.remove(rank)
                    yield rank, guest
                else:
                    guest.close()
    finally:
        for guest in guests.values():
            guest.close()


def is_ours(peer: socket.socket) -> bool:
    """True if the process at the other end runs as this user: any user of the host may connect to a socket's name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, uid, _ = CREDENTIALS.unpack(credentials)
    return bool(uid == os.geteuid())
