"""What a clock says where the kernel does not help."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from offpolicy.timing import clock
from offpolicy.timing.clock import queued_ns, scheduler_stats, thread_times


def missing(path: Path) -> NoReturn:
    raise FileNotFoundError(path)


def test_without_proc_no_thread_is_known_to_have_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", missing)
    assert queued_ns() == 0


def test_the_time_that_threads_waited_for_a_core_is_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file holds the time on a core, the time without one, and the number of turns."""
    for tid, schedstat in (("7", "100 20 3\n"), ("8", "400 5 6\n"), ("9", "")):
        (tmp_path / tid).mkdir()
        (tmp_path / tid / "schedstat").write_text(schedstat)
    (tmp_path / "10").mkdir()  # a thread that has ended meanwhile
    tasks = list(tmp_path.iterdir())
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(tasks))
    assert queued_ns() == 25


def test_a_preemption_is_a_core_that_was_taken_and_not_one_that_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(ru_nvcsw=70, ru_nivcsw=3)
    monkeypatch.setattr(resource, "getrusage", lambda _: usage)
    assert scheduler_stats().preemptions == 3


def test_the_clocks_of_a_thread_are_read_again_where_it_lost_its_core_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walls_ns = iter([0, 5_000_000, 5_000_100, 5_009_000])
    running_ns = iter([10, 20])
    fake = SimpleNamespace(perf_counter_ns=lambda: next(walls_ns), thread_time_ns=lambda: next(running_ns))
    monkeypatch.setattr(clock, "time", fake)
    times = thread_times()
    assert (times.wall_ns, times.running_ns) == (5_009_000, 20)
