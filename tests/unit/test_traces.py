"""What tests hold a finished run to: no process and no shared memory of it is left, whoever else runs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Traces

NEIGHBOUR = "import os, sys, time; time.sleep(float(sys.argv[2])); os.unlink(sys.argv[1]) if sys.argv[3:] else None"


@pytest.fixture
def left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The name of a semaphore that no process maps, as a killed child leaves it, where no real run has any."""
    monkeypatch.setattr("tests.conftest.SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr("tests.conftest.NEIGHBOUR_S", 3.0)
    return tmp_path / "sem.mp-abcdefgh"


def neighbour(*arguments: str) -> subprocess.Popen[bytes]:
    """A process that a test in another worker started."""
    environ = {**os.environ, "PYTEST_XDIST_WORKER": "gw-other"}
    return subprocess.Popen([sys.executable, "-c", NEIGHBOUR, *arguments], env=environ)


def test_shared_memory_that_a_run_leaves_is_found(left_over: Path) -> None:
    traces = Traces()
    left_over.touch()
    with pytest.raises(AssertionError, match="shared memory of the run"):
        traces.assert_none(grace_s=0.1)


def test_shared_memory_that_goes_with_the_run_of_another_worker_is_not_this_runs(left_over: Path) -> None:
    traces = Traces()
    left_over.touch()
    with neighbour(str(left_over), "1.0", "and-remove-it"):
        traces.assert_none(grace_s=0.1)
        assert not left_over.exists()


def test_shared_memory_that_outlives_the_runs_of_other_workers_is_found(left_over: Path) -> None:
    traces = Traces()
    left_over.touch()
    with neighbour(str(left_over), "0.5"), pytest.raises(AssertionError, match="shared memory of the run"):
        traces.assert_none(grace_s=0.1)
