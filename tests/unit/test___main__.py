"""`python -m offpolicy` is the command `offpolicy`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_module_is_the_command_and_a_full_disk_under_stderr_does_not_change_its_exit_code() -> None:
    command = [sys.executable, "-m", "offpolicy", "train", "sead=1"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "did you mean seed?" in result.stderr
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, cwd=REPOSITORY, stderr=full, timeout=60, check=False).returncode == 2


START = """
import os, signal, sys, threading, time
from offpolicy.__main__ import main
def interrupt():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # before the first line of `main`
        time.sleep(0.001)
    time.sleep(float(os.environ["DELAY"]))
    os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["offpolicy", "train", "run_dir=run"]
threading.Thread(target=interrupt, daemon=True).start()
sys.exit(main())
"""


@pytest.mark.parametrize("delay_s", [0.03, 0.2, 0.6])
def test_ctrl_c_at_any_instant_of_the_start_ends_it_with_130_and_no_traceback(delay_s: float, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DELAY": str(delay_s)}
    command = [sys.executable, "-c", START]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 130
    assert "Traceback" not in result.stderr
    if result.stderr == "offpolicy: interrupted\n":  # before any process had been started
        assert list(tmp_path.iterdir()) == []


HELD = """
import multiprocessing, sys, threading
from offpolicy import __main__, cli
from offpolicy.processes import child
def command():
    {left}.start()
    {end}
cli.main, child.GRACE_S = command, 0.1
sys.exit(__main__.main())
"""
THREAD = "threading.Thread(target=threading.Event().wait)"
PROCESS = "multiprocessing.get_context('fork').Process(target=threading.Event().wait, args=(120,))"


@pytest.mark.parametrize(
    ("left", "end", "code", "words"),
    [
        (THREAD, "return 3", 3, ""),
        (THREAD, "raise RuntimeError('gone')", 1, "RuntimeError: gone"),
        (PROCESS, "return 3", 3, ""),  # the wait for its output would not end if the process lived on
    ],
)
def test_what_an_environment_left_running_does_not_hold_a_command(left: str, end: str, code: int, words: str) -> None:
    command = [sys.executable, "-c", HELD.format(left=left, end=end)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == code
    assert words in result.stderr
