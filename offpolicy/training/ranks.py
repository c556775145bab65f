"""The learner ranks that train together: one alone, or the group of all hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from offpolicy.algos.optim import SoloExchange
from offpolicy.distributed.arrivals import ArrivalLog
from offpolicy.distributed.clock_offsets import ClockOffsets
from offpolicy.distributed.gradient_exchange import GroupExchange
from offpolicy.distributed.memory_group import MemoryGroup
from offpolicy.distributed.process_group import ProcessGroup, bind_interface, open_store
from offpolicy.distributed.rank_group import RankGroup
from offpolicy.distributed.world import Ranks, RankWorld, SoloWorld
from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import HostWord
from offpolicy.protocols import Exchange
from offpolicy.timing.device_events import CudaEvent
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.training.rank_context import RankContext
from offpolicy.training.run_memory import peer_timeout_s
from offpolicy.types import Float64


class Collectives:
    """Collectives outside of an update; the wait for the other ranks is charged to the rank barrier."""

    def __init__(self, world: Ranks, ledger: Ledger) -> None:
        self.world, self._ledger = world, ledger

    @property
    def env_steps(self) -> int:
        """Transitions collected so far on all hosts, as all ranks know it."""
        return self.world.env_steps

    @property
    def is_saving(self) -> bool:
        """True in an iteration for which a checkpoint was asked, by the clock or a user."""
        return self.world.is_saving

    def gather(self, values: Sequence[float] | Float64) -> Float64:
        """Returns the values [n] of all ranks as [R, n]."""
        with self._ledger.phase(LearnerPhase.RANK_BARRIER):
            return self.world.gather(values)

    def any(self, flag: bool) -> bool:
        """True if any rank raises the flag: all ranks decide alike."""
        return bool(self.gather((flag,)).any())

    def total(self, value: float) -> float:
        """Returns the sum of a number over all ranks."""
        return float(self.gather((value,)).sum())

    def agree(self, *, is_stopping: bool) -> bool:
        """True if any rank is stopping; every rank agrees on the env steps again."""
        with self._ledger.phase(LearnerPhase.RANK_BARRIER):
            return self.world.agree(is_stopping=is_stopping)

    def recount(self) -> None:
        """Agrees on the env steps, while all collectors stand still."""
        with self._ledger.phase(LearnerPhase.RANK_BARRIER):
            self.world.recount()


@dataclass(frozen=True, slots=True)
class LearnerRanks:
    """The ranks that train together, as one of them uses them."""

    world: Ranks  # the agreement once per iteration
    collectives: Collectives  # agreements within an iteration
    exchange: Exchange  # within an update
    broadcast: Callable[[list[Tensor]], None]  # replaces tensors in place by those of rank 0
    backend: str  # '' for one rank


def single_rank(rank: RankContext) -> LearnerRanks:
    """Returns a world of one rank: every collective is the identity."""
    world = SoloWorld(rank.gate, new_requests(rank, HostWord.REPORT_REQUEST), new_requests(rank, HostWord.SAVE_REQUEST))
    return LearnerRanks(world, Collectives(world, rank.ledger), SoloExchange(), lambda tensors: None, "")


@contextmanager
def process_group(rank: RankContext) -> Iterator[LearnerRanks]:
    """Joins the ranks of all hosts, and leaves them at the end. Raises `PeerLostError` if one does not come."""
    runner, host = rank.cfg.runner, rank.job.host
    if rank.num_ranks == 1 and runner.backend != "nccl":
        yield single_rank(rank)
        return
    bind_interface(runner.interface)
    backend = pick_backend(rank)
    group = join_group(rank, backend)
    arrivals = ArrivalLog(rank.rank, rank.ledger, ClockOffsets(rank.num_ranks, runner.world_size))
    new_event = partial(CudaEvent, rank.device) if rank.cfg.timing.enabled else None
    exchange = GroupExchange(group, rank.device, rank.device_sync, arrivals, new_event)
    # The clock of the first host asks all ranks for a checkpoint; a user may ask on any host.
    save_word = HostWord.SAVE_REQUEST if rank.rank == 0 else HostWord.SAVE_SIGNALS
    reports, saves = (new_requests(rank, word) for word in (HostWord.REPORT_REQUEST, save_word))
    world = RankWorld(group, rank.gate, reports, saves, arrivals, rank.ledger, is_leader=rank.is_leader)
    if not host.is_alone and rank.cfg.timing.enabled:
        world.compare_clocks()
    collectives = Collectives(world, rank.ledger)
    try:
        yield LearnerRanks(world, collectives, exchange, exchange.start_from_rank_0, backend)
    finally:
        group.close()


def join_group(rank: RankContext, backend: str) -> RankGroup:
    """Meets the other ranks in a store and joins them. Raises `PeerLostError` if one does not come."""
    store = open_store(
        rank.job.host,
        rank.rank,
        listen_fd=rank.child.fds.get("store"),
        port=rank.job.store_port,
        timeout_s=rank.cfg.runner.timeout_s,
    )
    timeout_s = peer_timeout_s(rank.cfg, rank.spec)
    group_of = MemoryGroup if backend == "memory" else partial(ProcessGroup, backend=backend)
    return group_of(store, rank.rank, rank.num_ranks, timeout_s=timeout_s, device_sync=rank.device_sync)


def pick_backend(rank: RankContext) -> str:
    """Returns nccl where every rank has its own GPU, else memory on one host and gloo between hosts.

    Raises `ConfigError` for what cannot work.
    """
    asked = rank.cfg.runner.backend
    is_shared = rank.cfg.runner.world_size > 1 and ":" in rank.cfg.device  # cuda:0 for all ranks
    can_nccl = rank.device.type == "cuda" and not is_shared and torch.distributed.is_nccl_available()
    if asked == "nccl" and not can_nccl:
        why = "the ranks share one GPU" if is_shared else f"the ranks train on {rank.device.type}"
        raise ConfigError(f"runner.backend: got nccl, allowed auto, memory or gloo: {why}")
    if asked != "auto":
        return asked
    if can_nccl:
        return "nccl"
    return "memory" if rank.job.host.is_alone else "gloo"


def new_requests(rank: RankContext, word: HostWord) -> Callable[[], bool]:
    """Returns a function that is true once after the supervisor has counted up its word: it asks for something."""
    answered = 0

    def is_new() -> bool:
        nonlocal answered
        requested = rank.control.host.get(word)
        is_requested, answered = requested != answered, requested
        return is_requested

    return is_new
