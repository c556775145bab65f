"""The group over shared memory, with threads for ranks: what it computes, who is lost, and what it leaves."""

from __future__ import annotations

import errno
import gc
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from offpolicy.distributed import peer_sockets, rank_group
from offpolicy.distributed.memory_group import ALIGNMENT, MESSAGE, MemoryGroup
from offpolicy.distributed.peer_sockets import GREETING, Arrival
from offpolicy.errors import DesyncError, PeerLostError
from offpolicy.processes.shared_memory import SharedBlock
from tests.fakes import DeviceSyncSpy

T = TypeVar("T")


def in_turn(num_ranks: int, run: Callable[[int], T]) -> list[T]:
    """What each rank returns, each in a thread of its own."""
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))


@contextmanager
def joined(num_ranks: int, timeout_s: float = 20.0) -> Iterator[Sequence[MemoryGroup]]:
    store, sync = dist.HashStore(), DeviceSyncSpy()
    groups = in_turn(num_ranks, lambda rank: MemoryGroup(store, rank, num_ranks, timeout_s=timeout_s, device_sync=sync))
    try:
        yield groups
    finally:
        for group in groups:
            group.close()


@pytest.fixture
def quick_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The survivors are asked for a moment only."""
    monkeypatch.setattr(rank_group, "PEER_CHECK_S", 0.1)


def test_a_group_of_one_changes_nothing() -> None:
    sync = DeviceSyncSpy()
    group = MemoryGroup(dist.HashStore(), 0, 1, timeout_s=1.0, device_sync=sync)
    tensor = torch.tensor([1.0, 2.0])
    group.broadcast(tensor)
    group.sum_bucket(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    assert group.gather(tensor).tolist() == [[1.0, 2.0]]
    group.wait_for_device()
    assert (sync.count, group.uses_nccl) == (1, False)


def test_what_is_gathered_has_a_row_per_rank_and_is_no_view_of_shared_memory() -> None:
    with joined(3) as groups:

        def run(rank: int) -> torch.Tensor:
            first = groups[rank].gather(torch.tensor([float(rank), -1.0], dtype=torch.float64))
            for _ in range(4):
                groups[rank].gather(torch.full((2,), 9.0, dtype=torch.float64))
            return first

        for matrix in in_turn(3, run):
            assert matrix.dtype == torch.float64
            assert matrix.tolist() == [[0.0, -1.0], [1.0, -1.0], [2.0, -1.0]]


def test_sums_are_made_in_the_order_of_the_ranks_on_every_rank() -> None:
    values = [1e8, -1e8, 1.0]  # 0 in float32, if the last two are added first
    with joined(3) as groups:

        def run(rank: int) -> float:
            bucket = torch.full((5,), values[rank])
            groups[rank].sum_bucket(bucket)
            return bucket[4].item()

        assert in_turn(3, run) == [1.0, 1.0, 1.0]


def test_everyone_gets_what_rank_0_broadcasts_in_its_shape_and_dtype() -> None:
    with joined(2) as groups:

        def run(rank: int) -> list[Any]:
            matrix = torch.arange(6).reshape(2, 3) + 100 * rank
            scalar = torch.tensor(2.5 - rank, dtype=torch.float64)
            flag = torch.tensor(rank == 0)
            for tensor in (matrix, scalar, flag):
                groups[rank].broadcast(tensor)
            return [matrix.tolist(), scalar.item(), flag.item()]

        assert in_turn(2, run) == [[[[0, 1, 2], [3, 4, 5]], 2.5, True]] * 2


def test_only_the_rank_that_does_not_come_is_lost_also_for_one_that_waits_since_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever fails first asks who is alive while the other would still have time to wait."""
    monkeypatch.setattr(rank_group, "PEER_CHECK_S", 0.5)
    monkeypatch.setattr(peer_sockets, "LEFT_S", 0.1)
    with joined(3, timeout_s=1.5) as groups:

        def run(rank: int) -> str:
            if rank == 0:
                return ""
            time.sleep(1.2 * (rank - 1))
            with pytest.raises(PeerLostError) as caught:
                groups[rank].gather(torch.zeros(1))
            return str(caught.value).partition(":")[0]

        assert in_turn(3, run)[1:] == ["lost rank 0", "lost rank 0"]


@pytest.mark.parametrize("shortage", rank_group.SHORTAGES)
def test_what_this_process_may_not_have_is_no_peers_fault(shortage: int) -> None:
    def fail() -> None:
        raise OSError(shortage, os.strerror(shortage))

    with pytest.raises(OSError, match=os.strerror(shortage)) as caught:
        rank_group.PeerWatch(dist.HashStore(), 0, 2, 1.0).run(fail)
    assert not isinstance(caught.value, PeerLostError)


