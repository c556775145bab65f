"""`benchmarks/results/<date>-<hardware>-<commit>.json`: every repeat, and all that is needed to measure it again.

The file holds a list, one entry per benchmark run of that day, machine and commit: nothing measured is overwritten.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from offpolicy.machine import cpu_model, versions

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"


class ResultFile:
    """The entry of one benchmark run, rewritten after every repeat so that an interrupted run keeps what it has."""

    def __init__(self, benchmark: str) -> None:
        commit, hardware = _commit(), _hardware()
        self.path = RESULTS / f"{time.strftime('%Y%m%d')}-{_slug(hardware)}-{commit}.json"
        self._earlier: list[dict[str, Any]] = json.loads(self.path.read_text()) if self.path.is_file() else []
        self._facts: dict[str, Any] = {
            "benchmark": benchmark,
            "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "commit": commit,
            "hardware": hardware,
            "versions": versions() | {"python": platform.python_version()},
            "load_average_before": os.getloadavg(),
        }

    def save(self, **measured: Any) -> None:  # Any: the JSON data of one benchmark
        """Write the entry as it stands now, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.tmp")
        text = json.dumps([*self._earlier, {**self._facts, **measured}], indent=1)
        # Results are published: no path of the machine that measured them.
        text = text.replace(f"{REPOSITORY}/", "").replace(f"{tempfile.gettempdir()}/", "<tmp>/")
        draft.write_text(text + "\n")
        draft.replace(self.path)


def _commit() -> str:
    """The short commit, with `-dirty` when anything but results differs from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        is_dirty = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("-dirty" if is_dirty else "")


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


def _hardware() -> dict[str, str | int]:
    cores = len(os.sched_getaffinity(0))
    return {"cpu": cpu_model(), "cores": cores, "machine": platform.machine(), "kernel": platform.release()}


def _slug(hardware: dict[str, str | int]) -> str:
    """The hardware in a file name, such as `intel-xeon-processor-2c`."""
    name = re.sub(r"\((r|tm)\)", "", str(hardware["cpu"]).lower())
    return f"{'-'.join(re.findall(r'[a-z0-9]+', name))}-{hardware['cores']}c"
