from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offpolicy.descendants import (
    VARIABLE,
    Descendants,
    adopting,
    children_of,
    environment_of,
    is_stopped,
    start_ticks,
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


def test_an_adopted_process_that_ends_is_reaped() -> None:
    known, descendants = children_of(os.getpid()), Descendants()
    with adopting():
        subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['true'])"], check=True)
        wait_until(lambda: (descendants.reap(known), children_of(os.getpid()) == known)[1])


def test_a_stopped_process_is_told_from_one_that_sleeps_or_is_gone() -> None:
    with subprocess.Popen(SLEEP) as child:
        assert not is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(child.pid))
        child.kill()
    assert not is_stopped(child.pid)


def test_a_process_whose_name_is_no_utf_8_is_read_like_any_other() -> None:
    rename = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xe6\\x97 ) \\xa5'); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", rename], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            found = child.pid in children_of(os.getpid()), start_ticks(child.pid) is not None
        finally:
            child.kill()
        assert found == (True, True)
        wait_until(lambda: has_ended(child.pid))
        assert start_ticks(child.pid) is None  # ended, although nobody has reaped it


def test_what_one_child_has_left_behind_is_told_from_what_another_one_has() -> None:
    descendants = Descendants()
    with adopting():
        known = children_of(os.getpid())
        for name in ("collector 0", "collector 10"):
            environment = descendants.environment(os.environ, of=name)
            subprocess.run([sys.executable, "-c", LEAVE], check=True, env=environment)
        assert [len(descendants.left(known, of=name)) for name in ("collector 0", "collector 1")] == [2, 0]
        assert descendants.kill(known, of="collector 0") >= 2
        assert len(descendants.left(known)) == 2
        assert descendants.kill(known) >= 2
    assert children_of(os.getpid()) == known


def test_a_dead_stranger_does_not_keep_adopted_processes_from_being_reaped() -> None:
    descendants = Descendants()
    with adopting(), subprocess.Popen(["true"]) as stranger:
        wait_until(lambda: has_ended(stranger.pid))
        known = children_of(os.getpid())
        for _ in range(3):
            subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['true'])"], check=True)
        wait_until(lambda: (descendants.reap(known), children_of(os.getpid()) == known)[1])
        assert stranger.wait() == 0


def test_a_process_that_the_kernel_holds_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpolicy.descendants.KILL_TIMEOUT_S", 0.05)
    descendants, known = Descendants(), children_of(os.getpid())
    with adopting(), monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: None)  # as if it had no effect
        subprocess.run([sys.executable, "-c", LEAVE], check=True, env=descendants.environment(os.environ))
        assert descendants.kill(known) == 0
        patch.undo()
        monkeypatch.undo()
        assert descendants.kill(known) >= 2


def test_a_process_that_begins_another_program_is_asked_again_for_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descendants, known, read = Descendants(), children_of(os.getpid()), Path.read_bytes
    looks: Counter[Path] = Counter()

    def empty_twice(path: Path) -> bytes:  # as the kernel gives it between two programs
        looks[path] += 1
        return b"" if path.name == "environ" and looks[path] <= 2 else read(path)

    monkeypatch.setattr(Path, "read_bytes", empty_twice)
    with adopting():
        subprocess.run([sys.executable, "-c", LEAVE], check=True, env=descendants.environment(os.environ))
        assert len(descendants.left(known)) == 2
        assert descendants.kill(known) >= 2


def test_a_process_that_has_ended_has_no_environment() -> None:
    with subprocess.Popen(["true"]) as ended:
        wait_until(lambda: has_ended(ended.pid))
        assert environment_of(ended.pid) == b""
