from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from offpolicy.descendants import adopting, children_of, is_stopped, kill_adopted, reap_adopted

# Starts two processes in sessions of their own and leaves: a shell, which waits for its child, and a sleep.
LEAVE = (
    "import subprocess; [subprocess.Popen(c, start_new_session=True, shell=True) for c in ('sleep 60; :', 'sleep 60')]"
)
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_child_leaves_behind_is_adopted_and_killed_with_its_own_children() -> None:
    known = children_of(os.getpid())
    with adopting():
        subprocess.run([sys.executable, "-c", LEAVE], check=True)
        adopted = children_of(os.getpid()) - known
        assert len(adopted) == 2
        below = {pid for parent in adopted for pid in children_of(parent)}
        assert kill_adopted(known) >= 2
    assert children_of(os.getpid()) == known
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


def test_children_that_are_known_are_neither_killed_nor_reaped() -> None:
    with subprocess.Popen(SLEEP) as own:
        known = {own.pid, *children_of(os.getpid())}
        assert kill_adopted(known) == 0
        own.kill()
        wait_until(lambda: os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        reap_adopted(known)
        assert own.wait() == -signal.SIGKILL


def test_an_adopted_process_that_ends_is_reaped() -> None:
    known = children_of(os.getpid())
    with adopting():
        subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['true'])"], check=True)
        wait_until(lambda: (reap_adopted(known), children_of(os.getpid()) == known)[1])


def test_a_stopped_process_is_told_from_one_that_sleeps_or_is_gone() -> None:
    with subprocess.Popen(SLEEP) as child:
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(child.pid))
        child.kill()
    assert not is_stopped(child.pid)
