"""The account of a host's cores: what each class of processes and threads used, what others used, what was idle.

It closes by construction: the classes sum to the cores that the run may use, times the wall. Those are the cores of
the affinity mask, or the quota of a cgroup where that is less. The supervisor reads it once per log interval; nothing
that trains takes part.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from offpolicy.machine import CpuQuota, cpu_quotas, usable_cores
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.phases import CoreClass
from offpolicy.types import CoreTotals

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
MAIN_CPU, WAITED_CPU = slice(11, 13), slice(13, 15)  # of the fields after the name: utime, stime; cutime, cstime
PACKER_THREAD = "packer"  # name of the thread that packs batches ahead
STARTED_BY = {
    "learner": CoreClass.EVALUATOR,  # a learner starts processes to evaluate only
    "collector": CoreClass.ENV_WORKERS,
    "evaluator": CoreClass.EVALUATOR,
}


def process_clock_ns(pid: int) -> int:
    """Returns the CPU time of a process and its threads. Raises `OSError` if there is none.

    Linux numbers the CPU clocks of processes like this (clock_getcpuclockid(3), which Python lacks).
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


class ProcessTimes:
    """CPU time of other processes and their threads, and idle time of the cores, from `/proc`.

    What has ended meanwhile reads as None, or is left out. Times of children that have ended, and idle times, are in
    units of `TICK_NS`; the others are exact.
    """

    def __init__(self, root: str = "/proc", clock_ns: Callable[[int], int] = process_clock_ns) -> None:
        self._root, self._clock_ns = root, clock_ns

    def cpu_ns(self, pid: int) -> int | None:
        """Returns the CPU time of a process."""
        with contextlib.suppress(OSError):
            return self._clock_ns(pid)
        return self._stat_ns(f"{self._root}/{pid}/stat", MAIN_CPU)  # a kernel without clocks of other processes

    def waited_ns(self, pid: int) -> int:
        """Returns the CPU time of those children of a process that ended and were waited for, and of theirs."""
        return self._stat_ns(f"{self._root}/{pid}/stat", WAITED_CPU) or 0

    def tree_ns(self, pid: int, without: Iterable[int] = ()) -> int:
        """Returns the CPU time of all processes below `pid` that run, and of what they waited for."""
        children = map(int, (self._read(f"{self._root}/{pid}/task/{pid}/children") or b"").split())
        below = (child for child in children if child not in without)
        return sum((self.cpu_ns(child) or 0) + self.waited_ns(child) + self.tree_ns(child) for child in below)

    def threads(self, pid: int) -> Iterator[tuple[int, str, int]]:
        """Yields the threads of a process: number, name and CPU time in ns."""
        tasks: list[str] = []
        with contextlib.suppress(OSError):
            tasks = os.listdir(f"{self._root}/{pid}/task")
        for tid in tasks:
            task = f"{self._root}/{pid}/task/{tid}"
            name, schedstat = self._read(f"{task}/comm"), self._read(f"{task}/schedstat")
            cpu_ns = int(schedstat.split()[0]) if schedstat else self._stat_ns(f"{task}/stat", MAIN_CPU)
            if name is not None and cpu_ns is not None:
                yield int(tid), name.decode(errors="replace").rstrip("\n"), cpu_ns

    def idle_ns(self, cpus: Iterable[int]) -> int:
        """Returns the time in which these cores had nothing to do. Raises `OSError` where the kernel hides it.

        It is measured; the other columns are samples of what ran at a tick.
        """
        wanted = {b"cpu%d" % cpu for cpu in cpus}
        lines = (line.split() for line in (self._read(f"{self._root}/stat") or b"").splitlines())
        idle = {fields[0]: int(fields[4]) + int(fields[5]) for fields in lines if fields[0] in wanted}
        if len(idle) < len(wanted):
            raise OSError(f"{self._root}/stat lacks {wanted - idle.keys()}")
        return sum(idle.values()) * TICK_NS

    def _stat_ns(self, path: str, fields: slice) -> int | None:
        """Returns the sum of two times of a `stat` file."""
        stat = self._read(path)
        if stat is None:
            return None
        # The name, in parentheses, may hold spaces and parentheses itself.
        return sum(map(int, stat[stat.rindex(b")") + 2 :].split()[fields])) * TICK_NS

    def _read(self, path: str) -> bytes | None:
        """Returns the whole content of a file; None where there is none, or its process has ended meanwhile."""
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read()
        return None


