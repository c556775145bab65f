from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OPEN = "import sys; from offpolicy.start import open_streams; open_streams(); print(sys.stdout.fileno()); {then}"
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


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_opened_and_no_file_takes_their_place(closed: str, tmp_path: Path) -> None:
    code = OPEN.format(then=f"fd = open({str(tmp_path / 'f')!r}, 'w').fileno(); sys.exit(0 if fd > 2 else 1)")
    assert shell(f"$PY -c {code!r} {closed}".replace("$PY", '"$PY"')).returncode == 0


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


PRINTING = """
import sys
from offpolicy.start import drop_refused
drop_refused("stdout", "stderr")
print("out", 100_000 * "x", flush=True)
sys.stdout.buffer.write(b"bytes")
sys.stderr.write("err\\n")
sys.exit(74)
"""


@pytest.mark.promise("full-disk", "exit-codes")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_full_disk_refuses_is_dropped_and_changes_no_exit_code(unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    command = f'PYTHONUNBUFFERED={unbuffered} "$PY" {tmp_path}/printing.py'
    assert shell(f"{command} > /dev/full 2> /dev/full").returncode == 74
    written = shell(command)
    assert (written.returncode, written.stderr) == (74, "err\n")
    assert written.stdout.replace("x", "") == "out \nbytes"


STOPPING = """
import sys
from offpolicy.start import stop_refused
why_refused = stop_refused("stdout")
assert why_refused() is None
try:
    print("out", flush=True)
except OSError as error:
    assert error is why_refused()
    print("dropped", flush=True)
    sys.exit(74)
"""


def test_the_first_text_that_stdout_refuses_is_an_error_and_the_rest_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "stopping.py").write_text(STOPPING)
    command = f'"$PY" {tmp_path}/stopping.py'
    refused = shell(f"{command} > /dev/full")
    assert (refused.returncode, refused.stderr) == (74, "")
    assert (shell(command).returncode, shell(command).stdout) == (0, "out\n")
