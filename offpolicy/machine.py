"""Facts of this machine that explain a number: the processor's name and the installed versions."""

from __future__ import annotations

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
    """Returns the installed versions of what decides results; None for what is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
