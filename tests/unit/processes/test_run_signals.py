from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from offpolicy.children import signals_blocked, signals_queued
from offpolicy.processes.run_signals import RunSignals


class Calls:
    """A run's signals, what they asked for, and a clock."""

    def __init__(self) -> None:
        self.now_s, self.made = 0.0, list[str]()
        self.signals = RunSignals(
            lambda: self.now_s,
            on_stop=lambda: self.made.append("stop"),
            on_kill=lambda: self.made.append("kill"),
            on_save=lambda: self.made.append("save"),
        )

    def send(self, number: signal.Signals, at_s: float) -> None:
        self.now_s = at_s
        os.kill(os.getpid(), number)


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    with made.signals:
        yield made


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.promise("exit-codes")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_the_first_stop_signal_decides_the_exit_code(calls: Calls, number: signal.Signals, code: int) -> None:
    calls.send(number, 1.0)
    calls.send(signal.SIGTERM, 2.0)
    assert (calls.made, calls.signals.exit_code) == (["stop"], code)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_was_ignored_at_entry_stays_ignored(number: signal.Signals) -> None:
    calls = Calls()
    with ignored(number):
        with calls.signals:
            calls.send(number, 1.0)
            assert signal.getsignal(number) == signal.SIG_IGN
        assert signal.getsignal(number) == signal.SIG_IGN
    assert calls.made == []


def test_a_second_ctrl_c_counts_once_the_first_was_shown_and_half_a_second_has_passed(calls: Calls) -> None:
    calls.send(signal.SIGINT, 1.0)
    calls.send(signal.SIGINT, 3.0)  # not shown yet
    calls.signals.show(lambda: calls.made.append("shown"))
    calls.send(signal.SIGINT, 1.4)
    assert calls.made == ["stop", "shown"]
    calls.send(signal.SIGINT, 1.6)
    assert calls.made == ["stop", "shown", "kill"]


def test_usr1_asks_for_a_checkpoint_each_time_and_stops_nothing(calls: Calls) -> None:
    for second in (1.0, 1.1):
        calls.send(signal.SIGUSR1, second)
    calls.signals.show(lambda: calls.made.append("shown"))
    assert (calls.made, calls.signals.exit_code) == (["save", "save"], 0)


def test_a_signal_that_came_between_the_claim_and_the_first_process_stops_the_run() -> None:
    calls = Calls()
    with signals_queued():
        sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))  # this thread does not block it
        with signals_blocked():
            sender.start()
            sender.join()
        assert calls.made == []
        with calls.signals:
            assert (calls.made, calls.signals.exit_code) == (["stop"], 130)


def test_a_program_with_a_wakeup_descriptor_of_its_own_gets_it_back() -> None:
    """As that of asyncio, in whose loop a notebook runs."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            with Calls().signals:
                pass
            assert signal.set_wakeup_fd(before) == writer.fileno()
        finally:
            signal.set_wakeup_fd(before)


def test_a_kept_stop_interrupts_what_may_be_interrupted_and_stays_kept() -> None:
    def read(*numbers: signal.Signals) -> None:
        with kept.stops_raise():
            for number in numbers:
                os.kill(os.getpid(), number)

    with signals_queued() as kept:
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
from offpolicy.children import signals_queued

class Late:
    def __del__(self):  # when the interpreter has taken down its handlers
        os.kill(os.getpid(), signal.SIGNUMBER)

late = Late()
with signals_queued(ends_process=True) as kept:
    kept.drop()
os.kill(os.getpid(), signal.SIGNUMBER)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 0), ("SIGTERM", 70), ("SIGHUP", 130), ("SIGUSR1", 0)])
def test_a_signal_after_the_end_of_a_run_does_not_change_the_exit_code(name: str, code: int) -> None:
    program = ENDING.replace("SIGNUMBER", name)
    ended = subprocess.run([sys.executable, "-c", program, str(code)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_program_that_goes_on_gets_its_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for ends_process in (False, True):  # no run has ended in the block
        with signals_queued(ends_process=ends_process) as kept:
            assert signal.getsignal(signal.SIGTERM) is kept
        assert signal.getsignal(signal.SIGTERM) is before
    with signals_queued() as kept:
        kept.drop()
    assert signal.getsignal(signal.SIGTERM) is before
