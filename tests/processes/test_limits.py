"""Memory, descriptors, streams and places that the machine does not give."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Traces
from tests.processes.conftest import ENDLESS, REPOSITORY, TINY

pytestmark = pytest.mark.mp
GREEDY = """
import gymnasium, numpy as np
from offpolicy.envs.toy import PointMass

class Greedy(PointMass):
    kept = []
    def step(self, action):
        if len(self.kept) < 10_000:
            self.kept.append(np.ones(4_000_000))  # 32 MB
        return super().step(action)

gymnasium.register("Greedy-v0", Greedy, max_episode_steps=20)
"""


def shell(line: str, cwd: Path, traces: Traces, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A tiny run started by a line of shell, in which "$@" is the command."""
    command = [sys.executable, "-m", "offpolicy.cli", "train", *TINY, *words]
    environ = {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY), **environ}
    return subprocess.run(
        ["bash", "-c", line, "bash", *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of version 1 whose processes may have 1,200 MiB together."""
    path = Path(f"/sys/fs/cgroup/memory/offpolicy-test-{os.getpid()}")
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(1200 * 2**20))
    except OSError:
        pytest.skip("making a cgroup of version 1 needs root and its memory controller")
    yield path
    with contextlib.suppress(OSError):
        path.rmdir()


def test_a_process_that_the_kernel_kills_for_memory_is_named_with_the_limit(
    cgroup: Path, tmp_path: Path, traces: Traces
) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    line = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
    result = shell(line, tmp_path, traces, *ENDLESS, "env.id=greedy:Greedy-v0", "collect.max_restarts=0")
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert "offpolicy: collector 0 (pid " in last
    assert f"killed by the kernel: out of memory; the limit of {cgroup} is 1,200 MiB" in last
    traces.assert_none()


def test_a_replay_beyond_the_limit_of_the_cgroup_is_refused(cgroup: Path, tmp_path: Path, traces: Traces) -> None:
    line = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
    result = shell(line, tmp_path, traces, "total_timesteps=40000000", "replay.capacity=40000000")
    assert result.returncode == 2, result.stderr
    assert "replay.capacity: got" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_cost_nothing(streams: str, tmp_path: Path, traces: Traces) -> None:
    result = shell(f'exec "$@" {streams}', tmp_path, traces)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1


@pytest.mark.parametrize("line", ["unset HOME", "unset TERM", "ulimit -n 128"])
def test_what_a_bare_environment_lacks_is_not_needed(line: str, tmp_path: Path, traces: Traces) -> None:
    result = shell(f'{line}; exec "$@"', tmp_path, traces)
    assert (result.returncode, result.stderr) == (0, "")
