"""An iteration far longer than the others leaves a trace of the last ones behind, in a run that is not traced."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from offpolicy.timing.flight_recorder import FlightRecorder
from offpolicy.timing.histogram import ENOUGH
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LEARNER_ORDER, LearnerPhase
from tests.fakes import FakeClock

MS = 1_000_000


class Run:
    """Iterations of 1 ms of sampling, 4 of training and a half in no phase, on a fake clock that started long ago."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.lines = FakeClock(10**12), list[str]()
        self.ledger = Ledger(LearnerPhase, self.clock)
        self.ledger.end_warmup()
        order = (*LEARNER_ORDER, LearnerPhase.OTHER)
        self._recorder = FlightRecorder(directory, "slow", "learner 0", LearnerPhase, order)

    def iterate(self, count: int, train_ms: int = 4, evaluation_ms: int = 0) -> None:
        for _ in range(count):
            phases = {"replay_sample": 1, "train": train_ms, "evaluation": evaluation_ms}
            for phase, ms in phases.items():
                with self.ledger.phase(LearnerPhase(phase)):
                    self.clock.advance(ms * MS)
            self.clock.advance(MS // 2)
            self.ledger.close()

    def report(self) -> None:
        self._recorder.save(self.ledger.take_outlier(), self.lines.append)


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]  # type: ignore[no-any-return]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_iterations_around_an_outlier_are_kept_as_a_trace(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.iterate(ENOUGH + 100)
    run.iterate(1, train_ms=40)
    run.iterate(3)
    run.report()
    assert names(tmp_path) == ["slow-0.trace.json.gz"]
    spans = [event for event in events(tmp_path / "slow-0.trace.json.gz") if event["ph"] == "X"]
    trains = [span for span in spans if span["name"] == "train"]
    assert [span["dur"] for span in trains[-4:]] == [40_000, 4000, 4000, 4000]
    start_us = 5500.0 * (ENOUGH + 100) + 1000.0  # of the long one, behind its sampling
    assert trains[-4]["ts"] == pytest.approx(start_us)
    assert trains[-3]["ts"] == pytest.approx(start_us + 40_000 + 500 + 1000)
    assert {span["name"] for span in spans} == {"replay_sample", "train"}  # not `other`
    (line,) = run.lines
    assert "learner 0: an iteration took 41.5 ms, more than 5 times the p99" in line
    assert str(tmp_path / "slow-0.trace.json.gz") in line


@pytest.mark.parametrize(
    ("iterations", "odd"),
    [
        (ENOUGH + 100, {"train_ms": 20}),  # long, not so long
        (ENOUGH + 100, {"evaluation_ms": 400}),  # has its cadence
        (ENOUGH - 100, {"train_ms": 400}),  # nothing to compare with yet
    ],
)
def test_what_is_no_outlier_leaves_nothing_behind(tmp_path: Path, iterations: int, odd: dict[str, int]) -> None:
    run = Run(tmp_path)
    run.iterate(iterations)
    run.report()
    run.iterate(1, **odd)
    run.report()
    assert (names(tmp_path), run.lines) == ([], [])


def test_a_disk_that_refuses_the_file_costs_the_file_alone(tmp_path: Path) -> None:
    run = Run(tmp_path / "missing")
    run.iterate(ENOUGH + 100)
    run.iterate(1, train_ms=400)
    run.report()
    assert run.lines == []
