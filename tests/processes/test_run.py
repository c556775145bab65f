"""Whole runs that succeed: their files, summaries and records, and what does not change the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe
from offpolicy.replay.demonstrations import read_demos
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from tests.conftest import RunCli
from tests.processes.conftest import FINISHED, TINY, LiveRun, replay_bytes, run_to_end

pytestmark = pytest.mark.mp


@pytest.mark.promise("account-closes", "summary", "run-dir", "plain-line", "no-silent-success")
def test_a_run_completes_and_its_time_account_closes(finished_run: LiveRun) -> None:
    summary = finished_run.summary()
    assert (summary["status"], summary["exit_code"], summary["env_steps"], summary["updates"]) == (
        "completed", 0, 1100, 1000,
    )  # fmt: skip
    for account in (summary["timing"][side] for side in ("learner", "collector")):
        assert sum(account["phases_s"].values()) + account["other_s"] == pytest.approx(account["wall_s"], abs=1e-6)
    assert finished_run.checkpoints()[-1] == "step-000000001100"
    assert "bottleneck=" in finished_run.out
    assert f"updates: {summary['kernels']}" in finished_run.out
    assert {"config.yaml", "metrics.jsonl", "episodes.jsonl", "summary.json", "train.log"} <= {
        path.name for path in finished_run.directory.iterdir()
    }
    assert summary["run"]["command"].startswith("offpolicy train ")
    assert summary["run"]["command"] in (finished_run.directory / "config.yaml").read_text()
    assert len([line for line in finished_run.out.splitlines() if "offpolicy eval run --episodes 20" in line]) == 1


@pytest.mark.promise("run-dir")
def test_a_complete_run_is_left_as_it_is(start_run: Any, finished_copy: Path) -> None:
    before = contents(finished_copy)
    for command in (("train", *TINY, *FINISHED), ("resume", "run")):
        code, out, _ = start_run(command=command).finish()
        assert (code, contents(finished_copy)) == (0, before)
        assert "already complete: 1,100 of 1,100 env steps" in out
        assert "total_timesteps=2200" in out


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a run but the lock, which names its last holder: when it was written, and what it holds."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_every_command_reads_a_finished_run(run_cli: RunCli, finished_copy: Path) -> None:
    for words, said in (
        ("list .", "completed"),
        ("explain run", "active time per env step"),
        ("eval run --episodes 2", "mean"),
        ("record run --out demos.npz --episodes 3", "transitions of 3 episodes, mean return"),
        ("prune run --dry-run", "would be removed"),
    ):
        done = run_cli(words.split())
        assert (done.returncode, said in done.stdout) == (0, True), f"{words}: {done.stdout}{done.stderr}"
    spec = probe(EnvConfig(id="offpolicy.envs.toy:PointMass-v0")).spec
    assert len(read_demos(str(finished_copy.parent / "demos.npz"), spec).first) == 3


@pytest.mark.promise("utd", "collect-modes", "any-env")
@pytest.mark.parametrize(
    "overrides",
    [
        ("collect.mode=overlap", "env.num_envs=2", "env.vectorization=async", "env.id=tests.toys:DictObs-v0"),
        pytest.param(("collect.mode=free", "collect.band=50"), marks=pytest.mark.slow),
        ("algo=td3", "env.num_envs=4", "algo.utd=0.5"),
        pytest.param(("algo.critic_layer_norm=true", "algo.max_grad_norm=1.0"), marks=pytest.mark.slow),
        pytest.param(("replay.capacity=128", "algo.utd=2"), marks=pytest.mark.slow),
        pytest.param(("env.id=tests.toys:OddBounds-v0",), marks=pytest.mark.slow),
    ],
)
def test_every_mode_and_option_completes_at_its_utd(start_run: Any, overrides: tuple[str, ...]) -> None:
    run = start_run("total_timesteps=300", *overrides)
    code, _, err = run.finish()
    assert (code, err) == (0, "")
    summary = run.summary()
    assert summary["env_steps"] >= 300
    utd = next((float(o.split("=")[1]) for o in overrides if o.startswith("algo.utd")), 1.0)
    slack = 60 if "collect.mode=free" in overrides else 2
    assert abs(summary["updates"] - (summary["env_steps"] - 100) * utd) <= slack


ALGORITHMS = {
    "sac": (),
    "td3": ("algo=td3",),
    "flashsac": ("algo=flashsac", "algo.actor_width=8", "algo.critic_width=8", "algo.num_bins=11"),
}
RUNNERS = {
    "single_gpu": (),
    "double_buffer": ("runner=double_buffer",),
    "multi_gpu": ("runner=multi_gpu", "runner.world_size=2", "device=cpu"),
}
IN_A_CHANGE = ("flashsac", "single_gpu"), ("td3", "double_buffer")  # the others are nightly; see test_rank_faults.py


@pytest.mark.promise("default-runner", "learner-phases", "collector-phases")
@pytest.mark.parametrize(
    ("algo", "runner"),
    [
        pytest.param(algo, runner, marks=() if (algo, runner) in IN_A_CHANGE else pytest.mark.slow)
        for algo in ALGORITHMS
        for runner in RUNNERS
    ],
)
def test_every_algorithm_trains_and_resumes_on_every_runner(start_run: Any, algo: str, runner: str) -> None:
    command = ("train", *(word for word in TINY if algo != "flashsac" or not word.startswith("algo.hidden_dims")))
    run = start_run("total_timesteps=300", *ALGORITHMS[algo], *RUNNERS[runner], command=command)
    assert run.finish(100.0)[::2] == (0, "")
    run = start_run("total_timesteps=400", command=("resume", "run"))
    code, out, err = run.finish(100.0)
    assert (code, err) == (0, "")
    assert "resuming at env step 300" in out
    assert (run.summary()["env_steps"], run.summary()["updates"]) == (400, 300)
    last = run.records()[-1]
    assert {f"timing/learner_{phase}_ms" for phase in LearnerPhase} <= last.keys()
    assert {f"timing/collector_{phase}_ms" for phase in CollectorPhase} <= last.keys()


def model_and_rows(run: LiveRun, step: int = 1100) -> dict[str, bytes]:
    checkpoint = run.directory / "checkpoints" / f"step-{step:012d}"
    return {"learner": (checkpoint / "learner.safetensors").read_bytes(), "replay": replay_bytes(checkpoint)}


@pytest.mark.promise("measuring-changes-nothing")
def test_without_timing_records_keep_rates_and_the_learning_is_bitwise_the_same(
    finished_run: LiveRun, tmp_path: Path
) -> None:
    run = run_to_end(tmp_path, *FINISHED, "timing.enabled=false")
    assert not [key for key in run.records()[-1] if key.startswith("timing/")]
    assert run.summary()["timing"]["learner"] is None
    assert run.summary()["rates"]["steps_per_sec"] > 0
    assert model_and_rows(run) == model_and_rows(finished_run)


@pytest.mark.parametrize("algo", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_double_buffer_that_does_not_run_ahead_is_bitwise_single_gpu(
    finished_run: LiveRun, tmp_path: Path, algo: str
) -> None:
    single = finished_run if algo == "sac" else run_to_end(tmp_path, *FINISHED, f"algo={algo}")
    words = ("runner=double_buffer", "replay.slots=1", f"algo={algo}", "run_dir=double")
    assert model_and_rows(run_to_end(tmp_path, *FINISHED, *words)) == model_and_rows(single)
