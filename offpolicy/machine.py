"""Facts of this machine: its processor, cores, memory and GPU, their load, and the installed versions."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import resource
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from offpolicy.types import SystemLoad

CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
SELF = Path("/proc/self")
NO_LIMIT = 2**60  # bytes; version 1 writes almost 2**63 where there is none
# Files and a field of a cgroup's limit and use: of version 2, and of version 1.
_MEMORY_NAMES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_QUOTA_NAMES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
KEPT_BYTES = 64 * 2**20  # half of it is the largest block that glibc keeps
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LONGEST_WAIT_S = 2e6  # that a call can wait: poll counts milliseconds in 31 bits
_OPEN_FILES = resource.RLIMIT_NOFILE
# Processors on which other cores see a core's stores in program order. The rings (`replay/ring.py`) rely on it: a row
# must be visible before the counter that reveals it.
X86_64 = ("x86_64", "AMD64")
PACKAGES = ("offpolicy", "torch", "gymnasium", "mujoco")
# One of them exists where a GPU is: NVIDIA's driver, WSL2's, ROCm's, Jetson's. Asking torch would take a second.
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/nvhost-gpu", "/dev/nvgpu")
NVML = "libnvidia-ml.so.1"  # a part of NVIDIA's driver
GIB = 2**30


def cpu_model() -> str:
    """Returns the processor's name as the kernel knows it, or 'unknown'."""
    return cpu_fact("model name") or "unknown"


def cpu_fact(name: str) -> str:
    """Returns what the kernel knows of the processor, such as `vendor_id` or `cpu family`, or ''."""
    with contextlib.suppress(OSError):
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def processor() -> str:
    """Returns the kind of processor as the kernel names it, such as x86_64 or aarch64."""
    return os.uname().machine


def runs_program(name: str) -> bool:
    """True if a process of this machine, or container, runs a program of that name."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # of a process that has just gone
            if f"({name}) " in (stat := path.read_text()) and f"({name}) Z" not in stat:  # Z: ended, not waited for
                return True
    return False


def versions() -> dict[str, str | None]:
    """Returns the installed versions of the packages that decide results; None for one that is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def memory(process: Path = SELF) -> tuple[int, int]:
    """Returns the bytes to be had, and all there are, within the limits of the process: cgroups and `ulimit -v`."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        fields = dict(line.split(":", 1) for line in meminfo)
    available, total = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    for group in memory_limits(process):
        available, total = min(available, max(group.limit - group.used, 0)), min(total, group.limit)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        mapped = int((process / "statm").read_text().split()[0]) * resource.getpagesize()
        available, total = min(available, max(address_space - mapped, 0)), min(total, address_space)
    return available, total


def keep_freed_memory() -> None:
    """Has the C library, if it has `mallopt`, keep up to 64 MiB that this process frees at the end of each heap.

    The kernel takes pages back by interrupting all threads of the process, which takes a virtual machine long, and
    clears each page that it gives again.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


@cache
def gives_memory_back() -> bool:
    """True if the kernel takes back pages in the middle of shared memory (`MADV_REMOVE`); some sandboxes refuse."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page, contextlib.suppress(OSError):
        page.madvise(mmap.MADV_REMOVE)
        return True
    return False


class MemoryLimit(NamedTuple):
    """The limit of a cgroup on the memory of all its processes."""

    limit: int  # bytes
    used: int  # bytes, without the files that the kernel could forget at once
    directory: Path


def memory_limits(process: Path = SELF) -> list[MemoryLimit]:
    """Returns the memory limits of this process's cgroup and of those around it, of both versions of cgroups."""
    limits = []
    for directory in cgroups("memory", process):
        for *files, field in _MEMORY_NAMES:
            with contextlib.suppress(OSError, ValueError, KeyError):  # the other version; "max" is no limit
                limit, used = (int((directory / name).read_text()) for name in files)
                if limit >= NO_LIMIT:
                    continue
                counted = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
                limits.append(MemoryLimit(limit, used - int(counted[field]), directory))
    return limits


def allow_open_files(more: int) -> tuple[int, int]:
    """Raises the soft limit on open files of this process, and of its children, as far as `more` of them want it.

    Returns how many files that is in all, and how many the limits allow (`ulimit -n`).
    """
    soft, hard = resource.getrlimit(_OPEN_FILES)
    needed = len(os.listdir("/proc/self/fd")) + more
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(_OPEN_FILES, (allowed, hard))
    return needed, allowed


def load_per_core() -> float:
    """Returns how many threads want to run for each core of the host, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class CpuQuota(NamedTuple):
    """The limit of a cgroup on the CPU time of all its processes."""

    cores: float  # CPU seconds per second
    directory: Path

    def used_ns(self) -> int | None:
        """Returns the CPU time that the group has used; None where the kernel does not count it."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            fields = dict(line.split() for line in (self.directory / "cpu.stat").read_text().splitlines())
            return int(fields["usage_usec"]) * 1000  # version 2
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / "cpuacct.usage").read_text())  # version 1
        return None


