"""What is written is Chrome's Trace Event Format: every rule that its viewers rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.analysis.chrome_trace import read_profile, write_chrome_trace
from offpolicy.analysis.trace_reader import RECORD_TYPE, ThreadTrack, read_tracks
from offpolicy.errors import ConfigError
from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.ledger import trace_names
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.profiler import Profiler
from offpolicy.timing.trace_writer import PROFILE, Kind, Mark, create_tracks, open_track
from tests.trace_format import problems_of

MS = 1_000_000
COLLECTOR = tuple(map(str, CollectorPhase))
START = 7_000 * MS


def track(
    process: str, pid: int, names: tuple[str, ...], *rows: tuple[Kind, str, int, int], thread: str = ""
) -> ThreadTrack:
    """Records of (kind, name, ms after the start, value)."""
    records = [(START + at * MS, value, names.index(name), kind, 0) for kind, name, at, value in rows]
    return ThreadTrack(process, process, thread or process, pid, names, np.array(records, dtype=RECORD_TYPE), 0, 5)


TRACKS = [
    track(
        "learner 0", 11, trace_names(LearnerPhase),
        (Kind.SPAN, "train", 0, 4 * MS), (Kind.SPAN, "weight_publish", 4, 2 * MS), (Kind.MARK, Mark.PUBLISHED, 5, 3),
        (Kind.MARK, Mark.ITERATION, 6, 1),
    ),
    track("learner 0", 11, ("pack",), (Kind.SPAN, "pack", 1, MS + 1), thread="packer 0"),
    track(
        "collector 0", 12, trace_names(CollectorPhase),
        (Kind.SPAN, "weight_apply", 6, MS), (Kind.MARK, Mark.APPLIED, 6, 3), (Kind.MARK, Mark.APPLIED, 8, 99),
    ),
    track("supervisor", 10, ("update debt",), (Kind.COUNTER, "update debt", 2, -1500)),
]  # fmt: skip


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, Any]]:
    write_chrome_trace(tmp_path / "trace.json", TRACKS)
    content = json.loads((tmp_path / "trace.json").read_text())
    assert problems_of(content) == []
    traced: list[dict[str, Any]] = content["traceEvents"]
    return traced


def test_spans_are_in_microseconds_from_the_first_record_on_and_counters_keep_their_level(
    events: list[dict[str, Any]],
) -> None:
    spans = {event["name"]: (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert spans == {
        "train": (0.0, 4000.0), "weight_publish": (4000.0, 2000.0), "pack": (1000.0, 1000.001),
        "weight_apply": (6000.0, 1000.0),
    }  # fmt: skip
    [counter] = [event for event in events if event["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("update debt", {"update debt": -1.5})


def test_an_arrow_leads_from_publication_to_application_of_a_version(events: list[dict[str, Any]]) -> None:
    [start], [end] = ([event for event in events if event["ph"] == phase] for phase in "sf")
    assert (start["pid"], start["ts"], end["pid"], end["ts"]) == (11, 5000.0, 12, 6000.0)
    assert start["id"] == end["id"]
    assert end["name"] == "weights 3"  # who published 99 is not known


def fill(directory: Path, thread: str, phases: tuple[str, ...], mark: Mark, iterations: int) -> None:
    """A track of typical iterations, hours after the start: every phase a span, a version published or applied."""
    names = (*phases, *Mark)
    own = open_track(str(directory), thread, names, f"{thread} 0")
    assert own is not None
    for version in range(iterations):
        at = 4 * 3600 * 10**9 + version * 10 * MS
        for name in range(len(phases)):
            own.span(name, at, at + 1_234_567)
            at += 1_234_567
        own.mark(mark, at + (mark == Mark.APPLIED) * 9 * MS, version + 10**6)
        own.mark(Mark.ITERATION, at, version)


def test_a_trace_stays_below_what_was_allowed_however_long_the_run(tmp_path: Path) -> None:
    create_tracks(tmp_path / "0", ["learner", "collector"], 2)
    learner = ("collector_wait", "replay_sample", "h2d", "rank_barrier", "train", "weight_publish", "log")
    fill(tmp_path / "0", "learner", learner, Mark.PUBLISHED, 3_000)
    fill(tmp_path / "0", "collector", COLLECTOR[:5], Mark.APPLIED, 3_000)
    tracks = read_tracks(tmp_path / "0")
    assert all(track.num_lost > 0 for track in tracks)
    write_chrome_trace(tmp_path / "trace.json", tracks)
    assert 1.4e6 < (tmp_path / "trace.json").stat().st_size <= 2e6
    assert problems_of(json.loads((tmp_path / "trace.json").read_text())) == []


def test_an_operation_lies_where_the_clock_saw_it(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, at=2, count=1, warn=pytest.fail)
    matrix = torch.ones(300, 300)
    profiler.step()
    profiler.step()  # the window begins
    begin_ns = MonotonicClock.now_ns()
    for _ in range(20):
        matrix @ matrix
    end_ns = MonotonicClock.now_ns()
    profiler.step()  # and ends
    profile = read_profile(tmp_path / PROFILE, begin_ns, set())
    products = [event for event in profile if event.get("name") == "aten::mm"]
    assert len(products) == 20
    slack_us = 50.0
    assert min(event["ts"] for event in products) >= -slack_us
    assert max(event["ts"] + event["dur"] for event in products) <= (end_ns - begin_ns) / 1000.0 + slack_us


def test_the_window_has_so_many_iterations_after_that_one(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, at=2, count=3, warn=pytest.fail)
    for number in range(1, 9):
        with torch.profiler.record_function(f"iteration {number}"):
            torch.ones(3).sum()
        profiler.step()
    events = json.loads((tmp_path / PROFILE).read_text())["traceEvents"]
    names = [str(event.get("name")) for event in events]
    assert sorted({name for name in names if name.startswith("iteration ")}) == [f"iteration {n}" for n in (3, 4, 5)]


def test_a_profile_without_a_directory_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    profiler = Profiler(tmp_path / "deleted", at=1, count=1, warn=warnings.append)
    profiler.step()
    profiler.close()
    (warning,) = warnings
    assert warning.startswith("timing.profile_at: there is no profile.json: FileNotFoundError: ")


def test_a_damaged_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / PROFILE).write_text("{")
    with pytest.raises(ConfigError, match=f"{PROFILE} is damaged"):
        list(read_profile(tmp_path / PROFILE, 0, set()))
