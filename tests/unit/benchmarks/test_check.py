"""The gate, on made-up results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import check
from benchmarks.check import Best, best_results, verdicts
from benchmarks.parts.measurement import Measurement

KIND = ("cpu", "unknown", "64", "2", "x86_64", "torch 2.13")
BASE = {name: Best(ratio, "abc", "2026-11-22") for name, ratio in (("SAC, 1 thread", 2.0), ("TD3, 1 thread", 1.5))}


def entry(
    ratio: float, started: str, commit: str, cpu: str = "cpu", share: float = 0.0, rounds: int = 3, torch: str = "2.13"
) -> dict[str, Any]:
    data = [Measurement("update", "SAC, 1 thread: update / floor", "", [ratio]).to_mapping()]
    return {
        "benchmark": "parts",
        "started": started,
        "commit": commit,
        "hardware": {"cpu": cpu, "machine_cores": 64, "cores": 2, "machine": "x86_64"},
        "versions": {"torch": torch},
        "tasks": {f"updates/{number}": {"others_share": share, "data": data} for number in range(rounds)},
    }


def test_a_ratio_that_is_11_percent_worse_is_told_with_the_numbers() -> None:
    (sentence,) = verdicts(BASE, {"SAC, 1 thread": 2.22, "TD3, 1 thread": 1.0})
    assert sentence == (
        "SAC, 1 thread: an update takes 2.22 x its GEMM floor, 11% more than 2.00 x at abc (2026-11-22); allowed 10%"
    )


def test_a_ratio_that_is_9_percent_worse_passes() -> None:
    assert verdicts(BASE, {"SAC, 1 thread": 2.18, "TD3, 1 thread": 1.5}) == []


def test_a_case_that_is_not_measured_any_more_does_not_pass() -> None:
    (sentence,) = verdicts(BASE, {"SAC, 1 thread": 2.0})
    assert sentence == "TD3, 1 thread: not measured, was 1.50 x its GEMM floor at abc"


def test_the_best_result_of_the_same_kind_of_machine_counts() -> None:
    entries = [entry(2.0, "2026-01", "best"), entry(2.1, "2026-03", "new"), entry(1.0, "2026-09", "other", cpu="b")]
    entries += [entry(1.0, "2026-09", "few", rounds=2), entry(1.0, "2026-09", "other", torch="2.14")]
    assert best_results(entries, KIND) == {"SAC, 1 thread": Best(2.0, "best", "2026-01")}


def test_a_result_of_a_busy_machine_does_not_count() -> None:
    entries = [entry(2.0, "2026-01", "quiet"), entry(1.0, "2026-02", "busy", share=0.3)]
    assert best_results(entries, KIND) == {"SAC, 1 thread": Best(2.0, "quiet", "2026-01")}


def test_results_of_other_benchmarks_and_of_old_files_are_passed_over() -> None:
    old = {"benchmark": "parts", "hardware": entry(1.0, "", "")["hardware"], "measurements": []}
    assert best_results([old, {"benchmark": "peers"}], KIND) == {}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, results_directory: Path) -> pytest.MonkeyPatch:
    """The command on a machine of the kind of the made-up results."""
    monkeypatch.setattr(check, "machine_kind", lambda entry: KIND if "cpu" in str(entry) else ())
    monkeypatch.setattr(check, "tracked_entries", lambda: [entry(2.0, "2026-01-01T00", "abc")])
    return monkeypatch


def measured(ratio: float) -> list[Measurement]:
    return [Measurement("update", "SAC, 1 thread: update / floor", "", [ratio])]


def test_a_slower_update_fails_the_command(gate: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gate.setattr(check, "measure_quietly", lambda cores: measured(3.0))
    assert check.main([]) == 1
    assert "3.00 x its GEMM floor, 50% more than 2.00 x at abc" in capsys.readouterr().err


def test_an_update_that_is_as_fast_passes(gate: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gate.setattr(check, "measure_quietly", lambda cores: measured(2.1))
    assert check.main([]) == 0
    assert "update / GEMM floor 2.10, was 2.00 at abc" in capsys.readouterr().out


def test_what_a_second_series_does_not_confirm_passes(gate: pytest.MonkeyPatch) -> None:
    series = iter([measured(3.0), measured(2.1)])
    gate.setattr(check, "measure_quietly", lambda cores: next(series))
    assert check.main([]) == 0
    assert list(series) == []


def test_without_a_result_of_this_kind_it_says_so_and_passes(
    gate: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.setattr(check, "tracked_entries", list)
    assert check.main([]) == 0
    assert "no committed result of a machine of this kind" in capsys.readouterr().out


def test_a_machine_that_is_never_quiet_gives_no_verdict(gate: pytest.MonkeyPatch) -> None:
    gate.setattr(check, "measure_quietly", lambda cores: [])
    assert check.main([]) == 75


def test_busy_rounds_are_repeated(gate: pytest.MonkeyPatch) -> None:
    shares = iter([0.5, 0.0, 0.2, 0.01, 0.0])
    gate.setattr(check, "wait_until_quiet", lambda look: 0.0)
    gate.setattr(check, "Watch", lambda cores: type("W", (), {"others_share": lambda self: next(shares)})())
    rounds = iter([9.0, 1.0, 9.0, 2.0, 3.0])
    gate.setattr(check.updates, "measure_beside_floors", lambda count: measured(next(rounds)))
    (found,) = check.measure_quietly([0])
    assert list(found.samples) == [1.0, 2.0, 3.0]


def test_committed_results_are_read_whatever_the_directory_holds(results_directory: Path) -> None:
    found = check.tracked_entries()
    assert any(one["benchmark"] == "predictions" for one in found)
