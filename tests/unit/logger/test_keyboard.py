from __future__ import annotations

import io
import os
import pty
import sys
import termios
from pathlib import Path

from offpolicy.logger.keyboard import Keyboard

CHILD = """
import sys, termios
from offpolicy.logger.keyboard import Keyboard
before = termios.tcgetattr(0)
keys = Keyboard(sys.stdin)
assert keys.is_open and keys.read() == ""
print("ready", bool(termios.tcgetattr(0)[3] & termios.ECHO), bool(termios.tcgetattr(0)[3] & termios.ISIG), flush=True)
found = ""
while not found:
    found = keys.read()
keys.close()
keys.close()
print("read", found, termios.tcgetattr(0) == before, keys.read() == "", flush=True)
"""


def test_keys_are_read_without_echo_and_the_terminal_gets_its_settings_back() -> None:
    pid, master = pty.fork()  # a session of its own: its terminal is in the foreground
    if pid == 0:
        root = str(Path(__file__).resolve().parents[3])
        os.execve(sys.executable, [sys.executable, "-c", CHILD], {**os.environ, "PYTHONPATH": root})  # noqa: S606
    with os.fdopen(master, "rb", buffering=0) as terminal:
        said = b""
        while b"ready" not in said or not said.endswith(b"\n"):
            said += terminal.read(1024)
        assert b"ready False True" in said
        os.write(master, b"?")
        while b"read" not in said.partition(b"ready")[2] or not said.endswith(b"\n"):
            said += terminal.read(1024)
        assert b"read ? True True" in said
        assert os.waitpid(pid, 0)[1] == 0  # before the terminal is closed, which is a signal to its session


def test_without_a_terminal_there_are_no_keys() -> None:
    for stream in (None, io.StringIO("?")):
        keys = Keyboard(stream)
        assert (keys.is_open, keys.read()) == (False, "")
        keys.close()


def test_a_terminal_of_others_is_left_alone() -> None:
    master, slave = pty.openpty()  # it controls no session of ours: this process is not in its foreground
    with os.fdopen(slave) as stream:
        before = termios.tcgetattr(stream.fileno())
        keys = Keyboard(stream)
        assert not keys.is_open
        assert termios.tcgetattr(stream.fileno()) == before
    os.close(master)
