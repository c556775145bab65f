"""HORA as real processes: a teacher, a student that begins with it, and both side by side."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.conftest import REPOSITORY, RunCli
from tests.processes.conftest import StartRun, killed_and_resumed

pytestmark = pytest.mark.mp
SIZES = (
    "algo.hidden_dims=[16,16]", "algo.encoder_dims=[8]", "algo.latent_dim=3", "env.num_envs=4",
    "env.kwargs.num_threads=1", "rollout.length=8", "algo.num_minibatches=2", "algo.epochs=1", "threads.learner=1",
    "log.tensorboard=false", "log.every_s=0.2",
)  # fmt: skip
TEACH = ("train", "algo=hora", "env=hand_rotation", *SIZES, "total_timesteps=96", "eval.episodes=0")
ADAPT = ("train", "algo=hora", "env=hand_rotation", "stage=adapt", *SIZES, "total_timesteps=192", "eval.episodes=1")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of stage 1."""
    path = tmp_path_factory.mktemp("hora") / "teacher"
    command = [sys.executable, "-m", "offpolicy.cli", *TEACH, f"run_dir={path}"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True, capture_output=True)
    return path


def tensors(run: Path) -> dict[str, Any]:
    """The newest saved learner."""
    return dict(load_file(sorted((run / "checkpoints").glob("step-*"))[-1] / "learner.safetensors"))


@pytest.mark.promise("default-runner")
def test_a_student_starts_from_its_teacher_and_keeps_the_trunk(
    start_run: StartRun, teacher: Path, tmp_path: Path, traces: Any
) -> None:
    run = start_run(f"teacher={teacher}", "run_dir=student", command=ADAPT)
    code, out, err = run.finish()
    assert (code, err) == (0, "")
    assert f"teacher: {teacher}" in out
    assert run.summary()["status"] == "completed"
    assert any(record.get("train/latent_loss", 0.0) > 0.0 for record in run.records())
    before, after = tensors(teacher), tensors(tmp_path / "student")
    for name, values in before.items():
        kept = {"policy.actor.encoder": "encoder", "policy.actor.trunk": "policy.actor.trunk"}
        new = next((name.replace(old, new) for old, new in kept.items() if name.startswith(old)), None)
        assert new is None or values.tobytes() == after[new].tobytes(), name
    known = len(before["policy.normalizer.mean"])
    assert before["policy.normalizer.mean"].tobytes() == after["policy.normalizer.mean"][:known].tobytes()
    assert after["history.normalizer.count"] == 192  # every transition that was learnt from
    traces.assert_none()


@pytest.mark.slow
def test_a_student_killed_resumes_bitwise_without_its_teacher(
    start_run: StartRun, teacher: Path, tmp_path: Path
) -> None:
    gone = shutil.copytree(teacher, tmp_path / "gone")
    options = (
        "teacher=gone", "collect.mode=alternate", "total_timesteps=1600", "checkpoint.every=64", "eval.episodes=0",
    )  # fmt: skip
    whole, again, _ = killed_and_resumed(start_run, *options, command=ADAPT, before_resume=lambda: shutil.rmtree(gone))
    for name in ("learner.safetensors", "collector-0.safetensors"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_policies_are_compared_under_other_physics(run_cli: RunCli, teacher: Path) -> None:
    words = ("--episodes", "4", "--random", "--set", "env.kwargs.physics=held_out")
    done = run_cli(["eval", f"teacher={teacher}", f"again={teacher}", *words])
    assert (done.returncode, done.stderr) == (0, "")
    table = done.stdout
    assert "net_rotation" in table
    assert "1.00 [1.00, 1.00]" in table  # the same policy on the same episodes
    assert "random" in table
    record = json.loads((teacher / "eval.jsonl").read_text().splitlines()[-1])
    assert record["set"] == {"env": {"kwargs": {"physics": "held_out"}}}
    assert record["episodes"] == 4
