"""Environments in worker processes: the same results, named deaths, deadlines, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter, env_seeds
from offpolicy.envs.vector import make_vector
from offpolicy.envs.worker_pool import Workers
from offpolicy.errors import EnvFailure, HangError

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[3]


@contextmanager
def workers(
    name: str, num_envs: int, vectorization: str = "async", step_timeout_s: float = 20.0, **kwargs: Any
) -> Iterator[VectorAdapter]:
    cfg = EnvConfig(
        id=f"tests.toys:{name}", kwargs=kwargs, num_envs=num_envs, vectorization=vectorization,
        step_timeout_s=step_timeout_s,
    )  # fmt: skip
    envs = make_vector(cfg)
    try:
        yield envs
    finally:
        envs.close()


def pids_of(envs: VectorAdapter) -> tuple[int, ...]:
    assert isinstance(envs, Workers)
    return tuple(process.pid or 0 for process in envs.processes)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def zeros(envs: VectorAdapter) -> Any:
    return np.zeros((envs.num_envs, envs.spec.action_dim), np.float32)


def test_workers_give_bitwise_what_one_process_gives() -> None:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1.0, 1.0, (30, 2, 2)).astype(np.float32)
    with (
        workers("PointMass-v0", 2, max_episode_steps=12) as apart,
        workers("PointMass-v0", 2, "sync", max_episode_steps=12) as together,
    ):
        assert apart.reset(3).tobytes() == together.reset(3).tobytes()
        for action in actions:
            ours, theirs = apart.step(action), together.step(action)
            assert [array.tobytes() for array in ours[:7]] == [array.tobytes() for array in theirs[:7]]


def test_a_killed_worker_is_named_with_its_signal() -> None:
    with workers("Counter-v0", 2) as envs:
        envs.reset(1)
        victim = pids_of(envs)[1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(EnvFailure, match=rf"^env 1 of 2 \(pid {victim}\) was killed by SIGKILL$"):
            envs.step(zeros(envs))


@pytest.mark.promise("no-hang")
def test_a_silent_worker_ends_the_wait_and_is_gone_after_close() -> None:
    with workers("Faulty-v0", 2, step_timeout_s=0.3, fail="hang", at=1, only_seed=env_seeds(1, 2)[1]) as envs:
        envs.reset(1)
        pids = pids_of(envs)
        with pytest.raises(HangError, match=rf"^env 1 of 2 \(pid {pids[1]}\) gave no answer for 0.3 s"):
            envs.step(zeros(envs))
        os.kill(pids[1], signal.SIGKILL)  # spares this test the grace that close gives a hanging worker
        envs.close()
        assert [is_running(pid) for pid in pids] == [False, False]


ORPHANS = """
import os, sys
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import make_vector
import numpy as np

if __name__ == "__main__":
    cfg = EnvConfig(id="offpolicy.envs.toy:SlowStep-v0", kwargs={"step_ms": 60000.0}, num_envs=2, vectorization="async")
    envs = make_vector(cfg)
    envs.reset(1)
    print(*(process.pid for process in envs.processes), flush=True)
    envs.step(np.zeros((2, 2), np.float32))
"""


@pytest.mark.promise("no-orphan")
def test_workers_die_with_a_killed_parent_even_in_the_middle_of_a_step(traces: Any, tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    environ = {**os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert [is_running(pid) for pid in pids] == [True, True]
        parent.kill()
    traces.assert_none()  # processes and /dev/shm


KILLED_IN_USE = """
import os, signal
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.vector import make_vector

if __name__ == "__main__":
    make_vector(EnvConfig(id="Pendulum-v1", num_envs=2, vectorization="async")).reset(1)
    os.killpg(0, signal.SIGKILL)
"""


def test_nothing_stays_in_dev_shm_when_all_processes_are_killed_at_once(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED_IN_USE)
    before = set(os.listdir("/dev/shm"))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(script)]
    process = subprocess.run(command, env=environ, start_new_session=True, timeout=60, check=False)
    assert process.returncode == -signal.SIGKILL
    assert set(os.listdir("/dev/shm")) <= before
