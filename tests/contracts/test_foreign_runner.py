"""A training loop of another shape is logged, explained and compared like a run of ours, and its page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.cli import main
from offpolicy.logger.metrics import METRICS
from tests import foreign_runner

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_LINES = 45
LEARNER = "timing/learner_"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of the loop."""
    paths = [tmp_path_factory.mktemp("es") / name for name in ("one", "two")]
    for path in paths:
        foreign_runner.main(path)
    return paths


def test_its_records_have_our_keys_and_close(runs: list[Path]) -> None:
    records = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    assert len(records) >= 8
    for record in records:
        assert record.keys() <= METRICS.keys()
        phases = [value for key, value in record.items() if key.startswith(LEARNER)]
        assert sum(phases) == pytest.approx(record["perf/iter_ms"])
        assert record["timing/learner_collector_wait_ms"] >= 4.0
        assert record["timing/learner_train_ms"] >= 1.0
    assert records[-1]["env_steps"] == 48_000


def test_its_summary_names_the_bottleneck(runs: list[Path]) -> None:
    summary = json.loads((runs[0] / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"]) == ("completed", 48_000)
    assert (summary["bottleneck"]["verdict"], summary["bottleneck"]["phase"]) == ("collector", "env_step")


def test_two_of_its_runs_are_compared(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs), "--fail-on", "timing/learner_train_ms>200%"]) in (0, 75)  # 75: busy cores
    out = capsys.readouterr().out
    assert "samples/s" in out
    assert "passed: timing/learner_train_ms>200%" in out or "not judged" in out


def test_its_page_shows_the_loop_as_it_is() -> None:
    source = (REPOSITORY / "tests/foreign_runner.py").read_text()
    assert len(source.splitlines()) <= MOST_LINES
    assert f"```python\n{source}```" in (REPOSITORY / "docs/extending.md").read_text()
