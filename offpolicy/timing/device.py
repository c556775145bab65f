"""Waiting for a device: the only module that synchronises one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class DeviceFence:
    """Wait for the work queued on a device's current stream.

    The loop waits inside `train` exactly when the next phase (publishing the weights) would have to wait anyway, so the
    time lands on the phase that caused it and no synchronisation is added. On the CPU there is nothing to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def wait(self) -> None:
        """Return when the device has finished what was queued so far."""
        if self._device.type == "cuda":
            import torch  # noqa: PLC0415  # torch-free processes import this package too

            torch.cuda.current_stream(self._device).synchronize()
