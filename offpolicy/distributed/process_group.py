"""The learner ranks as a group of torch.distributed, what they exchange in an update, and the store where they meet.

Two channels. Over gloo, with CPU tensors, ranks agree. Gradients and networks move over NCCL between GPUs, over gloo
else. A rank that does not come ends a collective of either with a `PeerLostError` that names it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported without saying so

from offpolicy import fault
from offpolicy.distributed.host_info import LOOPBACK, LOOPBACK_HOST, HostInfo
from offpolicy.errors import PeerLostError
from offpolicy.processes.child import call_within
from offpolicy.processes.control_page import RankWord, Words
from offpolicy.timing.clock import Stopwatch
from offpolicy.timing.device_timer import CudaEvent, DeviceTimer, elapsed_ns
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase

JOIN_GRACE_S = 1.0  # beyond torch's own deadline, so that its own error is the one that is raised
OPEN_GRACE_S = 10.0  # torch tries to connect for some seconds more than its deadline
LEAVE_S = 10.0  # NCCL may wait for a rank that is frozen, and the process ends all the same
PEER_CHECK_S = 2.0  # time of the survivors of a failed collective to mark themselves alive in the store
NCCL_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # the watchdog ends a collective and not the process: we raise
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # with a dump it would end it a minute later only
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
ARRIVED = RankWord.ARRIVED_EVEN, RankWord.ARRIVED_ODD  # used in turns


class Arrivals:
    """Times the collectives of one rank: `rank_barrier` until the last rank has arrived, then `param_sync`.

    The ranks of one host share a clock. Each writes the instant of its arrival into shared memory before a collective,
    and reads those of the others after it. The words are used in turns: a rank that is ahead may have arrived at the
    next collective by then, but not at the one after it.
    """

    def __init__(self, ledger: Ledger, ranks: Sequence[Words], index: int, *, is_one_host: bool) -> None:
        """`ranks` are the words of the ranks of this host, of which this one is `index`."""
        self._ledger, self._ranks, self._own, self._is_one_host = ledger, ranks, ranks[index], is_one_host
        self._count = 0

    @contextmanager
    def collective(self, barrier: Callable[[], None]) -> Iterator[None]:
        """Times the collective inside. `barrier` ends when every rank has called it; only several hosts need it."""
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            if not self._is_one_host:
                barrier()
                self._ledger.charge_head(LearnerPhase.RANK_BARRIER, self._ledger.now_ns())
                yield
                return
            self._count += 1
            word = ARRIVED[self._count % 2]
            self._own[word] = self._ledger.switched_ns
            yield
            self._ledger.charge_head(LearnerPhase.RANK_BARRIER, max(words[word] for words in self._ranks))


class ProcessGroup:
    """One rank's place among R. Every method but `check` and `close` is a collective: all ranks call it alike.

    Collectives raise `PeerLostError` if a rank does not come in time. What fails on this rank alone, as for want of
    memory, fails when a collective begins, and is raised as it is.
    """

    def __init__(
        self, store: Store, rank: int, num_ranks: int, *, backend: str, timeout_s: float, arrivals: Arrivals
    ) -> None:
        """Joins the group. Raises `PeerLostError` if a rank does not come in time."""
        self.rank, self.num_ranks, self.backend, self.uses_nccl = rank, num_ranks, backend, backend == "nccl"
        self._store, self._timeout_s, self._arrivals = store, timeout_s, arrivals
        self._device = torch.device("cuda" if self.uses_nccl else "cpu")  # of what is moved
        os.environ.update(NCCL_VARIABLES)
        timeout = timedelta(seconds=timeout_s)

        def join() -> Any:  # Any: torch types the result of new_group as a group, an int or None
            dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
            return dist.new_group(backend="gloo", timeout=timeout) if self.uses_nccl else dist.group.WORLD

        fault.hit("rank.join")
        try:
            self._gloo = call_within(timeout_s + JOIN_GRACE_S, join)
        except (RuntimeError, TimeoutError) as error:
            raise self._lost(error) from error
        self._nccl = dist.distributed_c10d._get_default_group()._get_backend(self._device) if self.uses_nccl else None

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the CPU vectors [n] of all ranks as [R, n], the same bits everywhere; waits for all of them."""
        matrix = vector.new_zeros((self.num_ranks, len(vector)))
        matrix[self.rank] = vector
        fault.hit("rank.gather")
        with self.timed():
            self._finish(partial(dist.all_reduce, matrix, group=self._gloo))  # the rest is zeros: exact
        return matrix

    def timed(self) -> AbstractContextManager[None]:
        """Times the collective inside, if it is one of the host: `rank_barrier`, then `param_sync`."""
        barrier = partial(self._finish, partial(dist.all_reduce, torch.zeros(1), group=self._gloo))
        return self._arrivals.collective(barrier)

    def sum(self, bucket: Tensor) -> None:
        """Replaces the bucket, in place, by its sum over the ranks, the same bits everywhere; NCCL only queues that."""
        fault.hit("rank.reduce")
        self._finish(partial(dist.all_reduce, bucket))

    def check(self) -> None:
        """Raises `PeerLostError` if NCCL has ended a sum; called when the device has done it."""
        if self._nccl is not None and (error := self._nccl.get_error().name) != "SUCCESS":
            raise self._lost(RuntimeError(f"NCCL ended the exchange: {error}"))

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a tensor, in place, by that of rank 0."""
        block = tensor.detach().to(self._device, copy=True)
        self._finish(partial(dist.broadcast, block, src=0))
        with torch.no_grad():
            tensor.copy_(block)

    def close(self) -> None:
        """Destroys the group and its threads: one that is left may abort the process when the interpreter exits."""
        del self._gloo  # torch keeps the threads for as long as the group is referenced
        with contextlib.suppress(TimeoutError):
            call_within(LEAVE_S, dist.destroy_process_group)

    def _finish(self, collective: Callable[..., Any]) -> None:  # Any: torch's work, which is None outside of a group
        """Waits for a collective; NCCL only queues it."""
        try:
            work = collective(async_op=True)
        except dist.DistBackendError as error:  # of NCCL, which has ended an earlier one
            raise self._lost(error) from error
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> PeerLostError:
        """Returns the error of a collective that has failed, with the lost ranks and the cause."""
        what = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]  # gloo adds general advice
        how = f"it died, froze for {self._timeout_s:g} s (runner.timeout_s) or cannot be reached"
        return PeerLostError(f"lost {lost_ranks(self._store, self.rank, self.num_ranks)}: {how} ({what})")


class GroupExchange:
    """Averages and gathers over a group; its time counts as `rank_barrier` and `param_sync`, not as `train`.

    An exchange on the host waits for the device's work first, so that this stays in `train`. One on the device (NCCL)
    is queued behind that work, and a sum of one number in front of it ends when the last rank has arrived; events
    around both say how long they took. Either waits for the device once.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, device_timer: DeviceTimer, ledger: Ledger) -> None:
        self._group, self._device, self._device_timer, self._ledger = group, device, device_timer, ledger
        self.num_ranks = group.num_ranks  # R, over all hosts
        # gloo moves host memory: gradients of a GPU pass through a pinned block.
        self._is_staged = device.type == "cuda" and not group.uses_nccl
        self._events = [CudaEvent(device) for _ in range(3)] if group.uses_nccl else []
        self._one = torch.zeros(1, device=device)
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over the ranks: one collective for all of them."""
        sizes = [tensor.numel() for tensor in tensors]
        flat, bucket = self._block(sum(sizes))
        with self._device_timer.outside_train(), torch.no_grad():
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)
            if self._is_staged:
                bucket.copy_(flat, non_blocking=True)
            if not self._group.uses_nccl:
                self._device_timer.wait()  # until the bucket is filled
            with self._on_device() if self._group.uses_nccl else self._group.timed():
                self._group.sum(bucket)
                bucket.mul_(1.0 / self.num_ranks)
                if self._is_staged:
                    flat.copy_(bucket, non_blocking=True)  # the next exchange waits before it fills the bucket again
                means = [piece.view_as(tensor) for piece, tensor in zip(torch.split(flat, sizes), tensors, strict=True)]
                torch._foreach_copy_(list(tensors), means)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Times an exchange on the device: it is queued, then waited for, where the loss of a rank is recognised.

        An error of this rank's own device is raised as it is: no peer is to blame.
        """
        arrived, met, ended = self._events
        arrived.record()
        self._group.sum(self._one)
        met.record()
        yield
        ended.record()
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            try:
                self._device_timer.wait()
            finally:  # a sum that NCCL has ended may be an error of the device too
                self._group.check()
            now_ns = self._ledger.now_ns()
            self._ledger.charge_head(LearnerPhase.TRAIN, now_ns - elapsed_ns(arrived, ended))
            self._ledger.charge_head(LearnerPhase.RANK_BARRIER, now_ns - elapsed_ns(met, ended))

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vectors [n] of all ranks as [R, n], on the vector's device, the same bits everywhere."""
        with self._device_timer.outside_train():
            own = vector.cpu()  # waits for the device
            return self._group.gather(own).to(vector.device)

    def _block(self, size: int) -> tuple[Tensor, Tensor]:
        """Returns a flat block on the device and the bucket to exchange, often the same; cached."""
        if size not in self._blocks:
            with torch.inference_mode(False):  # memory made in it could not be written outside of it
                flat = torch.empty(size, device=self._device)
                self._blocks[size] = flat, (torch.empty(size, pin_memory=True) if self._is_staged else flat)
        return self._blocks[size]


