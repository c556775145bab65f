from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from offpolicy import machine


def test_the_processor_is_named_as_the_kernel_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor : 1\nmodel name\t: Some CPU @ 2 GHz\n")
    monkeypatch.setattr(machine, "CPU_INFO", info)
    assert machine.cpu_model() == "Some CPU @ 2 GHz"


def test_a_kernel_without_cpuinfo_has_an_unknown_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert machine.cpu_model() == "unknown"


def test_an_installed_package_has_its_version_and_a_missing_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(machine.versions()) == ["offpolicy", "torch", "gymnasium", "mujoco"]
    monkeypatch.setattr(machine, "PACKAGES", ("gymnasium", "offpolicy-that-is-not-installed"))
    assert machine.versions() == {"gymnasium": version("gymnasium"), "offpolicy-that-is-not-installed": None}


def test_the_memory_at_hand_is_a_sensible_number() -> None:
    assert 2**26 < machine.available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
