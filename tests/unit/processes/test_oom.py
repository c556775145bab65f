from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.machine import MemoryLimit
from offpolicy.processes import deaths
from offpolicy.processes.deaths import kernel_kills, out_of_memory


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


def test_a_kill_in_a_cgroup_names_its_limit(tmp_path: Path) -> None:
    before, job = kernel_kills(), tmp_path / "pod" / "job"
    assert out_of_memory(before) is None
    (job / "memory.events").write_text("max 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    cause = f"was killed by the kernel: out of memory; the limit of {job} is 200 MiB, of which 150 MiB are used now"
    assert [out_of_memory(before), out_of_memory(kernel_kills())] == [cause, None]


def test_a_kill_outside_of_every_cgroup_is_the_machines(tmp_path: Path) -> None:
    before = kernel_kills()
    (tmp_path / "vmstat").write_text("nr_free 1\noom_kill 8\n")
    assert out_of_memory(before) == "was killed by the kernel: the machine ran out of memory"
