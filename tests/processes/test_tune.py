"""`offpolicy tune` with real trials, a run with what it wrote, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Traces
from tests.processes.conftest import StartRun, find_process

pytestmark = [pytest.mark.mp, pytest.mark.slow]

SMALL = ("algo.hidden_dims=[16,16]", "algo.batch_size=16", "threads.learner=1", "eval.episodes=0")


def test_a_tune_measures_real_runs_and_train_takes_what_it_wrote(run_cli: Any, tmp_path: Path) -> None:
    done = run_cli(["tune", *SMALL, "--minutes", "0.65", "--keep", "env"], timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == [lines[0].split()[0], "s", "(start):"]
    assert "(learner threads: 1), start" in lines[0]
    assert "  collect.mode=overlap: " in done.stdout or "collect.mode=overlap: no time left" in done.stdout
    assert max(len(line) for line in lines if line.startswith(" ") and " s  " not in line) <= 80
    assert "not touched  threads.learner: given on the command line" in lines
    words = (tmp_path / "tune.txt").read_text().split()
    assert tuple(words[:4]) == SMALL
    assert [path.name for path in tmp_path.iterdir()] == ["tune.txt"]
    run = ["total_timesteps=300", "algo.learning_starts=100", "run_dir=run"]
    assert run_cli(["train", *words, *run]).returncode == 0


def test_a_stop_ends_the_trial_and_writes_nothing(start_run: StartRun, traces: Traces, tmp_path: Path) -> None:
    tune = start_run(command=("tune", *SMALL))

    def has_learner() -> bool:
        with contextlib.suppress(AssertionError):
            return find_process(tune.run_id, "learner") > 0
        return False

    tune.wait_until(has_learner, 40.0)
    tune.signal(signal.SIGINT)
    code, out, err = tune.finish()
    assert (code, err) == (130, "")
    assert "interrupted: nothing is written" in out
    assert list(tmp_path.iterdir()) == []
    traces.assert_none()
