"""Versions are held against the ranges of the package and against those known to do harm."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.requirements import Requirement

from offpolicy.launch.finding import Level
from offpolicy.launch.installation import (
    bad_versions,
    gpus,
    package_finding,
    python_finding,
)

GPU = {"name": "H200", "capability": "9.0", "free": 130 * 2**30, "total": 140 * 2**30}


@pytest.mark.parametrize(
    ("version", "level"),
    [((3, 10, 1), Level.BROKEN), ((3, 11, 7), Level.OK), ((3, 13, 0), Level.OK), ((3, 14, 0), Level.NOTE)],
)
def test_python_is_held_against_what_the_tests_run_with(version: tuple[int, ...], level: Level) -> None:
    assert python_finding(version).level == level


@pytest.mark.parametrize(
    ("versions", "level"),
    [({"mujoco": "3.17.0"}, Level.OK), ({"mujoco": "4.0.0"}, Level.BAD), ({}, Level.BROKEN)],
)
def test_a_package_is_held_against_its_range(versions: dict[str, str], level: Level) -> None:
    found = package_finding(Requirement("mujoco>=3.17,!=4.0.0"), versions)
    assert found.level == level
    assert found.fix == ("" if level == Level.OK else "pip install 'mujoco!=4.0.0,>=3.17'")


def test_versions_known_to_do_harm_are_named() -> None:
    assert [each.name for each in bad_versions({"mujoco": "4.0.0"})] == ["mujoco"]
    assert list(bad_versions({"mujoco": "4.0.1", "gymnasium": "1.4.0"})) == []


@pytest.mark.parametrize(
    ("cuda", "found", "error", "has_driver", "level", "words"),
    [
        (None, [], "", False, Level.OK, "no GPU driver"),
        (None, [], "", True, Level.SLOW, "CPU build"),
        ("12.8", [], "driver too old", True, Level.SLOW, "driver too old"),
        ("12.8", [], "", True, Level.SLOW, "torch sees no device"),
        ("12.8", [GPU], "", True, Level.OK, "H200, 130.0 of 140.0 GiB free"),
        ("12.8", [GPU | {"free": 2**30}], "", True, Level.NOTE, "H200, 1.0 of 140.0"),
    ],
)
def test_gpus_are_usable_or_say_why_not(
    cuda: str | None, found: list[Any], error: str, has_driver: bool, level: Level, words: str
) -> None:
    probe = {"cuda": cuda, "gpus": found, "error": error}
    (finding,) = gpus(probe, has_driver=has_driver, driver=None)
    assert finding.level == level
    assert words in finding.value
