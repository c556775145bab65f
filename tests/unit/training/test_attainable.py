"""What the machine attains is measured once, remembered, and never the reason why a run fails."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offpolicy.config.schema import RunConfig
from offpolicy.training.attainable import attainable, cache_directory, key_of, remembered
from offpolicy.types import SpaceSpec

CPU = torch.device("cpu")
KEY = {"processor": "a", "threads": 1, "products": [["forward", 8, 3, 5, 6.0]]}


class Measure:
    """Counts how often it was asked, and answers with the next of its answers."""

    def __init__(self, *answers: float | None) -> None:
        self.answers, self.num_calls = answers, 0

    def __call__(self) -> float | None:
        self.num_calls += 1
        return self.answers[self.num_calls - 1]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFPOLICY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_second_run_does_not_measure(cache: Path) -> None:
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure) for _ in range(3)] == [5e9] * 3
    assert measure.num_calls == 1
    assert [path.name[:11] for path in cache.iterdir()] == ["attainable-"]


@pytest.mark.parametrize("other", [{"threads": 2}, {"processor": "b"}, {"products": [["forward", 8, 3, 5, 7.0]]}])
def test_another_machine_thread_count_or_network_is_measured_anew(other: dict[str, Any]) -> None:
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY | other, measure), remembered(KEY, measure)] == [5e9, 7e9, 5e9]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "7", '{"flops_per_sec": 1e9}',
        json.dumps({"key": KEY}), json.dumps({"key": KEY, "flops_per_sec": "much"}),
        json.dumps({"key": KEY, "flops_per_sec": 0}), json.dumps({"key": KEY, "flops_per_sec": float("nan")}),
        json.dumps({"key": KEY, "flops_per_sec": [1]}), json.dumps({"key": {**KEY, "threads": 9}, "flops_per_sec": 1}),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_measured_again_and_mended(cache: Path, content: str) -> None:
    remembered(KEY, Measure(5e9))
    (path,) = cache.iterdir()
    path.write_text(content)
    measure = Measure(7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [7e9, 7e9]


def test_bytes_that_are_no_text_are_measured_again(cache: Path) -> None:
    remembered(KEY, Measure(5e9))
    (path,) = cache.iterdir()
    path.write_bytes(b"\xff\xfe\x00")
    assert remembered(KEY, Measure(7e9)) == 7e9


def test_where_nothing_can_be_written_every_run_measures(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [5e9, 7e9]


def test_what_a_busy_machine_did_not_tell_is_not_remembered(cache: Path) -> None:
    measure = Measure(None, 5e9)
    assert remembered(KEY, measure) is None
    assert not cache.exists()
    assert remembered(KEY, measure) == 5e9


def test_the_key_tells_thread_counts_apart() -> None:
    one = key_of(CPU, [])
    torch.set_num_threads(2)
    assert {name for name, value in key_of(CPU, []).items() if value != one[name]} == {"threads"}


def test_the_directory_is_the_users_cache_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("OFFPOLICY_CACHE")
    assert cache_directory() == Path("/elsewhere/offpolicy")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "offpolicy"


def nobody(_: int) -> None:
    raise KeyError("no such user")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OFFPOLICY_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    measure = Measure(5e9, 7e9)
    assert [remembered(KEY, measure), remembered(KEY, measure)] == [5e9, 7e9]
    assert list(tmp_path.iterdir()) == []


def test_the_key_tells_numbers_of_allowed_cores_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for cores in (1, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        keys.append(key_of(CPU, []))
    assert {name for name, value in keys[0].items() if value != keys[1][name]} == {"cores"}


@pytest.mark.parametrize(
    "failure", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_measurement_that_finds_no_room_is_no_failure_of_the_run(
    monkeypatch: pytest.MonkeyPatch, failure: RuntimeError
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr("offpolicy.training.attainable.attainable_flops_per_sec", fail)
    spec, place = SpaceSpec(2, 1, (-1.0,), (1.0,)), SimpleNamespace(num_hosts=1)
    job = SimpleNamespace(spec=spec, place=place)
    seat: Any = SimpleNamespace(rank=0, cfg=RunConfig(), job=job, device=CPU, fence=None)
    assert attainable(seat) is None
