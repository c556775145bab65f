"""Sockets between ranks: one message of each peer per exchange, one deadline per call, descriptors that are closed."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from offpolicy.distributed import peer_sockets
from offpolicy.distributed.peer_sockets import Deadline, PeerSockets, is_ours


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
    assert os.read(read_end, 1) == b""  # nobody has its other end any more
    os.close(read_end)


def test_one_message_is_taken_although_the_peer_is_an_exchange_ahead(pair: tuple[PeerSockets, socket.socket]) -> None:
    sockets, other = pair
    for message in (b"1", b"2"):
        other.send(message)
    assert [sockets.receive(8)[1].message for _ in range(2)] == [b"1", b"2"]


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
