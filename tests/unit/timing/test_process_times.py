"""CPU time of processes, of their threads and of what they started, from the files of a made-up `/proc`, and ours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from offpolicy.timing.process_times import ProcessTimes, ThreadTime
from tests.unit.timing.fake_proc import MS, FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_process_has_the_time_of_its_clock_and_of_its_stat_where_there_is_no_clock(proc: FakeProc) -> None:
    proc.set(5, 1234)
    assert proc.times.cpu_ns(5) == 1234 * MS
    del proc.clocks_ns[5]
    assert proc.times.cpu_ns(5) == 1230 * MS  # whole ticks


def test_what_has_ended_has_no_time(proc: FakeProc) -> None:
    assert proc.times.cpu_ns(5) is None
    assert (proc.times.waited_ns(5), proc.times.children(5), list(proc.times.threads(5))) == (0, [], [])


def test_a_tree_is_all_that_runs_below_and_what_they_waited_for(proc: FakeProc) -> None:
    proc.set(1, 9000, waited_ms=500, children=(2, 3))
    proc.set(2, 100, waited_ms=20, children=(4,))
    proc.set(3, 1000)
    proc.set(4, 30)
    assert proc.times.waited_ns(1) == 500 * MS
    assert proc.times.tree_ns(1) == (100 + 20 + 30 + 1000) * MS
    assert proc.times.tree_ns(1, without=(2,)) == 1000 * MS


def test_threads_have_their_names_and_times(proc: FakeProc) -> None:
    proc.threads(5, 90, {6: ("packer", 30), 7: ("main", 20)})
    assert sorted(proc.times.threads(5)) == [
        ThreadTime(5, "main", 90 * MS), ThreadTime(6, "packer", 30 * MS), ThreadTime(7, "main", 20 * MS)
    ]  # fmt: skip


def test_without_schedstat_a_thread_has_the_time_of_its_stat(proc: FakeProc) -> None:
    proc.set(5, 90)
    (proc.root / "5/task/5/schedstat").unlink()
    (proc.root / "5/task/5/stat").write_text((proc.root / "5/stat").read_text())
    assert list(proc.times.threads(5)) == [ThreadTime(5, "main", 90 * MS)]


def test_idle_time_is_that_of_the_cores_asked_for_waiting_for_disks_included(proc: FakeProc) -> None:
    proc.idle_ms(5000, 3000, 700)
    assert proc.times.idle_ns((0, 2)) == 5700 * MS


def test_the_idle_time_of_many_cores_is_read_to_the_end(proc: FakeProc) -> None:
    proc.idle_ms(*range(100_000, 104_096))
    assert (proc.root / "stat").stat().st_size > 100_000
    assert proc.times.idle_ns((0, 4095)) == pytest.approx((100_000 + 104_095) * MS, abs=20 * MS)


def test_a_core_that_the_kernel_hides_is_an_error(proc: FakeProc) -> None:
    with pytest.raises(OSError, match="cpu5"):
        proc.times.idle_ns((0, 5))


def test_the_kernel_tells_the_time_of_another_process_its_threads_and_its_children() -> None:
    program = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        times = ProcessTimes()
        deadline = time.monotonic() + 20.0
        while not times.children(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        (sleeper,) = times.children(child.pid)
        used_ns, (main,) = times.cpu_ns(child.pid), times.threads(child.pid)
        os.kill(sleeper, 9)
        child.kill()
    assert used_ns is not None
    assert main.tid == child.pid
    assert 0 < main.cpu_ns <= used_ns
    assert times.cpu_ns(child.pid) is None


def test_the_time_of_a_process_holds_that_of_its_threads_also_of_those_that_ended() -> None:
    def burn() -> None:
        until_ns = time.thread_time_ns() + 30 * MS
        while time.thread_time_ns() < until_ns:
            pass

    before_ns = ProcessTimes().cpu_ns(os.getpid())
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    after_ns = ProcessTimes().cpu_ns(os.getpid())
    assert before_ns is not None
    assert after_ns is not None
    assert after_ns - before_ns >= 30 * MS
