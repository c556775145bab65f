"""The account of a host's cores, on a made-up `/proc`: it closes, and every process and thread is in its class."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from offpolicy.machine import CpuQuota
from offpolicy.timing.core_ledger import TICK_NS, CoreLedger, ProcessTimes, open_core_ledger
from offpolicy.types import CoreTotals
from tests.fakes import FakeClock

MS = 1_000_000
STAT = "{} (a name) with) parentheses) S 1 1 1 0 -1 4194304 104 0 0 0 {} {} {} {} 20 0 1 0 1378690 2998272"


class FakeProc:
    """Writes the files that `ProcessTimes` reads. The CPU clocks of processes are exact and need no file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clocks_ns: dict[int, int] = {}
        self.idle_ms(0, 0)

    @property
    def times(self) -> ProcessTimes:
        return ProcessTimes(str(self.root), self._clock_ns)

    def _clock_ns(self, pid: int) -> int:
        if pid not in self.clocks_ns:
            raise ProcessLookupError
        return self.clocks_ns[pid]

    def set(self, pid: int, cpu_ms: int, *, waited_ms: int = 0, children: Sequence[int] = ()) -> None:
        """Sets the CPU time of a process, of the children that it waited for, and its children."""
        self.clocks_ns[pid] = cpu_ms * MS
        self.thread(pid, pid, "main", cpu_ms)
        ticks = [ms * MS // TICK_NS for ms in (cpu_ms, 0, waited_ms, 0)]
        (self.root / f"{pid}/stat").write_text(STAT.format(pid, *ticks))
        (self.root / f"{pid}/task/{pid}/children").write_text(" ".join(map(str, children)) + " ")

    def thread(self, pid: int, tid: int, name: str, cpu_ms: int) -> None:
        """Sets the name and the CPU time of a thread."""
        task = self.root / f"{pid}/task/{tid}"
        task.mkdir(parents=True, exist_ok=True)
        (task / "comm").write_text(f"{name}\n")
        (task / "schedstat").write_text(f"{cpu_ms * MS} 123 4\n")

    def threads(self, pid: int, cpu_ms: int, names: Mapping[int, tuple[str, int]]) -> None:
        """Sets the CPU time of a process, and name and CPU time of its threads by their number."""
        self.set(pid, cpu_ms)
        for tid, (name, ms) in names.items():
            self.thread(pid, tid, name, ms)

    def end(self, pid: int) -> None:
        """Removes a process."""
        del self.clocks_ns[pid]
        for path in sorted((self.root / str(pid)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def idle_ms(self, *cores: int) -> None:
        """Sets the idle time of each core; a tenth of it is time in which it waited for a disk."""
        lines = [f"cpu{i} 7 7 7 {ms // 10 - ms // 100} {ms // 100} 0 7 7 0 0" for i, ms in enumerate(cores)]
        (self.root / "stat").write_text("\n".join([f"cpu  1 1 1 {sum(cores)} 1 1 1 1 0 0", *lines, "intr 5"]))


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


@pytest.mark.promise("lanes-apart")
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


def quota(directory: Path, cores: float, used_ms: int) -> CpuQuota:
    directory.mkdir(exist_ok=True)
    (directory / "cpu.stat").write_text(f"usage_usec {used_ms * 1000}\nuser_usec 5\n")
    return CpuQuota(cores, directory)


def test_the_capacity_is_the_quota_what_it_leaves_is_idle_and_others_of_the_group_use_it_up(tmp_path: Path) -> None:
    host = Host(tmp_path, quota(tmp_path / "group", 1.5, 500))
    host.proc.set(LEARNER, 900)
    quota(tmp_path / "group", 1.5, 1400)
    totals = host.read(idle_ms=1100)
    assert totals.capacity_ns == 1500 * MS
    assert milliseconds(totals) == {"learner": 900, "idle": 600}
    quota(tmp_path / "group", 1.5, 2900)
    assert milliseconds(host.read(idle_ms=1500)) == {"learner": 900, "others": 1500, "idle": 600}  # idle, and forbidden


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
