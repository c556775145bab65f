"""The learner ranks as a group of torch.distributed, behind a few calls with a deadline, and the store where they meet.

Two channels. In the gathering group, always gloo over CPU tensors, ranks agree. The bucket, NCCL between GPUs and gloo
else, moves gradients and networks. A rank that does not come ends both with a `PeerLostError` that names it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported without saying so

from offpolicy import fault
from offpolicy.children import call_within
from offpolicy.distributed.host_info import LOOPBACK, LOOPBACK_HOST, HostInfo
from offpolicy.distributed.rank_group import PeerWatch
from offpolicy.errors import PeerLostError
from offpolicy.protocols import DeviceSync

JOIN_GRACE_S = 1.0  # beyond torch's own deadline, so that its own error is the one that is raised
OPEN_GRACE_S = 10.0  # torch tries to connect for some seconds more than it was told
LEAVE_S = 10.0  # of a group of GPUs: NCCL may wait for a rank that is frozen, and the process ends all the same
NCCL_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # the watchdog ends a collective and not the process: we raise
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # with a dump it would end it a minute later only
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}


class ProcessGroup:
    """The process group of one rank. See `RankGroup`."""

    def __init__(
        self, store: Store, rank: int, num_ranks: int, *, backend: str, timeout_s: float, device_sync: DeviceSync
    ) -> None:
        """Joins the group. `device_sync` waits for the device. Raises `PeerLostError` if one does not come in time."""
        self.rank, self.num_ranks = rank, num_ranks
        self._device_sync = device_sync
        self._watch = PeerWatch(store, rank, num_ranks, timeout_s)
        timeout = timedelta(seconds=timeout_s)

        os.environ.update(NCCL_VARIABLES)

        def init() -> Any:  # Any: torch types the result of new_group as a group, an int or None
            dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
            return dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=timeout)

        def join() -> Any:  # Any: as of `init`
            fault.hit("rank.join")
            return call_within(timeout_s + JOIN_GRACE_S, init)

        self._gathering_group = self._watch.run(join)
        self.uses_nccl = backend == "nccl"
        self._nccl = (
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda")) if self.uses_nccl else None
        )

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the CPU vectors [n] of all ranks as [R, n], the same bits everywhere; waits for all of them."""
        matrix = vector.new_zeros((self.num_ranks, len(vector)))
        matrix[self.rank] = vector
        fault.hit("rank.gather")
        self._watch.run(lambda: dist.all_reduce(matrix, group=self._gathering_group))  # the rest is zeros: exact
        return matrix

    def sum_bucket(self, bucket: Tensor) -> None:
        """Replaces the bucket, in place, by its sum over the ranks, the same bits everywhere.

        NCCL only queues that; `wait_for_device` waits for it.
        """
        fault.hit("rank.reduce")
        self._watch.run(lambda: dist.all_reduce(bucket))

    def wait_for_device(self) -> None:
        """Returns when the device has done what is queued. Raises `PeerLostError` if a rank is lost in a sum.

        An error of this rank's own device alone is raised as it is: no peer is to blame.
        """

        def check() -> None:
            if self._nccl is not None and (error := self._nccl.get_error().name) != "SUCCESS":
                raise RuntimeError(f"NCCL ended the exchange: {error}")

        try:
            self._device_sync.wait()
        finally:  # an exchange that NCCL has ended may be an error of the device too
            self._watch.run(check)

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a tensor of the bucket's device, in place, by that of rank 0."""
        self._watch.run(lambda: dist.broadcast(tensor, src=0))

    def close(self) -> None:
        """Destroys the group and its threads: one that is left may abort the process when the interpreter exits."""
        del self._gathering_group  # torch keeps the threads for as long as the group is referenced
        if not self.uses_nccl:
            dist.destroy_process_group()
            return
        with contextlib.suppress(TimeoutError):
            call_within(LEAVE_S, dist.destroy_process_group)


def open_store(host: HostInfo, rank: int, *, listen_fd: int | None, port: int, timeout_s: float) -> Store:
    """Returns the store where the ranks find each other. Raises `PeerLostError` if it does not answer in time.

    On one host global rank 0 serves it on the socket `listen_fd`, which the supervisor bound to a free loopback port:
    no port is guessed. Under a launcher it is the launcher's.
    """
    timeout = timedelta(seconds=timeout_s)
    address = LOOPBACK_HOST if host.is_alone else host.store_host
    is_server = rank == 0 and (host.is_alone or host.is_store_ours)
    if is_server and listen_fd is None:
        listen_fd = socket.create_server((address, port)).detach()  # on this address only; the store would take all

    def open_it() -> TCPStore:
        return TCPStore(
            address, port, None, is_server, timeout, wait_for_workers=False,
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
