"""What a machine gives is judged by numbers: each limit has a level and a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.launch.finding import Level
from offpolicy.launch.host_check import (
    clock_findings,
    cores,
    host_findings,
    processor_finding,
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
    cpus: list[int], machine: int, quotas: list[float], level: Level, words: str
) -> None:
    (found,) = cores(cpus, machine, [CpuQuota(each, Path("/sys/fs/cgroup")) for each in quotas])
    assert found.level == level
    assert words in found.value
    assert bool(found.fix) == (level != Level.OK)


@pytest.mark.parametrize(
    ("reading_ns", "backward", "level"), [(60.0, 0, Level.OK), (1200.0, 0, Level.SLOW), (60.0, 1, Level.BAD)]
)
def test_a_clock_that_costs_or_steps_back_is_reported(reading_ns: float, backward: int, level: Level) -> None:
    (found,) = clock_findings(ClockCheck("tsc", 1.0, reading_ns, 50, backward))
    assert found.level == level


def test_everything_that_is_not_ok_has_a_fix() -> None:
    found = list(host_findings())
    assert {"processor", "cores", "memory", "/dev/shm", "clock", "open files", "disk"} <= {each.name for each in found}
    assert [each for each in found if each.level != Level.OK and not each.fix] == []
