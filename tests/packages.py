"""Packages as pip installs them: a module, and its metadata with entry points."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from offpolicy import plugins


def make_package(site: Path, name: str, text: str, entry_points: Mapping[str, str]) -> None:
    """Installs a module of `text` in the directory `site`, version 1.2, with lines `name = target` by group."""
    (site / f"{name}.py").write_text(text)
    metadata = site / f"{name}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    groups = "\n".join(f"[{group}]\n{lines}\n" for group, lines in entry_points.items())
    (metadata / "entry_points.txt").write_text(groups)
    importlib.invalidate_caches()
    plugins.installed.cache_clear()
