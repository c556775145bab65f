from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.start import interrupts_exit

REPOSITORY = Path(__file__).resolve().parents[2]
OPEN = "import sys; from offpolicy.start import open_streams; open_streams(); print(sys.stdout.fileno()); {then}"
INTERRUPTED = """
import os, signal
from offpolicy.start import interrupts_exit
class Loud:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)  # a KeyboardInterrupt in here would be printed and swallowed
with interrupts_exit():
    Loud()
    print("still here")
"""


def shell(command: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PY": sys.executable}
    return subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_opened_and_no_file_takes_their_place(closed: str, tmp_path: Path) -> None:
    code = OPEN.format(then=f"fd = open({str(tmp_path / 'f')!r}, 'w').fileno(); sys.exit(0 if fd > 2 else 1)")
    assert shell(f"$PY -c {code!r} {closed}".replace("$PY", '"$PY"')).returncode == 0


def test_ctrl_c_ends_the_start_at_once_even_where_python_would_swallow_it() -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "offpolicy: interrupted\n")


def test_the_handler_of_a_caller_and_an_ignored_ctrl_c_stay() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.SIG_IGN, lambda *_: None):
            signal.signal(signal.SIGINT, handler)
            with interrupts_exit():
                assert signal.getsignal(signal.SIGINT) == handler
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with interrupts_exit():
            assert signal.getsignal(signal.SIGINT) != signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
