"""The process group without other processes: a group of one, the store, and who is named when a collective fails."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist

from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.process_group import Arrivals, ProcessGroup, bind_interface, lost_ranks, open_store
from offpolicy.errors import PeerLostError
from offpolicy.processes.control_page import ControlPage
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import LearnerPhase as Phase
from tests.fakes import FakeClock


@pytest.fixture
def solo() -> Iterator[ProcessGroup]:
    ranks = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 0))), 1, 0).ranks
    arrivals = Arrivals(NullLedger(), ranks, 0, is_one_host=True)
    group = ProcessGroup(dist.HashStore(), 0, 1, backend="gloo", timeout_s=20.0, arrivals=arrivals)
    yield group
    group.close()


def test_collectives_of_one_rank_change_nothing(solo: ProcessGroup) -> None:
    tensor = torch.tensor([1.0, 2.0])
    solo.broadcast(tensor)
    solo.sum(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    assert solo.gather(tensor).tolist() == [[1.0, 2.0]]
    solo.check()


def out_of_memory(*args: Any, **kwargs: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.promise("last-words")
def test_what_fails_on_this_rank_alone_is_not_the_loss_of_another(
    solo: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "all_reduce", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        solo.gather(torch.zeros(3))


def test_ranks_of_one_host_find_each_other_through_the_socket_of_the_supervisor() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    first = open_store(HostInfo(), 0, listen_fd=listener.detach(), port=port, timeout_s=20.0)
    second = open_store(HostInfo(), 1, listen_fd=None, port=port, timeout_s=20.0)
    first.set("key", "value")
    assert second.get("key") == b"value"


def test_the_store_of_several_hosts_listens_on_its_own_address_alone() -> None:
    host = HostInfo(num_hosts=2, store_host="127.0.0.1", store_port=0)
    store = open_store(host, 0, listen_fd=None, port=0, timeout_s=20.0)  # kept: it listens until it is collected
    port = store.underlying_store.port
    socket.create_connection(("127.0.0.1", port), 5.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5.0)


def test_starts_of_a_run_do_not_see_each_others_keys() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    first = open_store(HostInfo(launch_id="a"), 0, listen_fd=listener.detach(), port=port, timeout_s=20.0)
    second = open_store(HostInfo(launch_id="b"), 1, listen_fd=None, port=port, timeout_s=20.0)
    first.set("key", "value")
    assert not second.check(["key"])


def test_a_store_that_does_not_exist_is_a_lost_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        PeerLostError, match=rf"^no store at 127\.0\.0\.1:{port} within 0\.3 s .*while trying to connect"
    ):
        open_store(HostInfo(), 1, listen_fd=None, port=port, timeout_s=0.3)


@pytest.mark.parametrize(("name", "gloo", "nccl"), [(None, "lo", "=lo"), ("eth0", "eth0", "=eth0")])
def test_collectives_use_one_interface(monkeypatch: pytest.MonkeyPatch, name: str | None, gloo: str, nccl: str) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "public0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "public0")
    bind_interface(name)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == (gloo, nccl)


class FakeStore:
    """A store that knows which ranks live; it may be down."""

    def __init__(self, alive: set[int], is_down: bool = False) -> None:
        self.keys, self.is_down = {f"alive/{rank}" for rank in alive}, is_down

    def set(self, key: str, value: str) -> None:
        if self.is_down:
            raise RuntimeError("Connection reset")
        self.keys.add(key)

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self.keys


class LeavingStore(FakeStore):
    """A store whose process ends when it has been asked for every rank once."""

    def set(self, key: str, value: str) -> None:
        self.is_down = False
        super().set(key, value)

    def check(self, keys: list[str]) -> bool:
        if self.is_down:
            raise RuntimeError("Connection reset")
        self.is_down = keys == ["alive/2"]  # the last one asked for
        return super().check(keys)


class FrozenStore(FakeStore):
    """A store whose process is frozen: it does not answer."""

    def check(self, keys: list[str]) -> bool:
        threading.Event().wait(10.0)
        return True


@pytest.mark.parametrize(
    ("store", "lost"),
    [
        (FakeStore({2}), "rank 0"),
        (FakeStore(set()), "rank 0, rank 2"),
        (FakeStore({0, 2}), "a rank that has left since"),
        (FakeStore(set(), is_down=True), "rank 0, or whatever else keeps the ranks' store"),
        (LeavingStore({0}), "rank 2"),  # rank 0 has noticed before, and has left
        (LeavingStore(set()), "rank 0, or whatever else keeps the ranks' store"),  # rank 2 had no time to mark itself
        (FrozenStore({0}), "rank 0, or whatever else keeps the ranks' store"),
    ],
)
def test_the_lost_ranks_are_those_that_do_not_mark_themselves_alive(store: Any, lost: str) -> None:
    assert lost_ranks(store, 1, 3, check_s=0.1) == lost


class Ranks:
    """Two ranks of a host in one process: their arrivals, and the clock that they share."""

    def __init__(self, *, is_one_host: bool = True) -> None:
        self.clock, page = FakeClock(1000), ControlPage(memoryview(bytearray(ControlPage.nbytes(2, 0))), 2, 0)
        self.ledgers = [Ledger(Phase, self.clock) for _ in range(2)]
        self.arrivals = [Arrivals(self.ledgers[i], page.ranks, i, is_one_host=is_one_host) for i in range(2)]
        for ledger in self.ledgers:
            ledger.end_warmup()

    def taken_ns(self, rank: int) -> dict[str, int]:
        """The phases of a rank that have taken any time."""
        account = self.ledgers[rank].account()
        assert sum(account.phases_ns.values()) == account.wall_ns
        return {phase: ns for phase, ns in account.phases_ns.items() if ns}


def test_a_rank_waits_until_the_last_one_has_arrived_and_then_exchanges() -> None:
    ranks = Ranks()
    with ranks.ledgers[0].phase(Phase.TRAIN):
        ranks.clock.advance(3)
        with ranks.arrivals[0].collective(lambda: None):
            ranks.clock.advance(40)
            with ranks.arrivals[1].collective(lambda: None):
                ranks.clock.advance(10)
    assert ranks.taken_ns(0) == {"train": 3, "rank_barrier": 40, "param_sync": 10}
    assert ranks.taken_ns(1) == {"other": 43, "param_sync": 10}


def test_a_rank_that_is_ahead_and_waits_at_the_next_collective_does_not_count_for_this_one() -> None:
    ranks = Ranks()
    with ExitStack() as ahead, ranks.arrivals[0].collective(lambda: None):
        ranks.clock.advance(5)
        with ranks.arrivals[1].collective(lambda: None):
            ranks.clock.advance(2)
        ahead.enter_context(ranks.arrivals[1].collective(lambda: None))
        ranks.clock.advance(7)
    assert ranks.taken_ns(0) == {"rank_barrier": 5, "param_sync": 9}


def test_ranks_without_a_common_clock_wait_in_a_barrier() -> None:
    ranks = Ranks(is_one_host=False)
    with ranks.ledgers[0].phase(Phase.RANK_BARRIER), ranks.arrivals[0].collective(lambda: ranks.clock.advance(40)):
        ranks.clock.advance(10)
    assert ranks.taken_ns(0) == {"rank_barrier": 40, "param_sync": 10}
