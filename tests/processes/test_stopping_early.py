"""Runs that their evaluations end, that go on after a kill, and that begin with another run's networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes.conftest import ENDLESS, StartRun
from tests.processes.test_hora import tensors

pytestmark = pytest.mark.mp
EVERY = ("eval.every=100", "eval.episodes=1")
TWO_RANKS = ("runner=multi_gpu", "runner.world_size=2", "device=cpu")


@pytest.mark.parametrize("ranks", [(), pytest.param(TWO_RANKS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("beside", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_a_return_that_is_reached_ends_the_run_as_completed(
    start_run: StartRun, beside: str, ranks: tuple[str, ...]
) -> None:
    run = start_run(*EVERY, *ENDLESS, "stop.reward=-1e9", f"eval.beside={beside}", *ranks)
    code, out, err = run.finish(100.0)
    assert (code, err) == (0, "")
    summary = run.summary()
    assert summary["status"] == "completed"
    assert summary["reason"].startswith("stopped early: mean return ")
    assert "at least stop.reward=-1e+09" in summary["reason"]
    assert summary["reason"] in out
    assert summary["env_steps"] < 100_000
    assert run.checkpoints() != []


@pytest.mark.slow
def test_a_run_begins_with_the_networks_of_another(start_run: StartRun, finished_copy: Path, tmp_path: Path) -> None:
    finished_copy.rename(tmp_path / "source")
    options = ("init_from=source", "total_timesteps=110", "algo.normalize_obs=true", "device=cpu")
    run = start_run(*options)
    code, out, err = run.finish(100.0)
    assert (code, err) == (0, "")
    assert "networks and normalisers: of source, env step 1,100" in out
    before, after = tensors(tmp_path / "source"), tensors(run.directory)
    distance = max(abs(after[name] - before[name]).max() for name in before if name.startswith("policy.actor."))
    assert 0.0 < distance < 0.02, "ten updates at a step size of 3e-4 from where the other run ended"
    assert json.loads((run.directory / "summary.json").read_text())["updates"] <= 11
