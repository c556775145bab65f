"""A `/proc` of processes, threads and idle cores whose times the test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from offpolicy.timing.process_times import TICK_NS, ProcessTimes

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
