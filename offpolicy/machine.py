"""Facts of this machine: the processor's name, the memory at hand and the installed versions."""

from __future__ import annotations

import contextlib
import os
from importlib import metadata
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
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
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        fields = dict(line.split(":", 1) for line in meminfo)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit_path, usage_path in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if os.path.exists(limit_path):
            with open(limit_path, encoding="ascii") as limit, open(usage_path, encoding="ascii") as usage:
                text = limit.read().strip()
                if text != "max":
                    available = min(available, max(int(text) - int(usage.read()), 0))
    return available