def test_thousands_of_exchanges_of_ranks_out_of_step_mix_nothing() -> None:
    """Sizes change and blocks grow; a rank may be an exchange ahead of another, which still reads."""
    sizes = [random.Random(7).choice((1, 3, ALIGNMENT // 4, 5_000, 20_000)) for _ in range(1_500)]
    sizes[700] = 100_000
    with joined(3) as groups:

        def run(rank: int) -> int:
            chance, wrong = random.Random(rank), 0
            for number, size in enumerate(sizes):
                if chance.random() < 0.02:
                    time.sleep(0.002 * chance.random())
                bucket = torch.full((size,), float(number * (rank + 1)))
                groups[rank].sum_bucket(bucket)
                wrong += int((bucket != 6.0 * number).sum())
            return wrong

        assert in_turn(3, run) == [0, 0, 0]


@pytest.mark.alone
def test_a_rank_that_waits_takes_no_core() -> None:
    """gloo's thread polls while a message waits for its receiver."""
    with joined(2) as groups:

        def run(rank: int) -> float:
            began_s = time.process_time()
            time.sleep(0.5 * rank)
            groups[rank].gather(torch.zeros(1000))
            return time.process_time() - began_s

        assert in_turn(2, run)[0] < 0.1


def test_a_rank_that_leaves_is_lost_and_named(quick_check: None) -> None:
    with joined(2) as groups:
        groups[1].close()
        with pytest.raises(PeerLostError, match=r"^lost rank 1: it died, froze for 20 s \(runner\.timeout_s\)"):
            groups[0].gather(torch.zeros(1))


def test_a_rank_that_does_not_come_is_lost_after_the_timeout(quick_check: None) -> None:
    with joined(2, timeout_s=0.3) as groups:
        started_s = time.monotonic()
        with pytest.raises(PeerLostError, match=r"^lost rank 0: .* \(timed out\)$"):
            groups[1].sum_bucket(torch.zeros(1))
        assert 0.3 <= time.monotonic() - started_s < 5.0


def test_a_rank_that_never_joins_is_lost(quick_check: None) -> None:
    with pytest.raises(PeerLostError, match="^lost rank 1"):
        MemoryGroup(dist.HashStore(), 0, 2, timeout_s=0.2, device_sync=DeviceSyncSpy())


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (lambda group: group.sum_bucket(torch.zeros(1)), "rank 1 is at exchange 1, sum of 1 float32"),
        (lambda group: group.gather(torch.zeros(2)), "rank 1 is at exchange 1, gather of 2 float32"),
        (lambda group: group.gather(torch.zeros(1).int()), "rank 1 is at exchange 1, gather of 1 int32"),
        (lambda group: group._sockets.send(MESSAGE.pack(5, 0, b"gather of 1 float32"), []), "rank 1 is at exchange 5"),
    ],
)
def test_ranks_that_exchange_different_things_do_not_read_each_other(
    theirs: Callable[[MemoryGroup], Any], said: str
) -> None:
    with joined(2) as groups, ThreadPoolExecutor(1) as pool:
        other = pool.submit(theirs, groups[1])
        with pytest.raises(DesyncError, match=f"^{said}.*; this rank at 1, gather of 1 float32$"):
            groups[0].gather(torch.zeros(1))
        groups[0].close()
        assert other.exception() is None or isinstance(other.exception(), DesyncError)


def test_memory_that_is_refused_to_one_rank_is_that_ranks_error(
    monkeypatch: pytest.MonkeyPatch, quick_check: None
) -> None:
    create = SharedBlock.create

    def refuse(name: str, size: int) -> SharedBlock:
        if name == "rank-1" and size > 2 * ALIGNMENT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(name, size)

    monkeypatch.setattr(SharedBlock, "create", refuse)
    with joined(2) as groups:
        in_turn(2, lambda rank: groups[rank].gather(torch.zeros(1)))

        def run(rank: int) -> Exception:
            with pytest.raises((OSError, PeerLostError)) as caught:
                groups[rank].gather(torch.zeros(ALIGNMENT))
            groups[rank].close()  # as a process does that ends
            return caught.value

        first, second = in_turn(2, run)
    assert isinstance(first, PeerLostError)
    assert str(second) == "[Errno 28] no block of 32768 bytes to exchange in: No space left on device"


def test_a_block_that_does_not_arrive_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops a descriptor, without an error, where the process may open no more files."""
    take = peer_sockets._take
    with joined(2) as groups:

        def drop(peer: socket.socket, size: int) -> Arrival:
            arrival = take(peer, size)
            if peer is not groups[0]._sockets._peers[1]:
                return arrival
            arrival.close_fds()
            return arrival._replace(fds=())

        monkeypatch.setattr(peer_sockets, "_take", drop)

        def run(rank: int) -> str:
            try:
                return str(groups[rank].gather(torch.zeros(1)).tolist())
            except OSError as error:
                return str(error)

        first, second = in_turn(2, run)
    assert first.startswith("[Errno 24] no descriptor for the block of rank 1: ulimit -n allows ")
    assert second == "[[0.0], [0.0]]"


def test_a_rank_that_dies_is_noticed_while_another_is_waited_for(quick_check: None) -> None:
    """Rank 0 is in a long evaluation: rank 2 waits for it, and for rank 1, which dies."""
    with joined(3) as groups, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(groups[2].gather, torch.zeros(1))
        time.sleep(0.2)
        groups[1].close()
        with pytest.raises(PeerLostError, match=r"\(rank 1 has closed its socket\)$"):
            waiting.result(timeout=5.0)


def test_a_message_reaches_the_other_ranks_when_one_is_gone(quick_check: None) -> None:
    with joined(3) as groups:
        groups[1].close()
        with pytest.raises(PeerLostError):
            groups[0].gather(torch.zeros(1))
        number, _, what = MESSAGE.unpack(groups[2]._sockets._peers[0].recv(MESSAGE.size))
        assert (number, what.rstrip(b"\0")) == (1, b"gather of 1 float32")


@pytest.mark.alone
def test_all_waits_of_an_exchange_share_one_deadline(quick_check: None) -> None:
    with joined(4, timeout_s=0.5) as groups:
        for late, rank in ((0.2, 1), (0.4, 2)):
            threading.Timer(late, groups[rank]._sockets.send, (MESSAGE.pack(1, 0, b"gather"), [])).start()
        started_s = time.monotonic()
        with pytest.raises(PeerLostError, match=r"\(timed out\)$"):
            groups[0].gather(torch.zeros(1))
        assert time.monotonic() - started_s < 1.0


def test_connections_that_say_nothing_or_nonsense_delay_no_rank() -> None:
    store = dist.HashStore()

    def strangers_then_rank_1() -> MemoryGroup:
        name = store.get("memory/0")
        with ExitStack() as strangers:
            for greeting in (None, b"x", GREETING.pack(0), GREETING.pack(7), b""):
                stranger = strangers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                stranger.connect(name)
                if greeting is not None:
                    stranger.send(greeting)
            return MemoryGroup(store, 1, 2, timeout_s=10.0, device_sync=DeviceSyncSpy())

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(strangers_then_rank_1)
        group = MemoryGroup(store, 0, 2, timeout_s=10.0, device_sync=DeviceSyncSpy())
        assert (
            in_turn(2, lambda rank: (group, other.result())[rank].gather(torch.tensor([rank])).tolist())
            == [[[0], [1]]] * 2
        )
        group.close()
        other.result().close()


def test_a_connection_of_another_user_is_closed_and_the_ranks_still_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    store, answers = dist.HashStore(), iter((False, True))
    monkeypatch.setattr(peer_sockets, "is_ours", lambda peer: next(answers, True))

    def stranger_then_rank_1() -> MemoryGroup:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(store.get("memory/0"))
            stranger.settimeout(10.0)
            assert stranger.recv(8) == b""
        return MemoryGroup(store, 1, 2, timeout_s=10.0, device_sync=DeviceSyncSpy())

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(stranger_then_rank_1)
        group = MemoryGroup(store, 0, 2, timeout_s=10.0, device_sync=DeviceSyncSpy())
        group.close()
        other.result().close()


def use(num_ranks: int) -> None:
    """Joins a group whose blocks grow once, and leaves it."""
    with joined(num_ranks) as groups:
        for size in (10, 100_000):
            vector = torch.zeros(size)
            in_turn(num_ranks, lambda rank, vector=vector: groups[rank].gather(vector))  # type: ignore[misc]


def mapped_blocks() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:offpolicy-rank-")


def test_a_group_that_was_left_keeps_no_descriptor_and_no_block() -> None:
    def kept() -> tuple[int, int]:
        gc.collect()  # sockets of the tests before
        return len(list(Path("/proc/self/fd").iterdir())), mapped_blocks()

    before = kept()
    use(2)
    assert kept() == before


def test_blocks_are_given_up_when_the_group_is_left_and_not_later() -> None:
    """The group itself may live on, in the traceback of what ended the run."""
    with joined(2) as groups:
        before = mapped_blocks()
        in_turn(2, lambda rank: groups[rank].gather(torch.zeros(10)))
        assert mapped_blocks() == before + 4  # its own and the other's, of each rank
        for group in groups:
            group.close()
        gc.collect()
        assert mapped_blocks() == before
