"""The tracks of a trace: what is written is what is read, however the writer ended and however much it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.analysis.trace_reader import ThreadTrack, read_tracks, shrink_tracks
from offpolicy.errors import ConfigError
from offpolicy.timing import trace_writer as trace
from offpolicy.timing.ledger import Ledger, trace_names
from offpolicy.timing.phases import LearnerPhase as Phase
from offpolicy.timing.trace_writer import Mark, TraceTrack, create_tracks, open_track
from tests.fakes import FakeClock

NAMES = trace_names(Phase)
MS = 1_000_000


def open_new(directory: Path, *, records: int = 10_000) -> TraceTrack:
    """A track of learner 0 with room for so many records, or a few more."""
    create_tracks(directory, ["learner-0"], 1)
    path = directory / "learner-0.lane"
    os.truncate(path, trace.HEADER_NBYTES + records * trace.RECORD.size)
    track = open_track(str(directory), "learner-0", NAMES, "learner 0")
    assert track is not None
    return track


def only(directory: Path) -> ThreadTrack:
    [track] = read_tracks(directory)
    return track


def test_spans_and_marks_arrive_as_they_were(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0")
    track.span(NAMES.index("train"), 5 * MS, 9 * MS)
    track.mark(Mark.PUBLISHED, 9 * MS, 41)
    track.span(NAMES.index("log"), 9 * MS, 10 * MS)
    read = only(tmp_path / "0")
    assert (read.name, read.process, read.thread, read.pid) == ("learner-0", "learner 0", "learner 0", os.getpid())
    assert [times.tolist() for times in read.spans("train")] == [[5 * MS], [9 * MS]]
    assert [times.tolist() for times in read.spans()] == [[5 * MS, 9 * MS], [9 * MS, 10 * MS]]
    assert read.marks(Mark.PUBLISHED) == [(9 * MS, 41)]
    assert read.num_lost == 0


def test_the_newest_records_replace_the_oldest(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0", records=100)
    for index in range(250):
        track.span(0, index * MS, (index + 1) * MS)
    read = only(tmp_path / "0")
    starts, _ = read.spans()
    # The oldest that is left may be half replaced: it is not read.
    assert starts.tolist() == [index * MS for index in range(151, 250)]
    assert read.num_lost == 151


def test_a_ledger_writes_its_phases_and_iterations_and_leaves_other_out(tmp_path: Path) -> None:
    clock = FakeClock()
    ledger = Ledger(Phase, clock, trace=open_new(tmp_path / "0"))
    for _ in range(2):
        with ledger.phase(Phase.TRAIN):
            clock.advance(5 * MS)
            with ledger.phase(Phase.PARAM_SYNC):
                clock.advance(2 * MS)
            clock.advance(MS)
        clock.advance(3 * MS)
        ledger.close()
    read = only(tmp_path / "0")
    assert [times.tolist() for times in read.spans("train")] == [
        [0, 7 * MS, 11 * MS, 18 * MS],
        [5 * MS, 8 * MS, 16 * MS, 19 * MS],
    ]
    assert read.spans("other")[0].tolist() == []
    assert read.marks(Mark.ITERATION) == [(11 * MS, 1), (22 * MS, 2)]


KILLED = """
import sys, time
from offpolicy.timing.trace_writer import open_track
track = open_track(sys.argv[1], "learner-0", ("train",), "learner 0")
for index in range(1000):
    track.span(0, index * 5000, index * 5000 + 4000)
print("written", flush=True)
time.sleep(60)
"""


def test_the_records_of_a_killed_process_are_kept(tmp_path: Path) -> None:
    create_tracks(tmp_path / "0", ["learner-0"], 1)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    assert len(only(tmp_path / "0").records) == 1000


def test_tracks_never_opened_and_unused_disk_are_removed(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0", records=1000)
    create_tracks(tmp_path / "1", ["packer-0"], 1)
    (tmp_path / "1/packer-0.lane").rename(tmp_path / "0/packer-0.lane")
    track.span(0, 0, MS)
    shrink_tracks(tmp_path / "0")
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["learner-0.lane"]
    assert (tmp_path / "0/learner-0.lane").stat().st_size == trace.HEADER_NBYTES + trace.RECORD.size
    assert len(only(tmp_path / "0").records) == 1


def test_a_directory_without_tracks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no trace; train with timing.trace=true"):
        read_tracks(tmp_path)


def test_every_traced_start_has_a_directory(tmp_path: Path) -> None:
    assert trace.traced_starts(tmp_path) == []
    directories = [trace.begin_trace(tmp_path, ["learner-0"], 1) for _ in range(11)]
    assert directories[10] == tmp_path / "trace/10"
    assert trace.traced_starts(tmp_path) == list(range(11))
    assert sorted(path.name for path in directories[0].iterdir()) == ["learner-0.lane", "supervisor.lane"]
