"""The tracks of a trace: what is written is what is read, however the writer ended and however much it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offpolicy.errors import ConfigError
from offpolicy.timing import trace_writer as trace
from offpolicy.timing.ledger import Ledger, trace_names
from offpolicy.timing.phases import LearnerPhase as Phase
from offpolicy.timing.trace_reader import RECORD_TYPE, ThreadTrack, read_tracks, shrink_tracks
from offpolicy.timing.trace_writer import JSON_NBYTES, Mark, TraceTrack, create_tracks, open_track
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


def test_a_process_that_is_started_again_continues_the_track(tmp_path: Path) -> None:
    open_new(tmp_path / "0").span(NAMES.index("train"), 5 * MS, 9 * MS)
    track = open_track(str(tmp_path / "0"), "learner-0", NAMES, "learner 0")
    assert track is not None
    track.span(NAMES.index("train"), 20 * MS, 21 * MS)
    assert [times.tolist() for times in only(tmp_path / "0").spans("train")] == [[5 * MS, 20 * MS], [9 * MS, 21 * MS]]


def test_the_newest_records_replace_the_oldest(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0", records=100)
    for index in range(250):
        track.span(0, index * MS, (index + 1) * MS)
    read = only(tmp_path / "0")
    starts, _ = read.spans()
    # The oldest that is left may be half replaced: it is not read.
    assert starts.tolist() == [index * MS for index in range(151, 250)]
    assert read.num_lost == 151


def test_the_tracks_together_make_no_more_json_than_was_allowed(tmp_path: Path) -> None:
    create_tracks(tmp_path / "0", ["a", "b", "c"], 3)
    records = [(path.stat().st_size - trace.HEADER_NBYTES) // trace.RECORD.size for path in (tmp_path / "0").iterdir()]
    assert sum(records) * JSON_NBYTES <= 3e6 < (sum(records) + 3) * JSON_NBYTES


def test_a_span_below_a_microsecond_is_left_out(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0")
    track.span(0, 0, 999)
    track.span(0, 2000, 3000)
    assert [times.tolist() for times in only(tmp_path / "0").spans()] == [[2000], [3000]]


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


def test_a_full_disk_is_an_error_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trace.os, "posix_fallocate", full)
    with pytest.raises(
        ConfigError, match=r"timing.trace: 50\.0 MB for 2 tracks .*No space left.*lower timing.trace_mb"
    ):
        create_tracks(tmp_path / "0", ["learner-0", "collector-0"], 200)
    assert list(tmp_path.iterdir()) == []  # what was reserved already is given back


def test_a_quiet_thread_takes_little_of_the_room(tmp_path: Path) -> None:
    create_tracks(tmp_path / "0", ["learner-0", "collector-0"], 100, quiet=["supervisor"])
    megabytes = {path.stem: round(path.stat().st_size / 1e6) for path in (tmp_path / "0").iterdir()}
    assert megabytes == {"learner-0": 12, "collector-0": 12, "supervisor": 1}


def test_tracks_never_opened_and_unused_disk_are_removed(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0", records=1000)
    create_tracks(tmp_path / "1", ["packer-0"], 1)
    (tmp_path / "1/packer-0.lane").rename(tmp_path / "0/packer-0.lane")
    track.span(0, 0, MS)
    shrink_tracks(tmp_path / "0")
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["learner-0.lane"]
    assert (tmp_path / "0/learner-0.lane").stat().st_size == trace.HEADER_NBYTES + trace.RECORD.size
    assert len(only(tmp_path / "0").records) == 1


def test_a_track_that_is_full_keeps_its_records_when_unused_disk_is_given_back(tmp_path: Path) -> None:
    track = open_new(tmp_path / "0", records=10)
    for index in range(25):
        track.span(0, index * MS, index * MS + MS // 2)
    shrink_tracks(tmp_path / "0")
    read = only(tmp_path / "0")
    assert read.spans()[0].tolist() == [index * MS for index in range(16, 25)]  # the oldest may be half replaced
    assert read.num_lost == 16


def test_a_directory_without_tracks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no trace; train with timing.trace=true"):
        read_tracks(tmp_path)


def test_an_untraced_run_has_no_track() -> None:
    assert open_track(None, "learner-0", NAMES, "learner 0") is None


@pytest.mark.parametrize("wanted", [("learner 0", "packer 0"), ("learner 10", "learner 10")])
def test_learners_come_first_each_with_its_packer_below_it(tmp_path: Path, wanted: tuple[str, str]) -> None:
    threads = ["collector 0", "packer 1", "learner 10", "learner 1", "packer 0", "learner 0", "supervisor"]
    create_tracks(tmp_path / "0", threads, 1)
    for thread in threads:
        process = thread.replace("packer", "learner")
        track = open_track(str(tmp_path / "0"), thread, NAMES, process, thread)
        assert track is not None
        track.span(0, 0, MS)
    order = [(track.process, track.thread) for track in read_tracks(tmp_path / "0")]
    assert [thread for _, thread in order] == [
        "learner 0", "packer 0", "learner 1", "packer 1", "learner 10", "collector 0", "supervisor",
    ]  # fmt: skip
    assert wanted in order


def test_a_record_as_written_is_a_record_as_read() -> None:
    packed = trace.RECORD.pack(-1, 2, 3, 4, 0)
    assert np.frombuffer(packed, RECORD_TYPE).tolist() == [(-1, 2, 3, 4, 0)]


def test_a_header_as_written_is_a_header_as_read() -> None:
    buffer = bytearray(trace.HEADER.size)
    buffer[: len(trace.MAGIC)] = trace.MAGIC
    trace.COUNT.pack_into(buffer, trace.COUNT_AT, 7)
    trace.COUNT.pack_into(buffer, trace.LENGTH_AT, 90)
    assert trace.HEADER.unpack(buffer) == (trace.MAGIC, 7, 90)


def test_every_traced_start_has_a_directory(tmp_path: Path) -> None:
    assert trace.traced_starts(tmp_path) == []
    directories = [trace.begin_trace(tmp_path, ["learner-0"], 1) for _ in range(11)]
    assert directories[10] == tmp_path / "trace/10"
    assert trace.traced_starts(tmp_path) == list(range(11))
    assert sorted(path.name for path in directories[0].iterdir()) == ["learner-0.lane", "supervisor.lane"]
