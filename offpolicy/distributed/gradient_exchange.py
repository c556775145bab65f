"""Collectives of the learner ranks within an update, timed in their phases: first all arrive, then data moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offpolicy.distributed.process_group import RankGroup
from offpolicy.protocols import DeviceSync
from offpolicy.timing.ledger import TimeAccount
from offpolicy.timing.phases import LearnerPhase


class GroupExchange:
    """Averages and gathers over a group; its time counts as `rank_barrier` and `param_sync`, not as `train`.

    It waits for the device's work before the barrier, so that this stays in `train`: else this rank's own arithmetic
    would look like the lateness of another rank.
    """

    def __init__(self, group: RankGroup, device: torch.device, device_sync: DeviceSync, ledger: TimeAccount) -> None:
        self._group, self._device, self._device_sync, self._ledger = group, device, device_sync, ledger
        # gloo moves host memory: gradients of a GPU pass through a pinned block.
        self._is_staged = device.type == "cuda" and not group.uses_nccl
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_ranks(self) -> int:
        """R, over all hosts."""
        return self._group.num_ranks

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor, in place, by its mean over the ranks: one collective for all of them."""
        self._wait_for_all()
        with self._ledger.phase(LearnerPhase.PARAM_SYNC), torch.no_grad():
            sizes = [tensor.numel() for tensor in tensors]
            flat, bucket = self._block(sum(sizes))
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)
            if self._is_staged:
                bucket.copy_(flat)
            self._group.sum_bucket(bucket)
            bucket.mul_(1.0 / self.num_ranks)
            if self._is_staged:
                flat.copy_(bucket)
            means = [piece.view_as(tensor) for piece, tensor in zip(torch.split(flat, sizes), tensors, strict=True)]
            torch._foreach_copy_(list(tensors), means)
            self._device_sync.wait()

    def gather(self, vector: Tensor) -> Tensor:
        """Returns the vectors [n] of all ranks as [R, n], on the vector's device, the same bits everywhere."""
        self._wait_for_all()
        with self._ledger.phase(LearnerPhase.PARAM_SYNC):
            return self._group.gather(vector.cpu()).to(vector.device)

    def start_from_rank_0(self, tensors: Sequence[Tensor]) -> None:
        """Replaces every tensor, in place, by that of rank 0."""
        for tensor in tensors:
            block = tensor.detach().to("cpu" if self._is_staged else self._device, copy=True)
            self._group.broadcast(block)
            with torch.no_grad():
                tensor.copy_(block)

    def _wait_for_all(self) -> None:
        self._device_sync.wait()
        with self._ledger.phase(LearnerPhase.RANK_BARRIER):
            self._group.arrive()

    def _block(self, size: int) -> tuple[Tensor, Tensor]:
        """Returns a flat block on the device and the bucket to exchange, often the same; cached."""
        if size not in self._blocks:
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
