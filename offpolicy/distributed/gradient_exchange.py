"""Collectives of the learner ranks within an update: gradients and the moments of observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from offpolicy.distributed.arrivals import ArrivalLog
from offpolicy.distributed.rank_group import RankGroup
from offpolicy.protocols import DeviceSync
from offpolicy.timing.device_events import DeviceEvent, Pair


class GroupExchange:
    """Averages and gathers over a group; its time counts as `param_sync` and `rank_barrier`, not as `train`.

    An exchange on the host waits for the device's work first, so that this stays in `train`: else this rank's own
    arithmetic would look like the lateness of another rank. One on the device (NCCL) is queued behind that work; events
    around it say how long it took. Either waits for the device once.
    """

    def __init__(
        self,
        group: RankGroup,
        device: torch.device,
        device_sync: DeviceSync,
        arrivals: ArrivalLog,
        new_event: Callable[[], DeviceEvent] | None = None,
    ) -> None:
        """`new_event` makes events of the device's stream; None where nothing is timed."""
        self._group, self._device, self._device_sync, self._arrivals = group, device, device_sync, arrivals
        self._events = None if new_event is None or not group.uses_nccl else Pair(new_event(), new_event())
        # All but NCCL move host memory: gradients of a GPU pass through a pinned block.
        self._is_staged = device.type == "cuda" and not group.uses_nccl
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_ranks(self) -> int:
        """R, over all hosts."""
        return self._group.num_ranks

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over the ranks: one collective for all of them."""
        sizes = [tensor.numel() for tensor in tensors]
        flat, bucket = self._block(sum(sizes))
        exchange = self._on_device if self._group.uses_nccl else self._on_host
        with torch.no_grad(), exchange(tensors, flat, bucket):
            self._group.sum_bucket(bucket)
            bucket.mul_(1.0 / self.num_ranks)
            if self._is_staged:
                flat.copy_(bucket, non_blocking=True)  # the next exchange waits before it fills the bucket again
            means = [piece.view_as(tensor) for piece, tensor in zip(torch.split(flat, sizes), tensors, strict=True)]
            torch._foreach_copy_(list(tensors), means)

    @contextmanager
    def _on_host(self, tensors: Sequence[Tensor], flat: Tensor, bucket: Tensor) -> Iterator[None]:
        """An exchange over host memory: the bucket is filled when the device has done its work."""
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)
        if self._is_staged:
            bucket.copy_(flat, non_blocking=True)
        self._device_sync.wait()
        with self._arrivals.exchange():
            yield

    @contextmanager
    def _on_device(self, tensors: Sequence[Tensor], flat: Tensor, bucket: Tensor) -> Iterator[None]:
        """An exchange by NCCL: all of it is queued, then waited for, where the loss of a rank is recognised."""
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)
        if self._events is not None:
            self._events.start.record()
        yield
        if self._events is not None:
            self._events.stop.record()
        self._group.wait_for_device()
        self._arrivals.add(0 if self._events is None else self._events.ns)

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vectors [n] of all ranks as [R, n], on the vector's device, the same bits everywhere."""
        own = vector.cpu()  # waits for the device
        with self._arrivals.exchange():
            return self._group.gather(own).to(vector.device)

    def start_from_rank_0(self, tensors: Sequence[Tensor]) -> None:
        """Replaces every tensor, in place, by that of rank 0."""
        for tensor in tensors:
            block = tensor.detach().to("cpu" if self._is_staged else self._device, copy=True)
            self._group.broadcast(block)
            with torch.no_grad():
                tensor.copy_(block)

    def _block(self, size: int) -> tuple[Tensor, Tensor]:
        """Returns a flat block on the device and the bucket to exchange, often the same; cached."""
        if size not in self._blocks:
            with torch.inference_mode(False):  # memory made in it could not be written outside of it
                flat = torch.empty(size, device=self._device)
                self._blocks[size] = flat, (torch.empty(size, pin_memory=True) if self._is_staged else flat)
        return self._blocks[size]


def checksum(tensors: Sequence[Tensor]) -> float:
    """Returns 48 bits that change with any bit of any tensor or its position, as a whole float64. Waits once.

    Integer sums weighted by position, made where the tensors live: hashing on the host would copy all of them.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for position, tensor in enumerate(tensors):
        bits = tensor.detach().contiguous().reshape(-1).view(torch.int32).long()
        weights = torch.arange(1, len(bits) + 1, device=bits.device) * 2_654_435_761 + 2 * position + 1
        total += (bits * weights).sum()
    value = int(total.item()) & (2**64 - 1)
    return float((value ^ (value >> 48)) & (2**48 - 1))
