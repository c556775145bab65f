"""Resume in `alternate` mode on the CPU: bit for bit the uninterrupted run, in parameters and replay."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from offpolicy.checkpoint import CheckpointStore

pytestmark = pytest.mark.mp
COMPARED = ("learner.safetensors", "replay-0.f32", "collector-0.safetensors")

VARIANTS = {
    "sac": ("algo.normalize_obs=true", "algo.n_step=3", "env.num_envs=2"),
    "td3": ("algo=td3", "env.id=Pendulum-v1", "replay.capacity=300"),
    "mujoco": ("env.id=InvertedPendulum-v5", "algo.utd=0.5"),
}


def final_state(directory: Path, step: int) -> dict[str, bytes]:
    checkpoint = directory / "checkpoints" / f"step-{step:012d}"
    return {name: (checkpoint / name).read_bytes() for name in COMPARED}


@pytest.mark.parametrize("variant", ["sac", "mujoco", pytest.param("td3", marks=pytest.mark.slow)])
def test_a_run_killed_and_resumed_equals_the_uninterrupted_one(start_run: Any, tmp_path: Path, variant: str) -> None:
    options = (*VARIANTS[variant], "total_timesteps=700", "checkpoint.every=100")
    assert start_run(*options, "run_dir=whole").finish()[0] == 0
    broken = start_run(*options, "run_dir=broken")
    broken.wait_until(lambda: len(broken.checkpoints()) >= 2, timeout_s=40)
    broken.signal(signal.SIGKILL)
    broken.finish()
    assert broken.checkpoints()[-1] < "step-000000000700", "killed too late to prove anything"
    code, out, _ = start_run(command=("resume", "broken")).finish()
    assert code == 0
    assert "not bitwise" not in out
    assert final_state(tmp_path / "broken", 700) == final_state(tmp_path / "whole", 700)


def tampered(tmp_path: Path, change: Any) -> Path:
    """A copy of the run `first` whose newest checkpoint went through `change`, with a valid manifest."""
    target = tmp_path / "tampered"
    shutil.copytree(tmp_path / "first", target)
    store = CheckpointStore(target / "checkpoints")
    old = store.newest_valid()
    assert old is not None
    streams = old.json("rank-0")
    change(streams)
    content = {path.name: path.read_bytes() for path in old.path.iterdir() if path.name != "MANIFEST.json"}
    with store.begin(old.env_steps) as draft:
        for name, whole in (content | {"rank-0.json": json.dumps(streams).encode()}).items():
            (draft.path / name).write_bytes(whole)
    return target


def forget_sampler(streams: dict[str, Any]) -> None:
    streams["sampler"]["state"] = str(int(streams["sampler"]["state"]) ^ 2**70)


def forget_generator(streams: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415  # only this control needs it

    streams["updates"] = torch.Generator().manual_seed(0).get_state().numpy().tobytes().hex()


@pytest.mark.parametrize("change", [forget_sampler, pytest.param(forget_generator, marks=pytest.mark.slow)])
def test_a_random_stream_that_is_not_restored_is_caught_by_the_comparison(
    start_run: Any, tmp_path: Path, change: Any
) -> None:
    """The negative control of the test above."""
    assert start_run("run_dir=first", "total_timesteps=300").finish()[0] == 0
    tampered(tmp_path, change)
    for name in ("first", "tampered"):
        assert start_run("total_timesteps=400", command=("resume", name)).finish()[0] == 0
    assert final_state(tmp_path / "first", 400) != final_state(tmp_path / "tampered", 400)


def test_without_the_replay_rows_the_run_refills_first_and_owes_no_updates(start_run: Any) -> None:
    assert start_run("checkpoint.replay=false", "total_timesteps=300").finish()[0] == 0
    resumed = start_run("total_timesteps=600", command=("resume", "run"))
    assert resumed.finish()[0] == 0
    assert resumed.summary()["updates"] == 200 + (600 - 300 - 100)


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(start_run: Any) -> None:
    run = start_run("checkpoint.every=200")
    assert run.finish()[0] == 0
    newest = run.directory / "checkpoints" / "step-000000000600" / "learner.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    code, out, _ = start_run(command=("resume", "run")).finish()
    assert code == 0
    assert "learner.safetensors" in out
    assert "step-000000000400" in out
