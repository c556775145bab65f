"""Runs that their evaluations end, that go on after a kill, and that begin with another run's networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.checkpoint import read_best
from offpolicy.collect.evaluations import read_scores
from tests.conftest import RunCli
from tests.processes.conftest import ENDLESS, StartRun, killed_and_resumed
from tests.processes.test_hora import tensors

pytestmark = pytest.mark.mp
EVERY = ("eval.every=100", "eval.episodes=1")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("eval.beside=false",), id="inline"),
        *(
            pytest.param(overrides, id=name, marks=pytest.mark.slow)
            for name, overrides in {
                "beside": ("eval.beside=true",),
                "double_buffer": ("eval.beside=false", "runner=double_buffer"),
                "two_ranks": ("eval.beside=true", "runner=multi_gpu", "runner.world_size=2", "device=cpu"),
                "free": ("eval.beside=false", "algo=td3", "collect.mode=free"),
            }.items()
        ),
    ],
)
def test_a_return_that_is_reached_ends_the_run_as_completed(start_run: StartRun, overrides: tuple[str, ...]) -> None:
    run = start_run(*EVERY, *ENDLESS, "stop.reward=-1e9", *overrides)
    code, out, err = run.finish_while_alive()
    assert (code, err) == (0, "")
    summary = run.summary()
    assert summary["status"] == "completed"
    assert summary["reason"].startswith("stopped early: mean return ")
    assert "at least stop.reward=-1e+09" in summary["reason"]
    assert summary["reason"] in out
    assert summary["env_steps"] < 100_000
    assert run.checkpoints() != []


@pytest.mark.slow
def test_a_resume_goes_on_only_with_other_values(start_run: StartRun, run_cli: RunCli) -> None:
    run = start_run(*EVERY, "stop.reward=-1e9")
    assert run.finish_while_alive()[0] == 0
    done = run.summary()["env_steps"]
    assert done < 600
    for words, total in (((), 600), (("total_timesteps=900",), 900)):  # what was given is not lost
        said = run_cli(["resume", "run", *words], cwd=run.directory.parent)
        assert (said.returncode, said.stdout.splitlines()[0][:32]) == (0, "already complete: stopped early:")
        assert said.stdout.splitlines()[1].endswith(f"offpolicy resume run stop.reward=null total_timesteps={total}")
    assert run.summary()["env_steps"] == done
    said = run_cli(["resume", "run", "stop.reward=1e9"], cwd=run.directory.parent)
    assert said.returncode == 0, said.stderr
    assert run.summary()["reason"] == "600 env steps done"


@pytest.mark.slow
def test_a_killed_run_has_the_best_policy_and_the_evaluations_of_one_that_was_not(start_run: StartRun) -> None:
    """Whether to stop is a function of the evaluations alone."""
    options = ("eval.every=50", "checkpoint.every=200", "collect.mode=alternate", "device=cpu", "stop.patience=1000")
    whole, broken, _ = killed_and_resumed(start_run, *options)
    whole, broken = whole.parents[1], broken.parents[1]
    assert len(read_scores(whole)) == 11  # at 101, after the warm-up, and at 150, 200, ... 600
    assert read_scores(broken) == read_scores(whole)
    assert read_best(broken).sha256 == read_best(whole).sha256


@pytest.mark.slow
def test_a_run_begins_with_the_networks_of_another(start_run: StartRun, finished_copy: Path, tmp_path: Path) -> None:
    finished_copy.rename(tmp_path / "source")
    options = ("init_from=source", "total_timesteps=110", "collect.mode=alternate", "device=cpu")
    run = start_run(*options)
    code, out, err = run.finish_while_alive()
    assert (code, err) == (0, "")
    assert "networks and normalisers: of source, env step 1,100" in out
    before, after = tensors(tmp_path / "source"), tensors(run.directory)
    distance = max(abs(after[name] - before[name]).max() for name in before if name.startswith("policy.actor."))
    assert 0.0 < distance < 0.02, "ten updates at a step size of 3e-4 from where the other run ended"
    assert json.loads((run.directory / "summary.json").read_text())["updates"] <= 11
