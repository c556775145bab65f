from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import panel_picture
from benchmarks.panel_picture import read_course, read_verdict
from offpolicy.config.overrides import load_config
from offpolicy.logger.record import Record
from offpolicy.timing.bottleneck import Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "busy; learner train takes 92%", share=0.92),
        Verdict(Bottleneck.COLLECTOR, CollectorPhase.OTHER, "collector other takes 40%", share=0.4),
        Verdict(Bottleneck.COLLECTOR, CollectorPhase.ENV_STEP, "collector env_step takes 90%", (), 0.6, Detail.RESETS),
    ],
)
def test_a_verdict_is_read_back_from_its_record(verdict: Verdict) -> None:
    record: Record = {"perf/bottleneck": verdict.label, "perf/bottleneck_reason": verdict.reason}
    assert read_verdict(record) == verdict


def test_advice_is_read_back_in_its_order() -> None:
    record: Record = {
        "perf/bottleneck": "learner(train 92%)",
        "perf/bottleneck_reason": "learner train takes 92%",
        "perf/bottleneck_advice": "a=1: faster; b=2",
    }
    verdict = read_verdict(record)
    assert verdict is not None
    assert [advice.text for advice in verdict.advice] == ["a=1: faster", "b=2"]


def test_a_record_without_a_verdict_has_none() -> None:
    assert read_verdict({}) is None


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with two records."""
    config = load_config(["algo=td3", "env=pendulum", "run_dir=unused"])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
    (tmp_path / "summary.json").write_text(json.dumps({"mode": "alternate"}))
    records = [{"env_steps": steps, "iteration": steps, "wall_s": 1.0} for steps in (100, 200)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


@pytest.mark.parametrize(("last", "num_records"), [(0, 1), (1, 2), (-1, 2), (-2, 1)])
def test_a_record_is_counted_from_either_end(last: int, num_records: int, run_dir: Path) -> None:
    assert read_course(run_dir, last).num_records == num_records


@pytest.mark.parametrize("last", [2, -3])
def test_a_record_that_is_not_there_is_refused(last: int, run_dir: Path) -> None:
    with pytest.raises(ValueError, match=f"record: got {last}, allowed -2 to 1"):
        read_course(run_dir, last)


def test_a_picture_is_titled_by_its_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = run_dir / "panel.svg"
    monkeypatch.setattr(sys, "argv", ["panel_picture", str(run_dir), str(picture)])
    panel_picture.main()
    assert "td3&#160;on&#160;Pendulum-v1" in picture.read_text() or "td3 on Pendulum-v1" in picture.read_text()
