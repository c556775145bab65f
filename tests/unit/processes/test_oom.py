from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.machine import MemoryLimit
from offpolicy.processes import deaths
from offpolicy.processes.deaths import RECENT_S, OomWatch


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with one cgroup of 200 MiB inside of one without a limit."""
    job = tmp_path / "pod" / "job"
    job.mkdir(parents=True)
    monkeypatch.setattr(deaths, "VMSTAT", tmp_path / "vmstat")
    monkeypatch.setattr(deaths, "cgroups", lambda controller: [job, job.parent])
    monkeypatch.setattr(deaths, "memory_limits", lambda: [MemoryLimit(200 * 2**20, 150 * 2**20, job)])
    (tmp_path / "vmstat").write_text("nr_free 1\noom_kill 7\n")
    (job / "memory.events").write_text("max 3\noom 2\noom_kill 1\noom_group_kill 0\n")


def test_a_kill_in_a_cgroup_names_its_limit_once(tmp_path: Path) -> None:
    watch = OomWatch(Clock())
    job = tmp_path / "pod" / "job"
    assert watch.cause() is None
    (job / "memory.events").write_text("max 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    cause = f"was killed by the kernel: out of memory; the limit of {job} is 200 MiB, of which 150 MiB are used now"
    assert [watch.cause(), watch.cause()] == [cause, None]


def test_a_kill_outside_of_every_cgroup_is_the_machines(tmp_path: Path) -> None:
    watch = OomWatch(Clock())
    (tmp_path / "vmstat").write_text("nr_free 1\noom_kill 8\n")
    assert watch.cause() == "was killed by the kernel: the machine ran out of memory"


def test_a_kill_of_another_process_is_not_the_cause_of_what_somebody_kills_later(tmp_path: Path) -> None:
    clock = Clock()
    watch = OomWatch(clock)
    (tmp_path / "vmstat").write_text("oom_kill 8\n")
    watch.look()
    clock.now_s += RECENT_S + 1.0
    assert watch.cause() is None
