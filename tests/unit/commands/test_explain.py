"""`offpolicy explain`: from the files of a run to what it says, and one run's prediction checked by the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offpolicy.commands.explain import explain
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.errors import ConfigError
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))


def saved(path: Path, *overrides: str, done: float = 95.0, **changes: Any) -> Path:
    """A run whose learner takes 10 ms per env step and whose collector takes 4: T = 100, I = 250."""
    path.mkdir()
    write_config(path, load_config(["collect.mode=overlap", *overrides]), SPEC)
    learner = {str(phase): 0.0 for phase in LearnerPhase if phase != "other"}
    learner |= {"train": 80.0, "replay_sample": 10.0, "evaluation": 5.0}
    collector = {"env_step": 30.0, "action_select": 10.0, "learner_wait": 60.0}
    summary = {
        "status": "completed",
        "reason": "done",
        "timing": {
            "learner": {"wall_s": 107.0, "phases_s": {**learner, "warmup": 2.0}, "other_s": 10.0},
            "collector": {"wall_s": 101.0, "phases_s": {**collector, "warmup": 1.0}, "other_s": 0.0},
        },
        "rates": {
            "steps_per_sec": done,
            "collector_capacity": 250.0,
            "learner_capacity": 100.0,
            "predicted_steps_per_sec": 100.0,
            "utd": 1.0,
        },
        "bottleneck": {"verdict": "learner", "phase": "train", "reason": "it is busy", "advice": ["do less"]},
    }
    (path / "summary.json").write_text(json.dumps(summary | changes))
    return path


def told(capsys: pytest.CaptureFixture[str], run: Path, before: Path | None = None) -> str:
    assert explain(run, before) == 0
    return " ".join(capsys.readouterr().out.split())


def test_it_tells_costs_verdict_and_what_ifs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, saved(tmp_path / "run"))
    assert "Train 8,000.00 Env Step 3,000.00" in text
    assert "1 / T 10,000.00" in text
    # 5 of 105 s were an evaluation: 4.8 % of the 1/95 s that an env step took.
    assert "min(I, T) 250 100 100.0 Evaluation 95.2 4.8 the rest 95.0 0.2" in text
    assert "bottleneck learner (train): it is busy" in text
    assert "train 20 % faster 250 119 112 +18%" in text
    assert "the collector side bounds the run once an env step takes 6,000.0 us more" in text


def test_a_prediction_is_checked_by_what_the_run_that_followed_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = saved(tmp_path / "before"), saved(tmp_path / "after", "algo.utd=0.5", done=160.0)
    text = told(capsys, after, before)
    # One update per iteration: the learner's 10 ms per env step become 5. 99.75 between evaluations become 199.5.
    assert "did 100 env steps/s between evaluations and checkpoints and predicted 200 for 'algo.utd halved'" in text
    assert "this run did 168: off by +18.8%" in text  # 160 / (1 - 5/105)


def test_a_run_that_was_stopped_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run", status="interrupted", reason="stopped by a signal")
    assert "interrupted, stopped by a signal" in told(capsys, run)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algo.gamma=0.9",), "algo.gamma 0.99 -> 0.9 changed, which is not one of the what-ifs"),
        (("algo.utd=0.7",), "algo.utd 1.0 -> 0.7 changed"),
        (("algo.utd=0.5", "algo.batch_size=512"), "algo.batch_size 256 -> 512, algo.utd 1.0 -> 0.5 changed"),
        (("algo.utd=0.5", "device=cpu"), "device auto -> cpu changed"),
        (("algo.utd=0.5", "env.kwargs.g=3"), "env.kwargs.g None -> 3"),
        ((), "nothing changed"),
    ],
)
def test_a_change_that_nobody_predicted_is_refused(tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    before, after = saved(tmp_path / "before"), saved(tmp_path / "after", *overrides)
    with pytest.raises(ConfigError, match=words):
        explain(after, before)


@pytest.mark.parametrize("changes", [{"rates": {}}, {"timing": {"learner": None, "collector": None}}, {"timing": {}}])
def test_a_summary_without_an_account_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no account to explain"):
        explain(saved(tmp_path / "run", **changes))


def test_a_run_that_has_not_ended_or_was_not_timed_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", timing={"learner": None, "collector": None})
    with pytest.raises(ConfigError, match="has no account to explain"):
        explain(run)
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="it is written when a run ends"):
        explain(run)
