from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.children import RUN_SIGNALS
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


def test_the_longest_error_that_there_is_fits_into_one_message() -> None:
    with contextlib.closing(ErrorQueue()) as queue:
        queue.put((0, ValueError, "\x00" * 2 * LONGEST, "\U0001f600" * 2 * LONGEST))
        assert len(queue.get()[3]) == LONGEST


def test_no_error_blocks_its_worker_and_the_first_ones_arrive() -> None:
    """A socket takes 49 of 3 kB: the workers of a larger vector waited for a parent that was waiting for them."""
    with contextlib.closing(ErrorQueue()) as queue:
        for index in range(1000):
            queue.put((index, ValueError, "v", "x" * 3000))
        assert [queue.get()[0] for _ in range(10)] == list(range(10))


def test_more_errors_than_fit_are_not_waited_for() -> None:
    """Gymnasium asks for one of each worker that has failed: it waited for those that were dropped, for ever."""
    with contextlib.closing(ErrorQueue()) as queue:
        for index in range(1000):
            queue.put((index, ValueError, f"of {index}", "x" * 3000))
        with pytest.raises(RuntimeError, match="^ValueError: of [0-9]+$"):
            [queue.get() for _ in range(1000)]


def test_a_worker_begins_with_the_signals_of_the_run_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that all processes get while it starts would end it."""
    masks: list[set[int]] = []
    monkeypatch.setattr(
        multiprocessing.context.SpawnProcess,
        "start",
        lambda self: masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    )
    multiprocessing.get_context(worker_context()).Process(target=print).start()
    assert set(RUN_SIGNALS) <= masks[0]
    assert not set(RUN_SIGNALS) & signal.pthread_sigmask(signal.SIG_BLOCK, ())


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
