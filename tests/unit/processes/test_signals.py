from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offpolicy.processes.signals import signals_blocked, signals_kept
from tests.unit.processes.conftest import Stage

REPOSITORY = Path(__file__).resolve().parents[3]
INTERRUPTED = """
import os, signal, sys
from offpolicy.processes.signals import interrupts_exit
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
from offpolicy.processes.fork_server import call_in_child
from offpolicy.processes.signals import interrupts_exit
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
    code = "import os, signal; from offpolicy.processes.signals import drop_save_requests as drop; drop();"
    result = shell(f'"$PY" -c "{code} os.kill(os.getpid(), signal.SIGUSR1); print(1)"')
    assert (result.returncode, result.stdout) == (0, "1\n")


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_was_ignored_at_entry_stays_ignored(number: signal.Signals) -> None:
    with ignored(number):
        with signals_kept() as kept:
            os.kill(os.getpid(), number)
            assert (signal.getsignal(number), kept.take()) == (signal.SIG_IGN, [])
        assert signal.getsignal(number) == signal.SIG_IGN


def test_a_second_ctrl_c_counts_once_the_first_was_shown_and_half_a_second_has_passed() -> None:
    with Stage("learner-0") as stage:
        seen = list[float]()

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def interrupt_twice() -> None:
            interrupt()
            interrupt()  # not shown yet

        script = {0: interrupt_twice, 1: interrupt, 3: interrupt}
        stage.run(script, tick_s=0.3, on_signal=lambda: seen.append(stage.now_s))
        assert (seen, stage.now_s) == ([pytest.approx(100.3)], pytest.approx(101.5))
        assert stage.supervisor.signal_code == 130


def test_a_signal_that_came_between_the_claim_and_the_first_process_stops_the_run() -> None:
    with Stage("learner-0") as stage:
        sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))  # this thread does not block it
        with signals_blocked():
            sender.start()
            sender.join()
        assert stage.supervisor.take_signals() == 130


def test_a_program_with_a_wakeup_descriptor_of_its_own_gets_it_back() -> None:
    """As that of asyncio, in whose loop a notebook runs."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            with signals_kept() as kept:
                os.kill(os.getpid(), signal.SIGTERM)
                assert select.select([kept.fd], [], [], 20.0)[0]
                assert kept.take() == [signal.SIGTERM]
            assert signal.set_wakeup_fd(before) == writer.fileno()
        finally:
            signal.set_wakeup_fd(before)


def test_a_kept_stop_interrupts_what_may_be_interrupted_and_stays_kept() -> None:
    def read(*numbers: signal.Signals) -> None:
        with kept.stops_raise():
            for number in numbers:
                os.kill(os.getpid(), number)

    with signals_kept() as kept:
        with pytest.raises(KeyboardInterrupt):
            read(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):  # of the one that has come
            read()
        assert kept.take() == [signal.SIGTERM]
        read(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)  # nothing is read any more
        assert kept.take() == [signal.SIGUSR1, signal.SIGTERM]


ENDING = """
import os, signal, sys
from offpolicy.processes.signals import signals_kept

class Late:
    def __del__(self):  # when the interpreter has taken down its handlers
        os.kill(os.getpid(), signal.SIGNUMBER)

late = Late()
with signals_kept(ends_process=True) as kept:
    kept.drop()
os.kill(os.getpid(), signal.SIGNUMBER)
sys.exit(int(sys.argv[1]))
"""


def test_a_signal_after_the_end_of_a_run_does_not_change_the_exit_code() -> None:
    for name, code in (("SIGINT", 0), ("SIGTERM", 70), ("SIGHUP", 130), ("SIGUSR1", 0)):
        program = ENDING.replace("SIGNUMBER", name)
        ended = subprocess.run([sys.executable, "-c", program, str(code)], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (code, "")


def test_a_program_that_goes_on_gets_its_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for ends_process in (False, True):  # no run has ended in the block
        with signals_kept(ends_process=ends_process) as kept:
            assert signal.getsignal(signal.SIGTERM) is kept
        assert signal.getsignal(signal.SIGTERM) is before
    with signals_kept() as kept:
        kept.drop()
    assert signal.getsignal(signal.SIGTERM) is before
