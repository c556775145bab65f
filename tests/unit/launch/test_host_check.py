"""What a machine gives is judged by numbers: each limit has a level and a fix."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from offpolicy.launch import host_check
from offpolicy.launch.finding import Level
from offpolicy.launch.host_check import (
    GIB,
    clock_findings,
    cores,
    disk_finding,
    file_limits,
    governor,
    host_findings,
    load_finding,
    memory_finding,
    num_physical,
    processor_finding,
    scheduler_finding,
    shared_memory,
    shm_finding,
)
from offpolicy.machine import CpuQuota
from offpolicy.timing.clock_check import ClockCheck


@pytest.mark.parametrize(("kind", "level"), [("x86_64", Level.OK), ("aarch64", Level.BROKEN), ("arm64", Level.BROKEN)])
def test_training_works_only_where_stores_keep_their_order(kind: str, level: Level) -> None:
    assert processor_finding(kind, "some model").level == level


@pytest.mark.parametrize(
    ("cpus", "machine", "quotas", "level", "words"),
    [
        ([0, 1], 2, [], Level.OK, "2 of the machine's 2"),
        ([0, 1], 64, [], Level.NOTE, "2 of the machine's 64"),
        ([3], 64, [], Level.SLOW, "1 of the machine's 64"),
        ([0, 1, 2, 3], 4, [2.5], Level.NOTE, "a quota of 2.5"),
        ([0, 1, 2, 3], 4, [0.5], Level.SLOW, "a quota of 0.5"),
    ],
)
def test_cores_are_judged_within_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, cpus: list[int], machine: int, quotas: list[float], level: Level, words: str
) -> None:
    monkeypatch.setattr(host_check, "SYSTEM_CPU", Path("/nonexistent"))
    (found,) = cores(cpus, machine, [CpuQuota(each, Path("/sys/fs/cgroup")) for each in quotas])
    assert found.level == level
    assert words in found.value
    assert bool(found.fix) == (level != Level.OK)


def test_hyperthreads_are_counted_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings)
    assert num_physical(tmp_path, [0, 1, 2, 3]) == 2
    assert num_physical(tmp_path, [0, 1]) == 2
    assert num_physical(tmp_path, [9, 10]) == 2  # the kernel does not tell


def test_a_load_of_others_is_slow() -> None:
    assert load_finding(0.1).level == Level.OK
    assert load_finding(1.0).level == Level.SLOW


def test_a_frequency_that_saves_power_is_noted(tmp_path: Path) -> None:
    (tmp_path / "cpu0/cpufreq").mkdir(parents=True)
    file = tmp_path / "cpu0/cpufreq/scaling_governor"
    file.write_text("performance\n")
    assert [each.level for each in governor(tmp_path, [0])] == [Level.OK]
    file.write_text("powersave\n")
    assert [each.level for each in governor(tmp_path, [0])] == [Level.NOTE]
    assert list(governor(tmp_path, [1])) == []


def test_little_memory_is_bad() -> None:
    assert memory_finding(8 * GIB, 16 * GIB).level == Level.OK
    assert memory_finding(GIB, 16 * GIB).level == Level.BAD


def test_memory_can_be_shared_here() -> None:
    assert [each.level for each in shared_memory()] == [Level.OK]


def test_a_sandbox_without_memfd_breaks_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, size: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(host_check.SharedBlock, "create", refuse)
    (found,) = shared_memory()
    assert found.level == Level.BROKEN
    assert "seccomp" in found.fix


def test_dev_shm_matters_to_nccl_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shm_finding(tmp_path / "none").level == Level.NOTE
    monkeypatch.setattr(host_check, "LITTLE_SHM", 2**62)
    assert "--shm-size" in shm_finding(tmp_path).fix
    monkeypatch.setattr(host_check, "LITTLE_SHM", 1)
    assert shm_finding(tmp_path).level == Level.OK


@pytest.mark.parametrize(
    ("reading_ns", "backward", "level"), [(60.0, 0, Level.OK), (1200.0, 0, Level.SLOW), (60.0, 1, Level.BAD)]
)
def test_a_clock_that_costs_or_steps_back_is_reported(reading_ns: float, backward: int, level: Level) -> None:
    (found,) = clock_findings(ClockCheck("tsc", 1.0, reading_ns, 50, backward))
    assert found.level == level


def test_a_kernel_without_scheduler_statistics_is_noted(tmp_path: Path) -> None:
    assert scheduler_finding(tmp_path).level == Level.OK
    assert scheduler_finding(tmp_path / "none").level == Level.NOTE


def test_limits_on_files_are_reported_with_the_command_that_lifts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 128), resource.RLIMIT_FSIZE: (GIB, GIB)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert [(each.name, each.level) for each in file_limits()] == [("open files", Level.BAD), ("file size", Level.BAD)]
    limits |= {resource.RLIMIT_NOFILE: (1024, resource.RLIM_INFINITY), resource.RLIMIT_FSIZE: (-1, -1)}
    (found,) = file_limits()
    assert (found.level, found.value) == (Level.OK, "1,024 (hard unlimited; a run raises the soft one itself)")


def test_a_full_disk_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_check, "LITTLE_DISK", 2**62)
    assert disk_finding(tmp_path).level == Level.BAD
    monkeypatch.setattr(host_check, "LITTLE_DISK", 1)
    assert disk_finding(tmp_path).level == Level.OK
    monkeypatch.setattr(host_check.os, "access", lambda *_: False)
    assert "run_dir" in disk_finding(tmp_path).fix


def test_everything_that_is_not_ok_has_a_fix() -> None:
    found = list(host_findings())
    assert {"processor", "cores", "memory", "/dev/shm", "clock", "open files", "disk"} <= {each.name for each in found}
    assert [each for each in found if each.level != Level.OK and not each.fix] == []
