"""Every topology on one CUDA device, and the batch sources that only a device has. Run with `make test-gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.protocols import StatefulBatchSource
from offpolicy.replay.prefetch_source import Packer, PrefetchSource, PrefetchSpec
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.replay.ring import Ring, RowLayout
from offpolicy.replay.sampler import UniformSampler
from offpolicy.timing.device_timer import StreamSync
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import PackerPhase
from offpolicy.types import Batches

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
REPOSITORY = Path(__file__).resolve().parents[2]
LAYOUT = RowLayout(obs_dim=17, action_dim=6)
CUDA = torch.device("cuda", 0)


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
        ("runner=double_buffer", "replay.newest=true"),
        ("runner=multi_gpu", "runner.world_size=2", "device=cuda:0", "runner.backend=gloo"),
        ("runner=multi_gpu", "runner.world_size=2", "device=cuda:0", "runner.sync=parameters"),
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


class Gate:
    """A collector that is always ahead."""

    env_steps = 10**9

    def wait_for(self, env_steps: int) -> None:
        """It is there."""

    def grant(self, env_steps: int) -> None:
        """It needs no leave."""


def numbered(start: int, count: int) -> np.ndarray:
    """Rows whose every column is a function of their index."""
    return (np.arange(start, start + count)[:, None] % 8192 + np.arange(LAYOUT.width) / 64).astype(np.float32)


def make_source(kind: str, ring: Ring) -> StatefulBatchSource[Batches]:
    limiter = RateLimiter(Fraction(1), start=0, start_updates=0, lead=0, credit=0, max_updates=1, total=10**9)
    gate = Gate()
    spec = SourceSpec(LAYOUT, limiter, 256, CUDA, normalize_obs=False)
    if kind == "resident":
        sampler = ResidentSampler([ring], CUDA, 7, StreamSync(CUDA))
        return ResidentSource(spec, [ring], sampler, gate, gate, 0)
    packer = Packer(UniformSampler([ring], np.random.default_rng(7), guard=64), gate, CUDA, Ledger(PackerPhase))
    return PrefetchSource(PrefetchSpec(spec), [ring], packer, gate, gate, 0)


@pytest.mark.parametrize("kind", ["prefetch", "resident"])
def test_ten_thousand_batches_hold_whole_rows_while_the_ring_is_overwritten(kind: str) -> None:
    ring = Ring(memoryview(bytearray(Ring.nbytes(4096, LAYOUT.width, 4))), LAYOUT.width, np.float32)
    ring.append(numbered(0, 4096))
    source = make_source(kind, ring)
    columns = torch.arange(LAYOUT.width, device=CUDA) / 64
    num_bad = torch.zeros((), dtype=torch.int64, device=CUDA)
    try:
        for batch in range(10_000):
            ring.append(numbered(4096 + 8 * batch, 8))
            source.wait_ready()
            source.wait_batch()
            rows = source.to_device(source.sample()).updates[0].obs
            num_bad += (rows - rows[:, :1] != columns[: rows.shape[1]]).any(dim=1).sum()
            source.release()
    finally:
        source.close()
    assert int(num_bad) == 0
