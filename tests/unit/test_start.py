from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INTERRUPTED = """
import os, signal, sys
from offpolicy.start import interrupts_exit
class Loud:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))  # a KeyboardInterrupt in here would be printed and swallowed
with interrupts_exit():
    Loud()
    print("still here")
"""
STOPS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])


def shell(command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PY": sys.executable}
    return subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30, check=False)


@STOPS
def test_a_stop_ends_the_start_at_once_even_where_python_would_swallow_it(number: signal.Signals, code: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(int(number))],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "offpolicy: interrupted\n")


CALLING = """
import os, signal, sys, threading
from offpolicy.calls import call_in_child
from offpolicy.start import interrupts_exit
def start_programs(path):
    import subprocess, time
    pids = [subprocess.Popen(["sleep", "60"], start_new_session=True, env=env).pid for env in ({}, None)]
    with open(path + ".new", "w") as file: print(*pids, os.getpid(), file=file)
    os.rename(path + ".new", path)
    time.sleep(60)
if __name__ == "__main__":
    with interrupts_exit():
        call_in_child("calling:start_programs", sys.argv[1])
"""


@STOPS
def test_a_stop_during_a_call_in_a_child_ends_what_the_child_has_started(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    (tmp_path / "calling.py").write_text(CALLING)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "calling.py", "pids"], cwd=tmp_path, env=environ) as process:
        deadline_s = time.monotonic() + 30.0
        while not (tmp_path / "pids").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        pids = (tmp_path / "pids").read_text().split()
        process.send_signal(number)
        assert process.wait(30) == code
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_request_for_a_checkpoint_does_not_end_a_command_that_is_still_starting() -> None:
    code = "import os, signal; from offpolicy.start import drop_save_requests as drop; drop();"
    result = shell(f'"$PY" -c "{code} os.kill(os.getpid(), signal.SIGUSR1); print(1)"')
    assert (result.returncode, result.stdout) == (0, "1\n")
