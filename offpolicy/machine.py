"""Facts of this machine: the processor's name, the cores and the memory at hand, and the installed versions."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
SELF = Path("/proc/self")
PACKAGES = ("offpolicy", "torch", "gymnasium", "mujoco")


def cpu_model() -> str:
    """Returns the processor's name as the kernel knows it, or 'unknown'."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def versions() -> dict[str, str | None]:
    """Returns the installed versions of the packages that decide results; None for one that is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def available_memory() -> int:
    """Returns the bytes that the kernel, or this process's cgroup, can still give."""
    return memory()[0]


def memory() -> tuple[int, int]:
    """Returns the bytes that can still be had, and those that there are, within the limits of this process's cgroup."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        fields = dict(line.split(":", 1) for line in meminfo)
    available, total = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    for limit_path, usage_path in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if os.path.exists(limit_path):
            with open(limit_path, encoding="ascii") as limit, open(usage_path, encoding="ascii") as usage:
                text = limit.read().strip()
                if text != "max":
                    available = min(available, max(int(text) - int(usage.read()), 0))
                    total = min(total, int(text))
    return available, total


def load_per_core() -> float:
    """Returns how many threads want to run for each core of this process, over the last minute."""
    try:
        return os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:  # a sandbox without /proc
        return 0.0


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """The limit of a cgroup on the CPU time of all its processes."""

    cores: float  # CPU seconds per second
    directory: Path

    def used_ns(self) -> int | None:
        """Returns the CPU time that the group has used; None where the kernel does not count it."""
        with contextlib.suppress(OSError, KeyError):
            fields = dict(line.split() for line in (self.directory / "cpu.stat").read_text().splitlines())
            return int(fields["usage_usec"]) * 1000  # version 2
        with contextlib.suppress(OSError):
            return int((self.directory / "cpuacct.usage").read_text())  # version 1
        return None


def cpu_quotas(process: Path = SELF) -> list[CpuQuota]:
    """Returns the CPU limits of this process's cgroup and of those around it, of both versions of cgroups."""
    quotas: list[CpuQuota] = []
    with contextlib.suppress(OSError):  # no cgroups
        for directory in _cpu_cgroups(process):
            cores = _quota_cores(directory)
            if cores is not None:
                quotas.append(CpuQuota(cores, directory))
    return quotas


def num_usable_cores() -> int:
    """Returns how many threads of this process can run at once: its cores, within the limits of its cgroup."""
    return max(1, math.ceil(usable_cores(len(os.sched_getaffinity(0)), cpu_quotas())))


def usable_cores(cpus: int, quotas: list[CpuQuota]) -> float:
    """Returns the CPU seconds per second that this process may use on `cpus` cores."""
    return min([float(cpus), *(quota.cores for quota in quotas)])


def _cpu_cgroups(process: Path) -> Iterator[Path]:
    """Yields the directories of the cgroups that limit the CPU time of the process, from its own up to the topmost.

    A container may see only the part of the hierarchy that is mounted; its own path may then lie outside of it.
    """
    paths: dict[str, str] = {}  # of the process in each hierarchy, by controller; '' is version 2
    for line in (process / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in (process / "mountinfo").read_text().splitlines():
        mounted, _, system = line.partition(" - ")
        (root, point), (kind, _, options) = mounted.split()[3:5], system.split()[:3]
        controller = "cpu" if kind == "cgroup" else ""
        if controller not in paths or kind not in ("cgroup", "cgroup2"):
            continue
        if kind == "cgroup" and "cpu" not in options.split(","):
            continue
        top = Path(point)
        within = Path(paths[controller])
        own = top / within.relative_to(root) if within.is_relative_to(root) and ".." not in within.parts else top
        yield from (directory for directory in (own, *own.parents) if directory.is_relative_to(top))


def _quota_cores(directory: Path) -> float | None:
    """Returns the limit of one cgroup in cores; None where it has none."""
    with contextlib.suppress(OSError):
        quota, period = (directory / "cpu.max").read_text().split()  # version 2
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError):
        quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))  # version 1
        return None if int(quota) <= 0 else int(quota) / int(period)
    return None
