"""Sockets between ranks: one message of each peer per exchange, one deadline per call, descriptors that are closed."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import pytest

from offpolicy.distributed import peer_sockets
from offpolicy.distributed.deadline import Deadline
from offpolicy.distributed.peer_sockets import PeerSockets, is_ours
from offpolicy.timing.clock import Stopwatch


@pytest.fixture
def pair() -> Iterator[tuple[PeerSockets, socket.socket]]:
    """The sockets of rank 0 of two, and the other end of the only one."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        yield PeerSockets({1: own}, 0.3), other


def test_a_descriptor_travels_with_a_message_and_is_not_inherited(pair: tuple[PeerSockets, socket.socket]) -> None:
    sockets, other = pair
    read_end, write_end = os.pipe()
    socket.send_fds(other, [b"12345678"], [write_end])
    os.close(write_end)
    arrival = sockets.receive(8)[1]
    assert arrival.message == b"12345678"
    assert not os.get_inheritable(arrival.fds[0])
    arrival.close_fds()
    os.set_blocking(read_end, False)
    assert os.read(read_end, 1) == b""  # nobody has its other end any more
    os.close(read_end)


def three(ends: ExitStack, timeout_s: float) -> tuple[PeerSockets, socket.socket, socket.socket]:
    """The sockets of rank 0 of three, and the other ends."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    (own_1, end_1), (own_2, end_2) = [tuple(ends.enter_context(end) for end in pair) for pair in pairs]
    return PeerSockets({1: own_1, 2: own_2}, timeout_s), end_1, end_2


def test_one_message_is_taken_although_a_peer_is_an_exchange_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sockets, "LEFT_S", 0.0)  # it has not left
    with ExitStack() as ends:
        sockets, ahead, late = three(ends, 5.0)
        for message in (b"1", b"2"):
            ahead.send(message)
        threading.Timer(0.1, lambda: late.send(b"1")).start()
        assert {rank: arrival.message for rank, arrival in sockets.receive(8).items()} == {1: b"1", 2: b"1"}
        late.send(b"2")
        assert {rank: arrival.message for rank, arrival in sockets.receive(8).items()} == {1: b"2", 2: b"2"}


def test_a_peer_that_leaves_after_its_message_ends_the_wait_for_another_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sockets, "LEFT_S", 0.2)
    with ExitStack() as ends:
        sockets, leaving, silent = three(ends, 60.0)
        leaving.send(b"1")
        leaving.close()
        watch = Stopwatch()
        with pytest.raises(TimeoutError, match="^timed out$"):
            sockets.receive(8)
        assert 0.2 <= watch.elapsed_s() < 10.0
        silent.send(b"1")  # it was there


def test_a_peer_that_leaves_after_the_last_exchange_costs_nobody_what_is_on_its_way() -> None:
    with ExitStack() as ends:
        sockets, leaving, late = three(ends, 60.0)
        leaving.send(b"1")
        leaving.close()
        threading.Timer(0.1, lambda: late.send(b"2")).start()
        assert {rank: arrival.message for rank, arrival in sockets.receive(8).items()} == {1: b"1", 2: b"2"}


def test_a_limit_longer_than_the_kernel_can_wait_is_accepted() -> None:
    with ExitStack() as ends:
        sockets, first, second = three(ends, 3e9)
        for end in (first, second):
            end.send(b"1")
        assert len(sockets.receive(8)) == 2


def test_a_peer_that_closes_is_noticed_also_where_it_left_messages_unread(
    pair: tuple[PeerSockets, socket.socket],
) -> None:
    sockets, other = pair
    sockets.send(b"1", [])
    other.close()
    with pytest.raises(RuntimeError, match="^rank 1 has closed its socket$"):
        sockets.receive(8)
    with pytest.raises(OSError, match="Broken pipe"):
        sockets.send(b"2", [])


def test_a_silent_peer_ends_the_wait_at_the_deadline(pair: tuple[PeerSockets, socket.socket]) -> None:
    with pytest.raises(TimeoutError, match="^timed out$"):
        pair[0].receive(8)


def test_descriptors_are_closed_when_another_peer_is_gone() -> None:
    (own, other), (gone, end) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    read_end, write_end = os.pipe()
    with own, other, gone:
        socket.send_fds(other, [b"1"], [write_end])
        os.close(write_end)
        end.close()
        with pytest.raises(RuntimeError, match="^rank 2 has closed its socket$"):
            PeerSockets({1: own, 2: gone}, 5.0).receive(8)
    os.set_blocking(read_end, False)  # open at the other end it would wait for ever
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_a_full_queue_of_connections_is_waited_for() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ExitStack() as others:
        listener.bind("")
        listener.listen(0)
        first = others.enter_context(peer_sockets._call(listener.getsockname(), Deadline(5.0)))
        threading.Timer(0.1, lambda: others.enter_context(listener.accept()[0])).start()
        with peer_sockets._call(listener.getsockname(), Deadline(5.0)) as second:
            assert is_ours(first)
            assert is_ours(second)
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                others.enter_context(peer_sockets._call(listener.getsockname(), Deadline(0.2)))
        with pytest.raises(TimeoutError, match="^timed out$"):
            peer_sockets._call(listener.getsockname(), Deadline(0.2))


def test_a_socket_says_whose_process_is_at_its_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with peer, other:
        assert is_ours(peer)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not is_ours(peer)


def test_a_user_whose_number_is_beyond_a_signed_int_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Peer:
        def getsockopt(self, *_: int) -> bytes:
            return struct.pack("iII", 1, 3_000_000_000, 0)

    monkeypatch.setattr(os, "geteuid", lambda: 3_000_000_000)
    assert is_ours(cast("socket.socket", Peer()))
