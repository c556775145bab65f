"""Every topology on one CUDA device, and the batch sources that only a device has. Run with `make test-gpu`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.analysis.trace_reader import read_tracks
from tests.processes.conftest import RUN_ID_VARIABLE, launch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
REPOSITORY = Path(__file__).resolve().parents[2]


def train(directory: Path, *overrides: str) -> dict[str, Any]:
    """The summary of a short run on the device."""
    command = [sys.executable, "-m", "offpolicy.cli", "train", "device=cuda", "total_timesteps=1500", "run_dir=run"]
    given = {override.split("=")[0] for override in overrides}
    words = [word for word in command if word.split("=")[0] not in given]
    subprocess.run(
        [*words, "eval.episodes=2", "log.tensorboard=false", *overrides],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    summary: dict[str, Any] = json.loads((directory / "run" / "summary.json").read_text())
    return summary


@pytest.mark.parametrize(
    "overrides",
    [
        ("runner=single_gpu",),
        ("runner=single_gpu", "replay.source=resident", "collect.mode=overlap", "collect.num_collectors=2"),
        ("runner=double_buffer",),
        ("runner=multi_gpu", "runner.world_size=2", "device=cuda:0", "runner.backend=gloo"),
        ("runner=multi_gpu", "runner.world_size=2", "device=cuda:0"),
        ("runner=multi_gpu", "runner.world_size=1", "runner.backend=nccl"),
        ("algo=appo", "total_timesteps=5000"),
        ("algo=appo", "total_timesteps=5000", "algo.lr_schedule=kl_adaptive", "collect.mode=alternate"),
        ("algo=appo", "total_timesteps=5000", "env.id=CartPole-v1", "collect.num_collectors=2"),
        (
            *("algo=appo", "total_timesteps=5000", "runner.world_size=2", "collect.num_collectors=2"),
            *("device=cuda:0", "runner.backend=gloo"),
        ),
    ],
)
def test_every_topology_completes_and_its_account_closes(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    summary = train(tmp_path, *overrides)
    account = summary["timing"]["learner"]
    assert summary["status"] == "completed"
    assert sum(account["phases_s"].values()) + account["other_s"] == pytest.approx(account["wall_s"], abs=1e-6)
    assert account["other_s"] <= 0.02 * account["wall_s"]


def last_record(run_dir: Path) -> dict[str, Any]:
    """The last record of a run that holds device times."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = next(record for record in reversed(records) if "device/train_ms" in record)
    return found


def test_ranks_are_bound_by_their_gradients_and_not_by_the_exchange(tmp_path: Path) -> None:
    """Two ranks on one card, with updates of some milliseconds each on the device."""
    wide = ("algo.hidden_dims=[2048,2048]", "algo.batch_size=8192", "algo.learning_starts=1000", "log.every_s=1")
    train(tmp_path, "runner=multi_gpu", "runner.world_size=2", "device=cuda:0", "runner.backend=gloo", *wide)
    record = last_record(tmp_path / "run")
    assert record["device/launch_bound"] < 0.2
    assert record["device/train_ms"] <= 1.05 * record["timing/learner_train_ms"]
    assert record["device/busy_share"] < 1.0
    assert record["rank/device_train_min_ms"] <= record["rank/device_train_max_ms"]
    assert record["rank/device_slowest"] in (0, 1)


def test_draws_from_a_resident_replay_are_device_time_of_their_own(tmp_path: Path) -> None:
    large = ("algo.batch_size=65536", "algo.hidden_dims=[16]", "algo.learning_starts=1000", "log.every_s=1")
    train(tmp_path, "replay.source=resident", *large)
    record = last_record(tmp_path / "run")
    assert record["device/sample_ms"] > 0.0
    assert record["timing/learner_replay_sample_ms"] > 0.0
    assert record["device/train_ms"] <= 1.05 * record["timing/learner_train_ms"]


def test_copies_in_the_trace_lie_where_the_packing_thread_issued_them(tmp_path: Path) -> None:
    """The host begins a copy before the device does, and has waited for it when it ends."""
    wide = ("algo.hidden_dims=[2048,2048]", "algo.batch_size=8192", "algo.learning_starts=1000")
    train(tmp_path, "runner=double_buffer", "timing.trace=true", *wide)
    tracks = {track.name: track for track in read_tracks(tmp_path / "run" / "trace" / "0")}
    starts, stops = tracks["device_copies-0"].spans("h2d_hidden")
    host_starts, host_stops = tracks["packer-0"].spans("copy")
    which = np.searchsorted(host_starts, starts, side="right") - 1
    slack_ns = 200_000  # of two clocks
    is_known = which >= 0
    assert len(starts) > 100
    assert is_known.mean() > 0.95
    inside = stops[is_known] <= host_stops[which[is_known]] + slack_ns
    assert inside.mean() > 0.98


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_rank_that_freezes_in_an_exchange_over_nccl_is_a_lost_rank(tmp_path: Path) -> None:
    """The other rank raises within the timeout; its process is not aborted."""
    ranks = ("runner=multi_gpu", "runner.world_size=2", "device=cuda", "runner.backend=nccl", "runner.timeout_s=10")
    words = ("train", *ranks, "total_timesteps=1000000", "eval.episodes=0", "log.every_s=0.2", "run_dir=run")
    run = launch(tmp_path, {RUN_ID_VARIABLE: f"nccl-{os.getpid()}"}, (), words)
    try:
        run.wait_for_updates(timeout_s=90.0)
        os.kill(run.pid_of("learner", 1), signal.SIGSTOP)
        code, _, errors = run.finish(timeout_s=60.0)
    finally:
        run.process.kill()
    assert code == 70
    assert "rank 1" in errors.strip().splitlines()[-1]
    assert "SIGABRT" not in errors


def test_both_stages_of_hora_complete_on_the_device(tmp_path: Path) -> None:
    hand = ("algo=hora", "env=hand_rotation", "env.num_envs=16", "total_timesteps=2000")
    first = tmp_path / "first"
    first.mkdir()
    train(first, *hand)
    summary = train(tmp_path, *hand, "stage=adapt", f"teacher={first}/run")
    assert summary["status"] == "completed"
    assert summary["eval"]["episodes"] == 2


def test_more_ranks_than_devices_are_refused(tmp_path: Path) -> None:
    too_many = torch.cuda.device_count() + 1
    result = subprocess.run(
        [sys.executable, "-m", "offpolicy.cli", "train", "runner=multi_gpu", f"runner.world_size={too_many}",
         f"algo.batch_size={128 * too_many}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "runner.world_size" in result.stderr
