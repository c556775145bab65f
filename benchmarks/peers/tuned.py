"""What `offpolicy tune` finds for a race: the overrides of the contender `tuned`, found once and kept in the results.

The number of environments stays that of the race: tuning may not change the work.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.children import environment
from benchmarks.journal import LATE_S
from benchmarks.peers.contenders import overrides
from benchmarks.peers.settings import Settings
from benchmarks.results import REPOSITORY

KEPT = ("env.num_envs", "collect.num_collectors")


def find(settings: Settings, minutes: float) -> list[str]:
    """The overrides that were fastest in so many minutes of trials, without those that the race sets anyway.

    Raises `RuntimeError` with the last lines of `offpolicy tune` if it fails, `TimeoutExpired` if it does not end.
    """
    given = overrides(settings)
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        out = Path(scratch) / "tune.txt"
        command = [sys.executable, "-m", "offpolicy.cli", "tune", *given, "--minutes", str(minutes), "--out", str(out)]
        keep = [word for key in KEPT for word in ("--keep", key)]
        result = subprocess.run(
            [*command, *keep], cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
            timeout=60 * minutes + LATE_S,
        )  # fmt: skip
        if result.returncode:
            last = (result.stdout + result.stderr).splitlines()[-8:]
            raise RuntimeError("\n".join([f"offpolicy tune: exit code {result.returncode}", *last]))
        return [word for word in shlex.split(out.read_text()) if word not in given]
