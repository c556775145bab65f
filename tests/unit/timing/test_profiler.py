"""torch.profiler's events on the clock of the trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.profiler import PROFILE, NoProfiler, Profiler, read_profile


def test_an_operation_lies_where_the_clock_saw_it(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, first=2, count=1)
    matrix = torch.ones(300, 300)
    profiler.step()
    profiler.step()  # the window begins
    begin_ns = MonotonicClock.now_ns()
    for _ in range(20):
        matrix @ matrix
    end_ns = MonotonicClock.now_ns()
    profiler.step()  # and ends
    content = json.loads((tmp_path / PROFILE).read_text())
    products = [event for event in read_profile(content, begin_ns, set()) if event.get("name") == "aten::mm"]
    assert len(products) == 20
    slack_us = 50.0
    assert min(event["ts"] for event in products) >= -slack_us
    assert max(event["ts"] + event["dur"] for event in products) <= (end_ns - begin_ns) / 1000.0 + slack_us


def test_a_run_that_ends_inside_the_window_leaves_what_was_seen(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, first=1, count=100)
    profiler.step()
    torch.ones(3).sum()
    profiler.close()
    profiler.close()
    names = {event["name"] for event in json.loads((tmp_path / PROFILE).read_text())["traceEvents"] if "name" in event}
    assert "aten::sum" in names


def test_the_window_has_so_many_iterations(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, first=2, count=3)
    for index in range(8):
        torch.ones(index + 1).cumsum(0)
        profiler.step()
    events = json.loads((tmp_path / PROFILE).read_text())["traceEvents"]
    assert len([event for event in events if event.get("name") == "aten::cumsum"]) == 3


def test_processes_that_have_a_name_keep_it() -> None:
    clock = {"ph": "X", "name": "offpolicy clock 5000", "ts": 100.0, "dur": 0.0, "pid": 1, "tid": 1}
    names = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "python"}} for pid in (1, 0)]
    events = list(read_profile({"traceEvents": [clock, *names]}, 2000, {1}))
    assert [(event["name"], event["pid"]) for event in events] == [("offpolicy clock 5000", 1), ("process_name", 0)]
    assert events[0]["ts"] == pytest.approx(3.0)


def test_nobody_watching_costs_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    profiler = NoProfiler()
    profiler.step()
    profiler.close()
    assert list(tmp_path.iterdir()) == []
