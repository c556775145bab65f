"""A panel on a real terminal, under a parent that does what a shell does with its jobs, and the keys it reads."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_S = 30.0
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
# The parent is the session's leader; the job has its own process group, in the foreground or not.
JOB = """
import os, signal, sys, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job:
    def report(word):
        os.write(1, word.encode() + b"\\n")
    os.setpgid(job, job)
    os.tcsetpgrp(0, job)
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            os.tcsetpgrp(0, os.getpgrp())
            report(f"EXITED {os.waitstatus_to_exitcode(status)}")
            sys.exit(0)
        os.tcsetpgrp(0, os.getpgrp())
        report("STOPPED")
        command = os.read(0, 64).decode().strip()
        if command == "fg":
            os.tcsetpgrp(0, job)
        report("CONTINUED")
        os.killpg(job, signal.SIGCONT)
        if command == "bg":
            os.read(0, 64)
            report("FOREGROUND")
            os.tcsetpgrp(0, job)
signal.signal(signal.SIGTTOU, signal.SIG_DFL)
while os.tcgetpgrp(0) != os.getpgrp():
    time.sleep(0.01)
from offpolicy.logger.view import open_view
from offpolicy.logger.record import RunHeader
view = open_view("auto", sys.stdout, RunHeader(algo="sac", env_id="X", seed=1, mode="free", total_timesteps=9))
view.status("starting")
number = 0
while number < 2000 and not os.path.exists(sys.argv[1]):  # it ends, whatever becomes of the test
    number += 1
    view.status(f"frame {number}")
    view.tick()
    time.sleep(0.02)
view.close()
"""


class Shell:
    """The other end of the terminal."""

    def __init__(self, end: Path) -> None:
        root = str(Path(__file__).resolve().parents[3])
        environment = {**os.environ, "PYTHONPATH": root, "TERM": "xterm-256color"}
        for name in ("TTY_COMPATIBLE", "FORCE_COLOR"):
            environment.pop(name, None)
        self.end = end
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-c", JOB, str(end)], environment)  # noqa: S606

    def read_until(self, word: bytes) -> bytes:
        """Returns what the terminal gets up to and with `word`."""
        said, deadline_s = b"", time.monotonic() + LIMIT_S
        while word not in said:
            assert time.monotonic() < deadline_s, said
            if select.select([self.master], [], [], 0.1)[0]:
                said += os.read(self.master, 1)
        return said

    def read_for(self, seconds: float) -> bytes:
        """Returns what the terminal gets within a time."""
        said, end_s = b"", time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if select.select([self.master], [], [], left_s)[0]:
                said += os.read(self.master, 4096)
        return said

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    @property
    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self.master)[3] & termios.ECHO)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "end")
    yield shell
    shell.end.touch()  # for a job in the background: the others get a hang-up
    os.kill(shell.pid, signal.SIGKILL)
    os.close(shell.master)
    os.waitpid(shell.pid, 0)


def test_keys_are_read_and_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(shell: Shell) -> None:
    shell.read_until(b"frame 3")
    assert not shell.has_echo
    shell.type(b"?")
    shell.read_until(b"two sides are never added")
    shell.type(b" ")
    shell.read_until(b"frame ")
    for _ in range(2):
        shell.type(b"\x1a")
        said = shell.read_until(b"STOPPED")
        assert b"\x1b[?25h" in said  # the cursor
        assert LEAVE in said
        assert shell.has_echo
        shell.type(b"fg\n")
        shell.read_until(b"CONTINUED")
        said = shell.read_until(b"frame ")
        assert ENTER in said
        assert not shell.has_echo
    shell.end.touch()
    assert LEAVE in shell.read_until(b"EXITED 0")
    assert shell.has_echo


def move_to_background(shell: Shell) -> None:
    shell.read_until(b"frame 3")
    shell.type(b"\x1a")
    shell.read_until(b"STOPPED")
    shell.type(b"bg\n")
    shell.read_until(b"CONTINUED\r\n")


@pytest.mark.slow
def test_nothing_is_drawn_in_the_background(shell: Shell) -> None:
    move_to_background(shell)
    assert shell.read_for(0.5) == b""
    assert shell.has_echo
    shell.type(b"\n")
    shell.read_until(b"FOREGROUND")
    assert ENTER in shell.read_until(b"frame ")
    shell.end.touch()
    shell.read_until(b"EXITED 0")
    assert shell.has_echo
