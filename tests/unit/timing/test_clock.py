"""What a clock says where the kernel does not help."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from offpolicy.timing import clock
from offpolicy.timing.clock import queued_ns, thread_times


def missing(path: Path) -> NoReturn:
    raise FileNotFoundError(path)


def test_without_proc_no_thread_is_known_to_have_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", missing)
    assert queued_ns() == 0


def test_the_clocks_of_a_thread_are_read_again_where_it_lost_its_core_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walls_ns = iter([0, 5_000_000, 5_000_100, 5_009_000])
    running_ns = iter([10, 20])
    fake = SimpleNamespace(perf_counter_ns=lambda: next(walls_ns), thread_time_ns=lambda: next(running_ns))
    monkeypatch.setattr(clock, "time", fake)
    times = thread_times()
    assert (times.wall_ns, times.running_ns) == (5_009_000, 20)
