from __future__ import annotations

import ctypes
from typing import Any

import pytest

from offpolicy.machine_load import GIB, SystemMonitor


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


def test_a_gpu_has_its_use_memory_and_power(library: FakeLibrary) -> None:
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert (load.gpu_pct, load.vram_gib, load.vram_total_gib, load.gpu_watts) == (45.0, 2.0, 24.0, 240.5)


def test_a_gpu_that_does_not_tell_all_tells_the_rest(library: FakeLibrary) -> None:
    library.refused = ("nvmlDeviceGetUtilizationRates",)
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert (load.gpu_pct, load.vram_gib, load.gpu_watts) == (None, 2.0, 240.5)


def test_without_a_driver_there_are_no_numbers_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    load = SystemMonitor("cuda:0").read()
    assert load is not None
    assert load.gpu_pct is None
