"""The group over shared memory, with threads for ranks: what it computes, who is lost, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from offpolicy.distributed import rank_group
from offpolicy.distributed.memory_group import MemoryGroup
from offpolicy.errors import DesyncError, PeerLostError
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


@pytest.mark.promise("no-hang")
def test_a_rank_that_leaves_is_lost_and_named(quick_check: None) -> None:
    with joined(2) as groups:
        groups[1].close()
        with pytest.raises(PeerLostError, match=r"^lost rank 1: it died, froze for 20 s \(runner\.timeout_s\)"):
            groups[0].gather(torch.zeros(1))


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (lambda group: group.sum_bucket(torch.zeros(1)), "rank 1 is at exchange 1, sum of 1 float32"),
        (lambda group: group.gather(torch.zeros(1).int()), "rank 1 is at exchange 1, gather of 1 int32"),
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
