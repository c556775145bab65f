from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offpolicy.descendants import (
    VARIABLE,
    Descendants,
    adopting,
    children_of,
)

# Starts two processes in sessions of their own and leaves: a shell, which waits for its child, and a sleep.
LEAVE = (
    "import subprocess; [subprocess.Popen(c, start_new_session=True, shell=True) for c in ('sleep 60; :', 'sleep 60')]"
)
# Starts a process with nothing of its own environment, and stays until its input ends.
LEAVE_UNMARKED = (
    "import subprocess, sys; subprocess.Popen(['/bin/sleep', '60'], env={}, stdout=-3); print(); sys.stdin.read()"
)
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


@pytest.mark.promise("no-orphan")
def test_what_a_child_leaves_behind_is_adopted_and_killed_with_its_own_children() -> None:
    known, descendants = children_of(os.getpid()), Descendants()
    with adopting():
        subprocess.run([sys.executable, "-c", LEAVE], check=True, env=descendants.environment(os.environ))
        adopted = descendants.left(known)
        assert len(adopted) == 2
        below = {pid for parent in adopted for pid in children_of(parent)}
        assert descendants.kill(known) >= 2
    assert children_of(os.getpid()) == known
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


def test_children_that_another_part_of_the_program_has_started_are_neither_killed_nor_reaped() -> None:
    descendants = Descendants()
    with ThreadPoolExecutor(1) as thread, adopting():
        others = [subprocess.Popen(SLEEP), thread.submit(subprocess.Popen, SLEEP).result()]
        assert descendants.left(()) == set()
        assert descendants.kill(()) == 0
        for other in others:
            other.kill()
            wait_until(lambda pid=other.pid: has_ended(pid))
        descendants.reap({others[0].pid})  # the main thread's is known
        assert descendants.kill({others[0].pid}) == 0
        assert [other.wait() for other in others] == [-signal.SIGKILL] * 2


def test_a_descendant_with_another_environment_is_known_if_its_parent_was_seen_alive() -> None:
    known, descendants = children_of(os.getpid()), Descendants()
    with adopting():
        parent = subprocess.Popen(
            [sys.executable, "-c", LEAVE_UNMARKED],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=descendants.environment(os.environ),
        )  # fmt: skip
        assert parent.stdout is not None
        parent.stdout.readline()
        descendants.note([parent.pid])
        parent.communicate()
        assert descendants.kill(known) == 1
    assert children_of(os.getpid()) == known


def test_a_descendant_below_another_run_keeps_both_marks() -> None:
    outer, inner = Descendants(), Descendants()
    both = inner.environment(outer.environment({}))[VARIABLE].split(":")
    assert both == [outer.environment({})[VARIABLE], inner.environment({})[VARIABLE]]
    with adopting():
        subprocess.run([sys.executable, "-c", LEAVE], check=True, env=inner.environment(outer.environment(os.environ)))
        assert len(outer.left(())) == len(inner.left(())) == 2
        assert outer.kill(()) >= 2
