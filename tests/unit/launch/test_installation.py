"""Versions are held against the ranges of the package and against those known to do harm."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from packaging.requirements import Requirement

from offpolicy.children import ChildError
from offpolicy.launch import installation as checked
from offpolicy.launch.finding import Level
from offpolicy.launch.installation import (
    GL_BACKENDS,
    bad_versions,
    drawing,
    gpus,
    installation,
    installed_versions,
    kernels,
    package_finding,
    python_finding,
    torch_findings,
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


def test_a_local_build_of_torch_is_within_its_range() -> None:
    assert package_finding(Requirement("torch>=2.10,<3"), {"torch": "2.13.0+cpu"}).level == Level.OK


def test_versions_known_to_do_harm_are_named() -> None:
    assert [each.name for each in bad_versions({"mujoco": "4.0.0"})] == ["mujoco"]
    assert list(bad_versions({"mujoco": "4.0.1", "gymnasium": "1.4.0"})) == []


def test_a_pair_does_harm_only_together() -> None:
    robotics = {"gymnasium-robotics": "1.4.2"}
    assert [each.name for each in bad_versions(robotics | {"mujoco": "3.17.0"})] == ["gymnasium-robotics"]
    assert list(bad_versions(robotics | {"mujoco": "3.11.0"})) == []
    assert list(bad_versions(robotics)) == []


def test_installed_versions_are_those_of_the_distributions() -> None:
    assert installed_versions()["hydra-core"] == metadata.version("hydra-core")


def test_a_checkout_that_is_not_installed_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checked.metadata, "requires", missing)
    assert [each.level for each in installation() if each.name == "offpolicy"] == [Level.NOTE]


def test_extras_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=2", "nosuchpackage>=1; extra == 'plot'"]
    monkeypatch.setattr(checked.metadata, "requires", lambda name: lines)
    assert "nosuchpackage" not in {each.name for each in installation()}


def test_a_torch_that_cannot_be_imported_breaks_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(target: str, payload: Any = None, *, timeout_s: float) -> Any:
        raise ChildError("exited with code 1", "Traceback\nOSError: libgomp.so.1: cannot open")

    monkeypatch.setattr(checked, "call_in_child", die)
    (found,) = torch_findings()
    assert (found.level, found.value) == (Level.BROKEN, "OSError: libgomp.so.1: cannot open")


@pytest.mark.mp
def test_torch_is_probed_in_a_child() -> None:
    assert "torch on CPU" in [each.name for each in torch_findings()]


@pytest.mark.parametrize(
    ("vector", "mkl", "level"), [("AVX512", True, Level.OK), ("AVX2", False, Level.SLOW), ("DEFAULT", True, Level.SLOW)]
)
def test_slow_kernels_are_reported(vector: str, mkl: bool, level: Level) -> None:
    assert [each.level for each in kernels({"vector": vector, "mkl": mkl})] == [level]


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


def test_one_renderer_that_works_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_egl(target: str, backend: str, *, timeout_s: float) -> bool:
        if backend != "egl":
            raise ChildError("exited with code 1")
        return True

    monkeypatch.setattr(checked, "call_in_child", only_egl)
    assert {each.level for each in drawing()} == {Level.OK}


def test_without_a_renderer_each_has_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(target: str, backend: str, *, timeout_s: float) -> bool:
        raise ChildError("exited with code 1")

    monkeypatch.setattr(checked, "call_in_child", none)
    found = list(drawing())
    assert [each.level for each in found] == [Level.NOTE] * len(GL_BACKENDS)
    assert all(each.fix for each in found)
