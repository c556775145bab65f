"""Predictions before the change, checked by the run after it. Both sides sleep: nobody takes a core from the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import RunCli
from tests.mp.test_scenes import SLOW_STEP, train

pytestmark = pytest.mark.mp
SLEEPS = (SLOW_STEP, "env.kwargs.step_ms=10", "total_timesteps=160")
UPDATE = {"SLOW_UPDATE_MS": "40"}


def off_by(told: str) -> float:
    """What `explain` says of the prediction, as a share."""
    found = re.search(r"off by ([+-][0-9.]+)%$", " ".join(told.split()))
    assert found is not None, told
    return float(found.group(1)) / 100.0


@pytest.mark.parametrize("mode", ["overlap", pytest.param("alternate", marks=pytest.mark.slow)])
def test_half_the_updates_give_what_was_predicted(run_cli: RunCli, tmp_path: Path, mode: str) -> None:
    words = (*SLEEPS, f"collect.mode={mode}")
    train(tmp_path, (*words, "run_dir=before"), UPDATE)
    train(tmp_path, (*words, "run_dir=after", "algo.utd=0.5"), UPDATE)
    done = run_cli(["explain", "after", "--before", "before"])
    assert (done.returncode, done.stderr) == (0, "")
    assert abs(off_by(done.stdout)) <= 0.1


@pytest.mark.slow
def test_another_mode_gives_what_was_predicted(run_cli: RunCli, tmp_path: Path) -> None:
    train(tmp_path, (*SLEEPS, "collect.mode=alternate", "run_dir=before"), UPDATE)
    train(tmp_path, (*SLEEPS, "collect.mode=overlap", "run_dir=after"), UPDATE)
    done = run_cli(["explain", "after", "--before", "before"])
    assert done.returncode == 0
    assert abs(off_by(done.stdout)) <= 0.1


def test_a_run_without_a_summary_cannot_be_explained(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{}")
    done = run_cli(["explain", "run"])
    assert done.returncode == 2
    assert "it is written when a run ends" in done.stderr
