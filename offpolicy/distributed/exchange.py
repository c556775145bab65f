"""Collectives of the learner ranks within an update: gradients and the moments of observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from offpolicy.distributed.process_group import ProcessGroup
from offpolicy.timing.device_timer import CudaEvent, DeviceTimer, elapsed_ns
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase


class GroupExchange:
    """Averages and gathers over a group; its time counts as `rank_barrier` and `param_sync`, not as `train`.

    An exchange on the host waits for the device's work first, so that this stays in `train`: else this rank's own
    arithmetic would look like the lateness of another rank. One on the device (NCCL) is queued behind that work, and a
    sum of one number in front of it ends when the last rank has arrived; events around both say how long they took.
    Either waits for the device once.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, device_timer: DeviceTimer, ledger: Ledger) -> None:
        self._group, self._device, self._device_timer, self._ledger = group, device, device_timer, ledger
        # gloo moves host memory: gradients of a GPU pass through a pinned block.
        self._is_staged = device.type == "cuda" and not group.uses_nccl
        self._events = [CudaEvent(device) for _ in range(3)] if group.uses_nccl else []
        self._one = torch.zeros(1, device=device)
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_ranks(self) -> int:
        """R, over all hosts."""
        return self._group.num_ranks

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
