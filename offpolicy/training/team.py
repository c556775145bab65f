"""How a learner rank belongs to the others: alone, or in a process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from offpolicy.algos.optim import SoloExchange
from offpolicy.distributed.gradient_exchange import GroupExchange
from offpolicy.distributed.process_group import RankGroup, bind_interface, open_store
from offpolicy.distributed.world import Ranks, RankWorld, SoloWorld
from offpolicy.errors import ConfigError
from offpolicy.protocols import Exchange
from offpolicy.training.memory_sizes import peer_timeout_s
from offpolicy.training.rank_context import RankContext


@dataclass(frozen=True, slots=True)
class Team:
    """The ranks that learn together, as one of them sees it."""

    world: Ranks
    exchange: Exchange
    start_from_rank_0: Callable[[list[Tensor]], None]
    average_every: int  # iterations between two averagings of the networks; 0: gradients are averaged at every step
    backend: str  # '' for one rank


def alone(seat: RankContext) -> Team:
    """A team of one."""
    return Team(SoloWorld(seat.gate, _report_request(seat)), SoloExchange(), lambda tensors: None, 0, "")


@contextmanager
def joined(seat: RankContext) -> Iterator[Team]:
    """The team of all ranks of all hosts; left at the end. Raises `PeerLostError` when they do not all come."""
    runner, place = seat.cfg.runner, seat.job.place
    if seat.num_ranks == 1 and runner.backend != "nccl":
        yield alone(seat)
        return
    bind_interface(runner.interface)
    if seat.device.type == "cuda":
        torch.cuda.set_device(seat.device)
    store = open_store(
        place, seat.rank, listen_fd=seat.context.fds.get("store"), port=seat.job.store_port, timeout_s=runner.timeout_s
    )
    backend = pick_backend(seat)
    timeout_s = peer_timeout_s(seat.cfg, seat.job.spec)
    group = RankGroup(store, seat.rank, seat.num_ranks, backend=backend, timeout_s=timeout_s, fence=seat.fence)
    exchange = GroupExchange(group, seat.device, seat.fence, seat.ledger)
    world = RankWorld(group, seat.gate, _report_request(seat), is_leader=seat.is_leader)
    average_every = runner.sync_every if runner.sync == "parameters" else 0
    try:
        yield Team(world, exchange, exchange.start_from_rank_0, average_every, backend)
    finally:
        group.close()


def pick_backend(seat: RankContext) -> str:
    """NCCL where every rank has a GPU of its own, else gloo. Raises `ConfigError` for what cannot work."""
    asked = seat.cfg.runner.backend
    is_shared = seat.cfg.runner.world_size > 1 and ":" in seat.cfg.device  # cuda:0 for all ranks
    can_nccl = seat.device.type == "cuda" and not is_shared and torch.distributed.is_nccl_available()
    if asked == "nccl" and not can_nccl:
        why = "the ranks share one GPU" if is_shared else f"the ranks train on {seat.device.type}"
        raise ConfigError(f"runner.backend: got nccl, allowed gloo or auto: {why}")
    return asked if asked != "auto" else "nccl" if can_nccl else "gloo"


def _report_request(seat: RankContext) -> Callable[[], bool]:
    """Whether the supervisor has asked for a report that no meeting has promised yet."""
    promised = 0

    def is_new() -> bool:
        nonlocal promised
        wanted = seat.reports_wanted()
        is_wanted, promised = wanted != promised, wanted
        return is_wanted

    return is_new
