"""Memory, descriptors, streams and places that the machine does not give."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Traces
from tests.processes.conftest import ENDLESS, REPOSITORY, TINY, SmallDisk, StartRun
from tests.unit.processes.conftest import wait_until

pytestmark = [pytest.mark.mp, pytest.mark.slow]
TWO_RANKS = ("runner=multi_gpu", "runner.world_size=2", "device=cpu")
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
    result = shell(line, tmp_path, traces, *ENDLESS, "env.id=greedy:Greedy-v0", "runner.max_restarts=0")
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert "offpolicy: collector 0 (pid " in last
    assert f"killed by the kernel: out of memory; the limit of {cgroup} is 1,200 MiB" in last
    traces.assert_none()


def test_closed_streams_cost_nothing(tmp_path: Path, traces: Traces) -> None:
    result = shell('exec "$@" >&- 2>&- <&-', tmp_path, traces)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1


def test_a_full_disk_under_stdout_and_stderr_does_not_change_the_exit_code(tmp_path: Path, traces: Traces) -> None:
    words = ("env.id=tests.toys:Faulty-v0", "env.kwargs.fail=inf_reward", "env.kwargs.at=250")
    assert shell('exec "$@" > /dev/full 2>&1', tmp_path, traces, *words).returncode == 65
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == 65


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        ("ulimit -n 32", (), "ulimit -n: got 32 open files, allowed at least "),
        ("ulimit -f 1024", (), "ulimit -f: got less than the "),
        ("ulimit -v 4000000", ("total_timesteps=200000000", "replay.capacity=200000000"), "replay.capacity: got "),
    ],
)
def test_a_limit_of_the_shell_that_is_too_low_is_named(
    line: str, words: tuple[str, ...], said: str, tmp_path: Path, traces: Traces
) -> None:
    result = shell(f'{line}; exec "$@"', tmp_path, traces, *words)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr
    assert not (tmp_path / "run").exists()


def unshared(script: str) -> str:
    """A line of shell that changes what is mounted for the command alone; skips where that is not allowed."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("changing mounts for one process needs root")
    return f'unshare -m bash -c \'{script}; exec "$@"\' bash "$@"'


@pytest.mark.parametrize("run_dir", ["run", "elsewhere/run"])
def test_a_directory_that_cannot_be_written_is_needed_for_the_run_only(
    run_dir: str, tmp_path: Path, traces: Traces
) -> None:
    """Neither the current directory nor a temporary one."""
    (tmp_path / "cwd" / "elsewhere").mkdir(parents=True)
    (tmp_path / "room").mkdir()
    read_only = f"mount --bind {tmp_path}/cwd {tmp_path}/cwd && mount -o remount,bind,ro {tmp_path}/cwd && cd $PWD"
    elsewhere = f"mount --bind {tmp_path}/room {tmp_path}/cwd/elsewhere"
    no_tmp = "mount -t tmpfs -o ro tmpfs /var/tmp; export TMPDIR=/var/tmp"
    line = unshared(f"{read_only}; {elsewhere}; {no_tmp}")
    result = shell(line, tmp_path / "cwd", traces, f"run_dir={run_dir}")
    if run_dir == "run":
        assert result.returncode == 2, result.stderr
        assert "run_dir: run cannot be created: Read-only file system" in result.stderr
    else:
        assert (result.returncode, result.stderr) == (0, "")
        assert (tmp_path / "room" / "run" / "summary.json").exists()


@pytest.mark.parametrize("words", [(), TWO_RANKS])
def test_a_disk_without_a_free_inode_costs_checkpoints_and_exits_74(
    start_run: StartRun, small_disk: SmallDisk, words: tuple[str, ...]
) -> None:
    small_disk.mount("64m", files=300)
    run = start_run("run_dir=disk/run", "total_timesteps=1500", "checkpoint.every=300", *words)
    run.wait_for_updates(90.0)
    small_disk.fill_with_files()
    code, out, err = run.finish(90.0)
    assert code == 74, err
    assert "warning: checkpoint at" in out
    assert "100% step=1500/1500" in out, "training continued to its end"
    assert "No space left" in err
    assert err.strip().splitlines()[-1].startswith("offpolicy: learner ")  # of several, whose part was refused first


def has_updates(run: Path) -> bool:
    path = run / "metrics.jsonl"
    return path.exists() and "train/n_updates" in path.read_text()


def summary_of(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def command_line(*words: str) -> str:
    return shlex.join([sys.executable, "-m", "offpolicy.cli", "train", *TINY, *words])


def environment(traces: Traces) -> dict[str, str]:
    return {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_the_end_of_a_terminal_session_saves_and_stops_the_run(tmp_path: Path, traces: Traces) -> None:
    tmux = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "socket")]
    endless = [word for word in ENDLESS if not word.startswith("run_dir")]
    subprocess.run(
        [*tmux, "new-session", "-d", command_line(*endless)], cwd=tmp_path, env=environment(traces), check=True
    )
    run = tmp_path / "run"
    try:
        wait_until(lambda: has_updates(run))
    finally:
        subprocess.run([*tmux, "kill-session"], check=False, capture_output=True)
    wait_until(lambda: summary_of(run).get("exit_code") == 143)
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
    traces.assert_none()


def test_a_run_outlives_the_shell_that_started_it(tmp_path: Path, traces: Traces) -> None:
    line = f"{command_line('total_timesteps=1500')} > out 2> err & wait"
    parent = subprocess.Popen(["bash", "-c", line], cwd=tmp_path, env=environment(traces), stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: has_updates(tmp_path / "run"))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: summary_of(tmp_path / "run").get("status") == "completed")
    assert (tmp_path / "err").read_text() == ""
    traces.assert_none()


JUMPING = """
import itertools, time
real, count = time.time, itertools.count(1)
def jumped():
    return real() + (-1) ** next(count) * 40_000.0
time.time = jumped
time.time_ns = lambda: int(jumped() * 1e9)
"""


def test_a_wall_clock_that_jumps_back_and_forth_changes_no_step_and_no_duration(tmp_path: Path, traces: Traces) -> None:
    """Every reading is 11 hours early or late, in every process."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPING)
    words = ("checkpoint.every_min=0.005", "eval.every=200")
    result = shell('exec "$@"', tmp_path, traces, *words, PYTHONPATH=f"{tmp_path}/clock:{REPOSITORY}")
    assert (result.returncode, result.stderr) == (0, "")
    summary = summary_of(tmp_path / "run")
    assert (summary["status"], summary["env_steps"], summary["updates"]) == ("completed", 600, 500)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    elapsed = [line["wall_s"] for line in lines]
    assert elapsed == sorted(elapsed)
    assert 0.0 <= elapsed[0] <= elapsed[-1] < 100.0
    for account in summary["timing"].values():
        assert 0.0 <= account["other_s"] <= account["wall_s"] < 100.0
