from __future__ import annotations

import ctypes
from typing import Any

import pytest

from offpolicy import machine_load
from offpolicy.machine_load import GIB, Gpu, SystemMonitor


class FakeLibrary:
    """NVML with GPUs at 45 %, 2 of 24 GiB and 240.5 W; `refused` calls return an error."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.asked = refused, list[tuple[str, Any]]()
        self.names = [b"H200"]

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 3 if name in self.refused else self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "nvmlDeviceGetCount_v2":
            arguments[0]._obj.value = len(self.names)
            return 0
        if name.startswith("nvmlDeviceGetHandle"):
            key = arguments[0]
            self.asked.append((name, getattr(key, "value", key)))
        if name == "nvmlDeviceGetName":
            arguments[1].value = self.names[self.asked[-1][1]]
            return 0
        answer: Any = arguments[1]._obj if name.startswith("nvmlDeviceGet") else None
        if name == "nvmlDeviceGetUtilizationRates":
            answer.gpu = 45
        elif name == "nvmlDeviceGetMemoryInfo":
            answer.used, answer.total = 2 * GIB, 24 * GIB
        elif name == "nvmlDeviceGetPowerUsage":
            answer.value = 240_500
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    found = FakeLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    return found


def test_memory_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "memory", lambda: (3 * GIB, 8 * GIB))
    load = SystemMonitor("cpu").read()
    assert load is not None
    assert (load.memory_gib, load.memory_total_gib, load.gpu_pct, load.vram_gib) == (5.0, 8.0, None, None)


def test_a_gpu_has_its_use_memory_and_power(library: FakeLibrary) -> None:
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert (load.gpu_pct, load.vram_gib, load.vram_total_gib, load.gpu_watts) == (45.0, 2.0, 24.0, 240.5)


def test_a_gpu_that_does_not_tell_all_tells_the_rest(library: FakeLibrary) -> None:
    library.refused = ("nvmlDeviceGetUtilizationRates",)
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert (load.gpu_pct, load.vram_gib, load.gpu_watts) == (None, 2.0, 240.5)


@pytest.mark.parametrize(
    ("visible", "asked"),
    [
        (None, ("nvmlDeviceGetHandleByIndex_v2", 1)),
        ("3, 5", ("nvmlDeviceGetHandleByIndex_v2", 5)),
        ("GPU-a,GPU-b", ("nvmlDeviceGetHandleByUUID", b"GPU-b")),
    ],
)
def test_the_gpu_is_the_one_that_cuda_shows(library: FakeLibrary, visible: str | None, asked: tuple[str, Any]) -> None:
    Gpu(1, visible)
    assert library.asked[-1] == asked


def test_without_a_driver_there_are_no_numbers_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert load.gpu_pct is None


@pytest.mark.parametrize(("order", "expected"), [("", None), ("PCI_BUS_ID", 45.0)])
def test_of_gpus_of_several_kinds_only_the_bus_says_which_is_meant(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch, order: str, expected: float | None
) -> None:
    library.names = [b"T4", b"H200"]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert load.gpu_pct == expected


def test_the_driver_tells_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def nvmlInit_v2(self) -> int:  # noqa: N802  # NVML's name
            return 0

        def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:  # noqa: N802
            text.value = b"570.1"
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert machine_load.driver_version() == "570.1"


def test_without_a_driver_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert machine_load.driver_version() is None
