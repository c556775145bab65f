from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.envs.worker_context import LONGEST, ErrorQueue, worker_context

REPOSITORY = Path(__file__).resolve().parents[3]
KILLED_IN_USE = """
import os, signal
from gymnasium.vector import AsyncVectorEnv
import gymnasium
from offpolicy.envs.worker_context import worker_context

if __name__ == "__main__":
    vec = AsyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2, context=worker_context())
    vec.reset(seed=1)
    os.killpg(0, signal.SIGKILL)
"""


def test_an_error_arrives_as_text_and_a_long_one_with_the_end_of_its_traceback() -> None:
    with contextlib.closing(ErrorQueue()) as queue:
        queue.put((3, ValueError, ValueError("v"), "x" * 3 * LONGEST + "end"))
        index, kind, text, trace = queue.get()
    assert (index, kind, text, len(trace), trace[-3:]) == (3, RuntimeError, "ValueError: v", LONGEST, "end")


def test_more_errors_than_fit_are_not_waited_for() -> None:
    """Gymnasium asks for one of each worker that has failed: it waited for those that were dropped, for ever."""
    with contextlib.closing(ErrorQueue()) as queue:
        for index in range(1000):
            queue.put((index, ValueError, f"of {index}", "x" * 3000))
        with pytest.raises(RuntimeError, match="^ValueError: of [0-9]+$"):
            [queue.get() for _ in range(1000)]


def test_nothing_that_the_context_makes_has_a_name() -> None:
    before = set(os.listdir("/dev/shm"))
    context = multiprocessing.get_context(worker_context())
    with contextlib.closing(context.Queue()):
        array = context.Array("f", 1000)
        assert set(os.listdir("/dev/shm")) <= before
        with array:
            assert len(array.get_obj()) == 1000


@pytest.mark.mp
def test_nothing_stays_in_dev_shm_when_all_processes_are_killed_at_once(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED_IN_USE)
    before = set(os.listdir("/dev/shm"))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(
        [sys.executable, str(script)], env=environ, start_new_session=True, timeout=60, check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert set(os.listdir("/dev/shm")) <= before
