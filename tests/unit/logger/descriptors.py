"""The files that this process has open."""

from __future__ import annotations

from pathlib import Path


def open_below(directory: Path) -> list[str]:
    """Returns the names of the open files below a directory."""
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(path.name for path in links if path.is_relative_to(directory))
