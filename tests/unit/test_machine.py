from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from offpolicy import machine


def test_the_memory_at_hand_is_a_sensible_number() -> None:
    assert 2**26 < machine.memory()[0] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def process_in(tmp_path: Path, cgroup: str, *mounts: str) -> Path:
    """The directory of a process in these groups."""
    process = tmp_path / "self"
    process.mkdir(exist_ok=True)
    (process / "cgroup").write_text(cgroup)
    (process / "mountinfo").write_text("".join(f"31 23 0:28 {mount}\n" for mount in mounts))
    return process


def in_cgroups(tmp_path: Path, cgroup: str, *mounts: str) -> list[tuple[float, str]]:
    """The quotas of a process in these groups: cores, and the directory below `tmp_path`."""
    found = machine.cpu_quotas(process_in(tmp_path, cgroup, *mounts))
    return [(quota.cores, str(quota.directory.relative_to(tmp_path))) for quota in found]


def group(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)


def test_the_quotas_of_a_group_and_of_those_around_it_count(tmp_path: Path) -> None:
    group(tmp_path / "cg", cpu__max="max 100000\n")
    group(tmp_path / "cg/pod", cpu__max="150000 100000\n")
    group(tmp_path / "cg/pod/job", cpu__max="400000 200000\n", cpu__stat="usage_usec 77\nuser_usec 70\n")
    quotas = in_cgroups(tmp_path, "0::/pod/job\n", f"/ {tmp_path}/cg rw - cgroup2 cgroup2 rw")
    assert quotas == [(2.0, "cg/pod/job"), (1.5, "cg/pod")]
    assert machine.CpuQuota(2.0, tmp_path / "cg/pod/job").used_ns() == 77_000
    assert machine.CpuQuota(1.5, tmp_path / "cg/pod").used_ns() is None


def test_version_1_has_its_quota_in_the_hierarchy_of_the_cpu_controller(tmp_path: Path) -> None:
    group(tmp_path / "cpu/job", cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n", cpuacct__usage="88\n")
    group(tmp_path / "memory/job", cpu__cfs_quota_us="1\n", cpu__cfs_period_us="100000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    mounts = (
        f"/ {tmp_path}/memory rw - cgroup cgroup rw,memory",
        f"/ {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct",
    )
    assert in_cgroups(tmp_path, "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n", *mounts) == [(0.5, "cpu/job")]
    assert machine.CpuQuota(0.5, tmp_path / "cpu/job").used_ns() == 88


def test_a_container_that_sees_only_its_own_group_has_the_quota_at_the_mount(tmp_path: Path) -> None:
    group(tmp_path / "cg", cpu__max="150000 100000\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")  # outside of the mount
    for path, root in (("/docker/abc", "/docker/abc"), ("/docker/abc", "/other"), ("/../x", "/")):
        assert in_cgroups(tmp_path, f"0::{path}\n", f"{root} {tmp_path}/cg rw - cgroup2 cgroup2 rw") == [(1.5, "cg")]


def test_without_cgroups_or_with_others_there_is_no_limit(tmp_path: Path) -> None:
    assert machine.cpu_quotas(tmp_path) == []
    group(tmp_path / "cg")
    for content in ("", "much 100000\n", "100000 0\n", "1 2 3\n"):
        (tmp_path / "cg" / "cpu.max").write_text(content)
        assert in_cgroups(tmp_path, "0::/\n", f"/ {tmp_path}/cg rw - cgroup2 cgroup2 rw") == []
    for name in ("cgroup", "mountinfo"):  # of a sandbox
        process = process_in(tmp_path, "0::/\n", f"/ {tmp_path} rw - cgroup2 cgroup2 rw")
        (process / name).write_text("not supported\n")
        assert machine.cpu_quotas(process) == []
        assert machine.memory_limits(process) == []


def test_the_usable_cores_are_those_of_the_tightest_limit(tmp_path: Path) -> None:
    quotas = [machine.CpuQuota(1.5, tmp_path), machine.CpuQuota(3.0, tmp_path)]
    assert machine.usable_cores(2, quotas) == 1.5
    assert machine.usable_cores(1, quotas) == 1.0
    assert machine.usable_cores(2, []) == 2.0


def test_the_memory_limits_of_a_group_and_of_those_around_it_count(tmp_path: Path) -> None:
    stat = "anon 5\ninactive_file 30\nactive_file 7\n"
    group(tmp_path / "cg", memory__max="max\n", memory__current="999\n", memory__stat=stat)
    group(tmp_path / "cg/pod", memory__max="500\n", memory__current="130\n", memory__stat=stat)
    group(tmp_path / "cg/pod/job", memory__max="200\n", memory__current="90\n", memory__stat=stat)
    process = process_in(tmp_path, "0::/pod/job\n", f"/ {tmp_path}/cg rw - cgroup2 cgroup2 rw")
    job, pod = tmp_path / "cg/pod/job", tmp_path / "cg/pod"
    assert machine.memory_limits(process) == [(200, 60, job), (500, 100, pod)]
    assert machine.memory(process) == (140, 200)


def test_version_1_has_its_memory_limit_in_the_hierarchy_of_the_memory_controller(tmp_path: Path) -> None:
    stat = "inactive_file 1\ntotal_inactive_file 40\n"
    files = {"memory__limit_in_bytes": "300\n", "memory__usage_in_bytes": "100\n", "memory__stat": stat}
    group(tmp_path / "memory/job", **files)
    mounts = (f"/ {tmp_path}/cpu rw - cgroup cgroup rw,cpu", f"/ {tmp_path}/memory rw - cgroup cgroup rw,memory")
    process = process_in(tmp_path, "4:memory:/job\n2:cpu:/\n0::/\n", *mounts)
    assert machine.memory_limits(process) == [(300, 60, tmp_path / "memory/job")]


class FakeNvml:
    """NVML with a GPU at 45 %, 2 of 24 GiB and 240.5 W; the call `refused` returns an error."""

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 3 if name == self.refused else self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        into: Any = arguments[-1]._obj if arguments else None
        if name == "nvmlDeviceGetUtilizationRates":
            into[0] = 45
        elif name == "nvmlDeviceGetMemoryInfo":
            into[:] = 24 * machine.GIB, 22 * machine.GIB, 2 * machine.GIB
        elif name == "nvmlDeviceGetPowerUsage":
            into.value = 240_500
        return 0


def test_a_gpu_has_the_use_memory_and_power_that_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"": (45.0, 2.0, 24.0, 240.5), "nvmlDeviceGetUtilizationRates": (None, 2.0, 24.0, 240.5)}
    expected["nvmlInit_v2"] = (None, None, None, None)
    for refused, numbers in expected.items():
        monkeypatch.setattr(ctypes, "CDLL", lambda name, refused=refused: FakeNvml(refused))
        load = machine.SystemMonitor("cuda:0").read()
        assert (load.gpu_pct, load.vram_gib, load.vram_total_gib, load.gpu_watts) == numbers