class CoreLedger:
    """The account of the cores since its construction. Raises `OSError` where the kernel does not show idle time.

    A process that starts and ends between two readings is counted with its siblings once its parent has waited for it.
    Where the parent does not wait, or has ended itself, its last CPU time counts as that of other programs.
    """

    def __init__(
        self,
        times: ProcessTimes | None = None,
        clock: Clock | None = None,
        cpus: Sequence[int] | None = None,
        quotas: Sequence[CpuQuota] | None = None,
        supervisor_pid: int | None = None,
    ) -> None:
        self._times, self._now_ns = times or ProcessTimes(), (clock or MonotonicClock()).now_ns
        self._cpus = sorted(os.sched_getaffinity(0)) if cpus is None else cpus
        self._quotas = cpu_quotas() if quotas is None else list(quotas)
        self.capacity = usable_cores(len(self._cpus), self._quotas)
        self._supervisor = os.getpid() if supervisor_pid is None else supervisor_pid
        self._roles: dict[int, str] = {}  # by pid
        self._classes_ns = dict.fromkeys(CoreClass, 0)
        self._read_ns: dict[tuple[str, int], int] = {}  # by what was read and its number: a process, tree or thread
        self._add_ours()
        self._classes_ns = dict.fromkeys(CoreClass, 0)  # without what the supervisor used before
        self._start_ns = self._last_ns = self._now_ns()
        self._idle_ns = self._times.idle_ns(self._cpus)
        self._quota_ns = [quota.used_ns() for quota in self._quotas]

    def add(self, role: str, pid: int) -> None:
        """Counts a child of the supervisor from its start on: a learner rank, a collector or the evaluator."""
        self._roles[pid] = role

    def read(self) -> CoreTotals:
        """Returns the account up to now. Raises `OSError`, and changes nothing, where a core's idle time is missing."""
        now_ns, idle_ns = self._now_ns(), self._times.idle_ns(self._cpus)
        wall_ns, idle_grown_ns = now_ns - self._last_ns, idle_ns - self._idle_ns
        self._last_ns, self._idle_ns = now_ns, idle_ns
        ours_ns = self._add_ours()
        free_ns = idle_grown_ns
        for index, quota in enumerate(self._quotas):  # or what a cgroup with a quota left unused, where that is less
            before_ns, used_ns = self._quota_ns[index], quota.used_ns()
            self._quota_ns[index] = used_ns
            # Of a group whose use is not known, we are all.
            grown_ns = ours_ns if used_ns is None or before_ns is None else used_ns - before_ns
            free_ns = min(free_ns, int(quota.cores * wall_ns) - grown_ns)
        # Neither is clamped: ticks that are not over yet can make one of them a little negative, and the next one less.
        self._classes_ns[CoreClass.IDLE] += free_ns
        self._classes_ns[CoreClass.OTHERS] += int(self.capacity * wall_ns) - ours_ns - free_ns
        return CoreTotals(
            wall_ns=now_ns - self._start_ns,
            capacity_ns=sum(self._classes_ns.values()),
            classes_ns={str(row): ns for row, ns in self._classes_ns.items()},
        )

    def _add_ours(self) -> int:
        """Adds what the run's processes used since the last reading to their classes, and returns its sum."""
        before_ns = sum(self._classes_ns.values())
        tree_ns = self._times.tree_ns(self._supervisor, without=self._roles)
        own_ns = self._grown_process_ns(self._supervisor) + self._grown_ns("tree", self._supervisor, tree_ns)
        self._classes_ns[CoreClass.SUPERVISOR] += own_ns
        for pid, role in self._roles.items():
            if role == "learner":
                self._add_learner(pid)
            else:
                self._classes_ns[CoreClass(role)] += self._grown_process_ns(pid)
            started_ns = self._times.waited_ns(pid) + self._times.tree_ns(pid)
            self._classes_ns[STARTED_BY[role]] += self._grown_ns("tree", pid, started_ns)
        return sum(self._classes_ns.values()) - before_ns

    def _add_learner(self, pid: int) -> None:
        """Adds the threads of a learner. OpenMP's are those without a name of their own: they have the main thread's.

        The rest of the process's time is that of its other threads, also of those that have ended.
        """
        other_ns, threads = self._grown_process_ns(pid), list(self._times.threads(pid))
        main_name = next((name for tid, name, _ in threads if tid == pid), "")
        classes = {main_name: CoreClass.OPENMP, PACKER_THREAD: CoreClass.PACKER}
        for tid, name, cpu_ns in threads:
            row = CoreClass.LEARNER if tid == pid else classes.get(name)
            if row is not None:
                grown_ns = self._grown_ns("thread", tid, cpu_ns)
                self._classes_ns[row] += grown_ns
                other_ns -= grown_ns
        self._classes_ns[CoreClass.LEARNER_OTHER] += other_ns

    def _grown_process_ns(self, pid: int) -> int:
        """Returns what a process has used since the last reading; 0 if it has ended."""
        cpu_ns = self._times.cpu_ns(pid)
        return 0 if cpu_ns is None else self._grown_ns("process", pid, cpu_ns)

    def _grown_ns(self, what: str, number: int, now_ns: int) -> int:
        """Returns by how much a CPU time has grown since the last reading.

        It shrinks for a tree that lost a process whose parent did not wait: what was counted stays counted.
        """
        before_ns = self._read_ns.get((what, number), 0)
        self._read_ns[what, number] = now_ns
        return max(0, now_ns - before_ns)


def open_core_ledger(*, is_enabled: bool) -> CoreLedger | None:
    """Returns the ledger of this host; None with timing off, and where the kernel hides the idle time."""
    with contextlib.suppress(OSError):
        return CoreLedger() if is_enabled else None
    return None
