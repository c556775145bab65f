"""The load of the machine: memory, and the use, memory and power of a GPU, as the driver's library reports them."""

from __future__ import annotations

import contextlib
import ctypes
import os

from offpolicy.machine import memory
from offpolicy.types import SystemLoad

GIB = 2**30
NAME_BYTES = 96  # NVML's own bound of a GPU's name
LIBRARY = "libnvidia-ml.so.1"  # a part of the driver


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpu:
    """One GPU, through NVML. Raises `OSError` where there is no driver, or no such GPU."""

    def __init__(self, index: int, visible: str | None = None) -> None:
        """`index` counts the GPUs in `visible`, which is what CUDA_VISIBLE_DEVICES holds; None: all."""
        self._library = ctypes.CDLL(LIBRARY)
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        # CUDA counts the fastest GPU first and NVML by PCI bus: the same only where all are of one kind.
        if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(self._kinds()) > 1:
            raise OSError("GPUs of several kinds: NVML's numbers are not CUDA's; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
        names = [name.strip() for name in visible.split(",")] if visible else []
        name = names[index] if index < len(names) else str(index)
        if name.isdigit():
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(self._handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._handle))

    def utilization_pct(self) -> float:
        """Returns the share of the driver's last sample in which a kernel ran."""
        found = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(found))
        return float(found.gpu)

    def memory(self) -> tuple[int, int]:
        """Returns the bytes in use, by all programs, and those that there are."""
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(found))
        return found.used, found.total

    def watts(self) -> float:
        """Returns the power that it draws."""
        milliwatts = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", self._handle, ctypes.byref(milliwatts))
        return milliwatts.value / 1000.0

    def _kinds(self) -> set[bytes]:
        """Returns the names of the GPUs of this machine, each once."""
        count, kinds = ctypes.c_uint(), set[bytes]()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(NAME_BYTES)
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(NAME_BYTES))
            kinds.add(name.value)
        return kinds

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} returned {code}")


class SystemMonitor:
    """Reads the load of this machine, and of the GPU that `device` names, such as `cuda:1`."""

    def __init__(self, device: str | None) -> None:
        self._gpu: Gpu | None = None
        if device is not None and device.startswith("cuda"):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # no driver's library: no numbers
                self._gpu = Gpu(int(device.partition(":")[2] or 0), os.environ.get("CUDA_VISIBLE_DEVICES"))

    def read(self) -> SystemLoad | None:
        """Returns the load now; None where the kernel does not tell."""
        try:
            available, total = memory()
        except (OSError, KeyError, ValueError):
            return None
        gpu_pct = watts = used_gib = total_gib = None
        if self._gpu is not None:
            with contextlib.suppress(OSError, AttributeError):  # a virtual GPU, or a slice, does not tell all of it
                used, vram = self._gpu.memory()
                used_gib, total_gib = used / GIB, vram / GIB
            with contextlib.suppress(OSError, AttributeError):
                gpu_pct = self._gpu.utilization_pct()
            with contextlib.suppress(OSError, AttributeError):
                watts = self._gpu.watts()
        return SystemLoad(
            memory_gib=(total - available) / GIB,
            memory_total_gib=total / GIB,
            gpu_pct=gpu_pct,
            vram_gib=used_gib,
            vram_total_gib=total_gib,
            gpu_watts=watts,
        )
