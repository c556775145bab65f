"""`offpolicy doctor` prints findings with their fixes, and fails only where no training can work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offpolicy.commands.doctor import BAD, BROKEN, NOTE, OK, SLOW, Finding, clock, cores, gpus, lines, packages
from offpolicy.machine import CpuQuota
from offpolicy.timing.clock import ClockCheck

FINE = Finding("machine", "clock", "tsc")
FEW = Finding("machine", "cores", "1 of 8", SLOW, "allow a second")
MISSING = Finding("software", "torch", "not installed", BROKEN, "pip install torch")


def test_the_worst_comes_first_with_its_fix() -> None:
    text = list(lines([FINE, FEW, MISSING]))
    assert text[-3:] == ["to change, the worst first:", "  torch: pip install torch", "  cores: allow a second"]
    assert list(lines([FINE]))[-1] == "training works here: offpolicy train algo=sac"


def test_a_package_is_compared_with_its_range() -> None:
    wanted = {"rich>=14": OK, "rich<14": BAD, "no-such-package>=1": BROKEN, "no-other; extra == 'x'": None}
    for found, (each, level) in zip([*packages([*wanted])][1:], wanted.items(), strict=False):
        assert (found.level, found.fix) == (level, "" if level == OK else f"pip install '{each}'")


def test_gpus_are_usable_or_say_why_not() -> None:
    for cuda, names, has_driver, level, words in (
        (None, [], False, OK, "no GPU driver"),
        (None, [], True, SLOW, "CPU build"),
        ("12.8", [], True, SLOW, "torch sees no device"),
        ("12.8", ["H200"], True, OK, "H200, CUDA 12.8"),
    ):
        (found,) = gpus({"cuda": cuda, "gpus": names}, has_driver=has_driver)
        assert found.level == level
        assert words in found.value


def test_cores_are_judged_within_affinity_and_quota() -> None:
    limits: list[tuple[int, int, list[float], str, str]] = [
        (2, 2, [], OK, "2 of the machine's 2"), (2, 64, [], NOTE, "2 of the machine's 64"),
        (1, 64, [], SLOW, "1 of the machine's 64"), (4, 4, [2.5], NOTE, "a quota of 2.5"),
        (4, 4, [0.5], SLOW, "a quota of 0.5"),
    ]  # fmt: skip
    for cpus, existing, quotas, level, words in limits:
        found = cores(cpus, existing, [CpuQuota(each, Path("/sys/fs/cgroup")) for each in quotas])
        assert (found.level, bool(found.fix)) == (level, level != OK)
        assert words in found.value


def test_a_clock_that_costs_or_steps_back_is_reported() -> None:
    for reading_ns, backward, level in ((60.0, 0, OK), (1200.0, 0, SLOW), (60.0, 1, BAD)):
        assert clock(ClockCheck("tsc", reading_ns, 50, backward)).level == level


@pytest.mark.slow
@pytest.mark.mp
def test_the_command_line_checks_this_machine(run_cli: Any) -> None:
    result = run_cli(["doctor", "--json"], timeout=110)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    assert content["can_train"] is True
    names = {each["name"] for each in content["findings"]}
    assert {"python", "torch", "torch on CPU", "cores", "memory", "clock", "MUJOCO_GL=egl"} <= names
    assert [each for each in content["findings"] if each["level"] != "ok" and not each["fix"]] == []
