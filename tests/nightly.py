"""The nightly tests in one command: `python -m tests.nightly`, with pytest's arguments to choose some of them.

All parts run, whatever one of them finds; pyright only where no tests are chosen. The last lines name what has failed,
and the command that runs it alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LAST_FAILED = REPOSITORY / ".pytest_cache/v/cache/lastfailed"  # kept by pytest: the failed tests, by node id
PYRIGHT = [str(Path(sys.executable).with_name("pyright")), "--pythonpath", sys.executable]
# The long tests share nothing: the first worker to be free takes the next one.
BESIDE_EACH_OTHER = ["-n", "2", "--dist", "worksteal", "-m", "slow and not gpu and not alone"]
ONE_BY_ONE = ["-m", "alone and not gpu"]
FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def main(arguments: Sequence[str]) -> int:
    """Runs the parts; returns 1 if one of them has failed."""
    LAST_FAILED.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--timeout", "3600", *arguments]
    failed = [] if arguments or subprocess.call(PYRIGHT) == 0 else [" ".join(PYRIGHT)]
    statuses = {
        "beside each other": subprocess.call([*command, *BESIDE_EACH_OTHER]),
        "one by one": subprocess.call([*command, *ONE_BY_ONE]),
    }
    if statuses["one by one"] == pytest.ExitCode.TESTS_FAILED:  # the host of a virtual machine may have taken the cores
        statuses["one by one"] = subprocess.call([*command, *ONE_BY_ONE, "--last-failed"])
    tests = json.loads(LAST_FAILED.read_text()) if LAST_FAILED.exists() else {}
    failed += [f"{sys.executable} -m pytest -m '' '{test}'" for test in tests]
    ends = [f"pytest, {part}: exit {status}" for part, status in statuses.items() if status not in FINE]
    if not failed and not ends:
        return 0
    print("nightly tests:", *ends, f"{len(failed)} failed; each one alone:", *failed, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
