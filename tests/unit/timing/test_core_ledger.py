"""The account of a host's cores, on a made-up `/proc`: it closes, and every process and thread is in its class."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpolicy.machine import CpuQuota
from offpolicy.timing.core_ledger import CoreLedger, open_core_ledger
from offpolicy.types import CoreTotals
from tests.fakes import FakeClock
from tests.unit.timing.fake_proc import MS, FakeProc

SUPERVISOR, LEARNER, COLLECTOR, EVALUATOR = 1, 10, 20, 30


class Host:
    """Two cores, a supervisor that has used 500 ms before the run, and its children."""

    def __init__(self, root: Path, *quotas: CpuQuota) -> None:
        self.proc, self.clock = FakeProc(root), FakeClock()
        self.proc.set(SUPERVISOR, 500, children=(LEARNER, COLLECTOR, EVALUATOR))
        self._idle_ms = 10_000
        self.proc.idle_ms(self._idle_ms, 10_000)
        self.ledger = CoreLedger(self.proc.times, self.clock, (0, 1), quotas, SUPERVISOR)
        for role, pid in (("learner", LEARNER), ("collector", COLLECTOR), ("evaluator", EVALUATOR)):
            self.ledger.add(role, pid)

    def read(self, idle_ms: int) -> CoreTotals:
        """Returns the account one second later, in which the cores were idle for so long in total."""
        self.clock.advance(1000 * MS)
        self._idle_ms += idle_ms
        self.proc.idle_ms(self._idle_ms, 10_000)
        return self.ledger.read()


def milliseconds(totals: CoreTotals) -> dict[str, float]:
    """The classes with any time."""
    return {row: ns / MS for row, ns in totals.classes_ns.items() if ns}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_every_process_and_thread_is_in_its_class_and_the_rest_is_that_of_others(host: Host) -> None:
    names = {11: ("main", 240), 12: ("packer", 60), 13: ("lifeline", 0), 14: ("pt_autograd_0", 30)}
    host.proc.set(LEARNER, 800)
    host.proc.threads(LEARNER, 800, names)
    host.proc.thread(LEARNER, LEARNER, "main", 460)  # and 10 ms of a thread that has ended
    host.proc.set(COLLECTOR, 90, children=(21, 22))
    host.proc.set(21, 120)
    host.proc.set(22, 100)
    host.proc.set(EVALUATOR, 40, children=(31,))
    host.proc.set(31, 50)
    host.proc.set(SUPERVISOR, 505, children=(LEARNER, COLLECTOR, EVALUATOR, 40))
    host.proc.set(40, 15)  # a service of a sink
    totals = host.read(idle_ms=500)
    assert milliseconds(totals) == {
        "learner": 460, "openmp": 240, "packer": 60, "learner_other": 40, "collector": 90, "env_workers": 220,
        "evaluator": 90, "supervisor": 20, "others": 280, "idle": 500,
    }  # fmt: skip


def test_a_reading_that_fails_belongs_to_the_next_one(host: Host) -> None:
    host.clock.advance(1000 * MS)
    host.proc.set(LEARNER, 300)
    host.proc.idle_ms(10_500)  # the second core is gone
    with pytest.raises(OSError, match="cpu1"):
        host.ledger.read()
    assert milliseconds(host.read(idle_ms=3000)) == {"learner": 300, "others": 700, "idle": 3000}


def test_what_a_learner_has_started_evaluates(host: Host) -> None:
    host.proc.set(LEARNER, 0, children=(15,))
    host.proc.set(15, 120)
    host.proc.set(EVALUATOR, 30)
    assert milliseconds(host.read(idle_ms=1850)) == {"evaluator": 150, "idle": 1850}


def test_the_classes_sum_to_the_cores_times_the_wall_at_every_reading(host: Host) -> None:
    for second in range(1, 4):
        host.proc.set(LEARNER, 700 * second)
        host.proc.set(COLLECTOR, 333 * second)
        totals = host.read(idle_ms=500)
        assert sum(totals.classes_ns.values()) == totals.capacity_ns == 2 * totals.wall_ns == 2000 * second * MS


def test_a_process_that_ended_keeps_its_time_and_the_one_that_waited_for_it_does_not_count_it_again(host: Host) -> None:
    host.proc.set(COLLECTOR, 0, children=(21, 22))
    host.proc.set(21, 300)
    host.proc.set(22, 100)
    assert milliseconds(host.read(idle_ms=0))["env_workers"] == 400
    host.proc.end(21)
    host.proc.set(COLLECTOR, 0, waited_ms=350, children=(22,))
    assert milliseconds(host.read(idle_ms=0))["env_workers"] == 450


def test_a_process_that_starts_and_ends_between_two_readings_is_counted_once_its_parent_has_waited(host: Host) -> None:
    host.proc.set(COLLECTOR, 10)
    host.read(idle_ms=0)
    host.proc.set(COLLECTOR, 10, waited_ms=250)
    assert milliseconds(host.read(idle_ms=0))["env_workers"] == 250


def test_a_worker_that_nobody_waited_for_keeps_what_was_counted(host: Host) -> None:
    host.proc.set(COLLECTOR, 0, children=(21, 22))
    host.proc.set(21, 300)
    host.proc.set(22, 100)
    host.read(idle_ms=0)
    host.proc.end(21)
    host.proc.set(COLLECTOR, 0, children=(22,))
    host.proc.set(22, 160)
    host.read(idle_ms=0)
    host.proc.set(22, 180)
    assert milliseconds(host.read(idle_ms=0))["env_workers"] == 400 + 20


def test_the_last_time_of_a_thread_that_ended_stays_with_its_process(host: Host) -> None:
    host.proc.threads(LEARNER, 400, {11: ("main", 100)})
    host.proc.thread(LEARNER, LEARNER, "main", 300)
    host.read(idle_ms=0)
    for path in (host.proc.root / f"{LEARNER}/task/11").iterdir():
        path.unlink()
    (host.proc.root / f"{LEARNER}/task/11").rmdir()
    host.proc.clocks_ns[LEARNER] = 450 * MS
    classes = milliseconds(host.read(idle_ms=0))
    assert (classes["learner"], classes["openmp"], classes["learner_other"]) == (300, 100, 50)


def test_a_learner_that_has_ended_changes_nothing_more(host: Host) -> None:
    host.proc.set(LEARNER, 700)
    before = milliseconds(host.read(idle_ms=0))
    host.proc.end(LEARNER)
    assert milliseconds(host.read(idle_ms=0))["learner"] == before["learner"] == 700


def test_a_reading_ahead_of_the_idle_time_is_evened_out_by_the_next_one(host: Host) -> None:
    host.proc.set(LEARNER, 1000)
    assert milliseconds(host.read(idle_ms=1010))["others"] == -10
    host.proc.set(LEARNER, 2000)
    classes = milliseconds(host.read(idle_ms=990))
    assert (classes["idle"], "others" in classes) == (2000, False)


# -- quotas -----------------------------------------------------------------------------------------------------------


def quota(directory: Path, cores: float, used_ms: int) -> CpuQuota:
    directory.mkdir(exist_ok=True)
    (directory / "cpu.stat").write_text(f"usage_usec {used_ms * 1000}\nuser_usec 5\n")
    return CpuQuota(cores, directory)


def test_the_capacity_is_the_quota_and_what_it_leaves_is_idle(tmp_path: Path) -> None:
    host = Host(tmp_path, quota(tmp_path / "group", 1.5, 500))
    host.proc.set(LEARNER, 900)
    quota(tmp_path / "group", 1.5, 1400)
    totals = host.read(idle_ms=1100)
    assert totals.capacity_ns == 1500 * MS
    assert milliseconds(totals) == {"learner": 900, "idle": 600}


def test_others_outside_of_the_group_take_only_what_the_quota_would_have_given(tmp_path: Path) -> None:
    host = Host(tmp_path, quota(tmp_path / "group", 1.5, 500))
    host.proc.set(LEARNER, 900)
    quota(tmp_path / "group", 1.5, 1400)
    totals = host.read(idle_ms=100)  # of the two cores, others had one whole
    assert milliseconds(totals) == {"learner": 900, "others": 500, "idle": 100}


def test_others_within_the_group_use_its_quota_up(tmp_path: Path) -> None:
    host = Host(tmp_path, quota(tmp_path / "group", 1.5, 500))
    host.proc.set(LEARNER, 900)
    quota(tmp_path / "group", 1.5, 2000)
    totals = host.read(idle_ms=500)  # idle, and forbidden
    assert milliseconds(totals) == {"learner": 900, "others": 600}


def test_what_a_group_has_used_is_counted_once(tmp_path: Path) -> None:
    host = Host(tmp_path, quota(tmp_path / "group", 1.5, 500))
    host.proc.set(LEARNER, 900)
    quota(tmp_path / "group", 1.5, 1400)
    host.read(idle_ms=1100)
    host.proc.set(LEARNER, 1800)
    quota(tmp_path / "group", 1.5, 2300)
    assert milliseconds(host.read(idle_ms=1100)) == {"learner": 1800, "idle": 1200}


def test_of_a_group_whose_use_is_not_known_we_are_all(tmp_path: Path) -> None:
    host = Host(tmp_path, CpuQuota(1.0, tmp_path / "nowhere"))
    host.proc.set(LEARNER, 700)
    assert milliseconds(host.read(idle_ms=1300)) == {"learner": 700, "idle": 300}


# -- this machine -----------------------------------------------------------------------------------------------------


def test_with_timing_off_there_is_no_ledger() -> None:
    assert open_core_ledger(is_enabled=False) is None


def test_on_this_machine_our_own_work_is_that_of_the_supervisor() -> None:
    begun_ns = time.monotonic_ns()
    ledger = open_core_ledger(is_enabled=True)
    assert ledger is not None
    until_ns = time.process_time_ns() + 100 * MS
    while time.process_time_ns() < until_ns:
        pass
    totals = ledger.read()
    assert sum(totals.classes_ns.values()) == totals.capacity_ns == int(ledger.capacity * totals.wall_ns)
    assert 100 * MS <= totals.classes_ns["supervisor"] <= time.monotonic_ns() - begun_ns


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Twenty processes."""
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(20)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.alone
def test_a_reading_of_twenty_processes_takes_less_than_two_milliseconds(sleepers: list[int]) -> None:
    ledger = open_core_ledger(is_enabled=True)
    assert ledger is not None
    for pid in sleepers:
        ledger.add("collector", pid)
    taken_ns = []
    for _ in range(50):
        began_ns = time.thread_time_ns()
        ledger.read()
        taken_ns.append(time.thread_time_ns() - began_ns)
    assert statistics.median(taken_ns) < 2 * MS