def checksum(tensors: Sequence[Tensor]) -> float:
    """Returns 48 bits that change with any bit of any tensor or its position, as a whole float64. Waits once."""
    # Integer sums weighted by position, made where the tensors live: hashing on the host would copy all of them.
    total = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for position, tensor in enumerate(tensors):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.int32).long()
        weights = torch.arange(1, len(bits) + 1, device=bits.device) * 2_654_435_761 + 2 * position + 1
        total += (bits * weights).sum()
    value = int(total.item()) & (2**64 - 1)
    return float((value ^ (value >> 48)) & (2**48 - 1))


def lost_ranks(store: Store, rank: int, num_ranks: int, check_s: float = PEER_CHECK_S) -> str:
    """Returns the names of the ranks that do not mark themselves alive in the store, as all do that have lost one.

    On one host rank 0 keeps the store. If it goes while only others are missing, rank 0 has noticed the loss earlier.
    """
    missing = list(range(num_ranks))

    def look() -> None:
        store.set(f"alive/{rank}", "1")
        watch = Stopwatch()
        while missing and watch.elapsed_s() < check_s:
            missing[:] = [one for one in missing if not store.check([f"alive/{one}"])]
            select.select([], [], [], 0.05)

    try:
        call_within(check_s + 0.5, look)
    except (RuntimeError, OSError):  # it is frozen, or went down with its process
        if 0 in missing:
            return "rank 0, or whatever else keeps the ranks' store"
    return ", ".join(f"rank {one}" for one in missing) or "a rank that has left since"