def cpu_quotas(process: Path = SELF) -> list[CpuQuota]:
    """Returns the CPU limits of this process's cgroup and of those around it, of both versions of cgroups."""
    quotas: list[CpuQuota] = []
    for directory in cgroups("cpu", process):
        for files in _QUOTA_NAMES:
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # the other version; "max" is no limit
                quota, period = map(int, " ".join((directory / name).read_text() for name in files).split())
                if quota > 0:
                    quotas.append(CpuQuota(quota / period, directory))
    return quotas


def num_usable_cores() -> int:
    """Returns how many threads of this process can run at once: its cores, within the limits of its cgroup."""
    return max(1, math.ceil(usable_cores(len(os.sched_getaffinity(0)), cpu_quotas())))


def usable_cores(cpus: int, quotas: Sequence[CpuQuota]) -> float:
    """Returns the CPU seconds per second that this process may use on `cpus` cores."""
    return min([float(cpus), *(quota.cores for quota in quotas)])


def cgroups(controller: str, process: Path = SELF) -> list[Path]:
    """Returns the directories of the process's cgroups with a controller, from its own up to the topmost; or none."""
    with contextlib.suppress(OSError, ValueError):  # no cgroups, or in another form
        return list(_cgroups(controller, process))
    return []


def _cgroups(controller: str, process: Path) -> Iterator[Path]:
    """Yields them. A container may see the mounted part of the hierarchy only; its own path may lie outside of it."""
    # Split at newlines alone: a name may hold what else ends a line.
    own_cgroups, mounts = (os.fsdecode((process / name).read_bytes()) for name in ("cgroup", "mountinfo"))
    paths: dict[str, str] = {}  # of the process in each hierarchy, by controller; '' is version 2
    for line in filter(None, own_cgroups.split("\n")):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in filter(None, mounts.split("\n")):
        mounted, _, system = line.partition(" - ")
        (root, point), (kind, _, options) = mounted.split(" ")[3:5], system.split(" ")[:3]  # a source may be empty
        is_ours = kind == "cgroup2" or (kind == "cgroup" and controller in options.split(","))
        within = paths.get("" if kind == "cgroup2" else controller) if is_ours else None
        if within is None:
            continue
        top, group = Path(point), Path(within)
        own = top / group.relative_to(root) if group.is_relative_to(root) and ".." not in group.parts else top
        yield from (directory for directory in (own, *own.parents) if directory.is_relative_to(top))


def has_gpu() -> bool:
    """True if the driver of a GPU is there, whether or not torch can use it."""
    return any(map(os.path.exists, GPU_DRIVERS))


class SystemMonitor:
    """Reads the load of this machine and, through NVML, that of the GPU that `device` names, such as `cuda:1`."""

    def __init__(self, device: str | None) -> None:
        self._gpu: ctypes.c_void_p | None = None  # NVML's handle; None: no GPU, or no driver's library
        # CUDA counts the fastest GPU first and NVML by PCI bus: the same only where all are of one kind.
        kinds = {path.read_text().partition("\n")[0] for path in NVIDIA_GPUS.glob("*/information")}
        is_numbered_alike = len(kinds) <= 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if device is None or not device.startswith("cuda") or not is_numbered_alike:
            return
        with contextlib.suppress(OSError):
            self._nvml, handle = ctypes.CDLL(NVML), ctypes.c_void_p()
            index, visible = device.partition(":")[2] or "0", os.environ.get("CUDA_VISIBLE_DEVICES")
            name = visible.split(",")[int(index)].strip() if visible else index
            if self._nvml.nvmlInit_v2() != 0:
                return
            if name.isdigit():
                code = self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                code = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            self._gpu = handle if code == 0 else None

    def read(self) -> SystemLoad:
        """Returns the load now, without what a virtual GPU does not say."""
        (available, total), gpu = memory(), dict[str, float]()
        vram, use, milliwatts = (ctypes.c_ulonglong * 3)(), (ctypes.c_uint * 2)(), ctypes.c_uint()
        if self._has_read("nvmlDeviceGetMemoryInfo", vram):  # total, free, used
            gpu |= {"vram_gib": vram[2] / GIB, "vram_total_gib": vram[0] / GIB}
        if self._has_read("nvmlDeviceGetUtilizationRates", use):  # of the GPU, of its memory
            gpu["gpu_pct"] = float(use[0])
        if self._has_read("nvmlDeviceGetPowerUsage", milliwatts):
            gpu["gpu_watts"] = milliwatts.value / 1000.0
        return SystemLoad((total - available) / GIB, total / GIB, **gpu)

    def _has_read(self, function: str, numbers: ctypes.Array[Any] | ctypes.c_uint) -> bool:  # Any: a type of C
        return self._gpu is not None and getattr(self._nvml, function)(self._gpu, ctypes.byref(numbers)) == 0
