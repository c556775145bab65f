"""`offpolicy explain`: from the files of a run to its report, and one run's prediction checked by the next."""

from __future__ import annotations

from pathlib import Path

from tests.unit.analysis.finished_run import finished_run, goes_on_after_its_end
from tests.unit.commands.conftest import Typed


def shown(printed: Typed, *words: str | Path) -> str:
    return " ".join(printed("explain", *words).split())


def test_costs_verdict_and_what_ifs_are_printed(tmp_path: Path, printed: Typed) -> None:
    text = shown(printed, finished_run(tmp_path / "run"))
    assert "Train 8,000.00 Env Step 3,000.00" in text
    assert "1 / T 10,000.00" in text
    # 5 of 105 s were an evaluation: 4.8 % of the 1/95 s that an env step took.
    assert "min(I, T) 250 100 100.0 Evaluation 95.2 4.8 the rest 95.0 0.2" in text
    assert "bottleneck learner (train): it is busy" in text
    assert "train 20 % faster 250 119 112 +18%" in text
    assert "the collector side bounds the run once an env step takes 6,000.0 us more" in text


def test_a_prediction_is_checked_by_what_the_run_that_followed_did(tmp_path: Path, printed: Typed) -> None:
    before, after = finished_run(tmp_path / "before"), finished_run(tmp_path / "after", "algo.utd=0.5", done=160.0)
    text = shown(printed, after, "--before", before)
    # One update per iteration: the learner's 10 ms per env step become 5. 99.75 between evaluations become 199.5.
    assert "did 100 env steps/s between evaluations and checkpoints and predicted 200 for 'algo.utd halved'" in text
    assert "this run did 168: off by +18.8%" in text  # 160 / (1 - 5/105)


def test_a_stop_and_another_start_after_the_end_are_named(tmp_path: Path, printed: Typed) -> None:
    run = finished_run(tmp_path / "stopped", status="interrupted", reason="stopped by a signal")
    assert "interrupted, stopped by a signal" in shown(printed, run)
    run = finished_run(tmp_path / "run", env_steps=1200)
    assert "started again" not in shown(printed, run)
    goes_on_after_its_end(run)
    assert (
        "was started again after it had ended at env step 1,200, and has not ended since: the account is of the start"
        " that ended, the configuration of the last start"
    ) in shown(printed, run)