def open_store(host: HostInfo, rank: int, *, listen_fd: int | None, port: int, timeout_s: float) -> Store:
    """Returns the store where the ranks find each other. Raises `PeerLostError` if it does not answer in time.

    On one host global rank 0 serves it on the socket `listen_fd`, which the supervisor bound to a free loopback port.
    Under a launcher it is the launcher's.
    """
    address = LOOPBACK_HOST if host.is_alone else host.store_host
    is_server = rank == 0 and (host.is_alone or host.is_store_ours)
    if is_server and listen_fd is None:
        listen_fd = socket.create_server((address, port)).detach()  # on this address only; the store would take all
    open_it = partial(
        TCPStore, address, port, None, is_server, timedelta(seconds=timeout_s), wait_for_workers=False,
        master_listen_fd=listen_fd if is_server else None,
    )  # fmt: skip
    try:
        store = call_within(timeout_s + OPEN_GRACE_S, open_it)
    except (RuntimeError, TimeoutError) as error:
        reason = str(error).splitlines()[0]
        raise PeerLostError(
            f"no store at {address}:{port} within {timeout_s:g} s (runner.timeout_s): {reason}"
        ) from error
    return PrefixStore(f"offpolicy/{host.launch_id}", store)


def bind_interface(name: str | None) -> None:
    """Makes gloo and NCCL listen on this interface and no other; None: loopback, whatever the environment says."""
    os.environ["GLOO_SOCKET_IFNAME"] = name or LOOPBACK
    os.environ["NCCL_SOCKET_IFNAME"] = f"={name or LOOPBACK}"  # NCCL takes a bare name for a prefix
