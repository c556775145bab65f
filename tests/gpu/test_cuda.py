"""What only a CUDA device can show. Run with `make test-gpu` on a machine that has one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from offpolicy.algos.build import make_learner
from offpolicy.config import AlgoConfig
from offpolicy.nets.policy import flat_size, flatten_into
from offpolicy.timing.device import DeviceFence
from offpolicy.types import Batch, Batches, SpaceSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def batches(device: str, seed: int = 0, count: int = 4) -> Batches:
    rng = torch.Generator().manual_seed(seed)

    def one() -> Batch:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=rng).to(device)

        ones = torch.ones(256, device=device)
        return Batch(normal(256, 17), normal(256, 6).tanh(), normal(256), normal(256, 17), 0 * ones, 0.99 * ones)

    return Batches(tuple(one() for _ in range(count)), None)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_updates_on_the_device_stay_close_to_those_on_the_cpu(name: str) -> None:
    """TD3's critic draws no device-dependent number when the smoothing noise is off; SAC is compared by its loss."""
    algo = AlgoConfig(name=name, target_noise=0.0, policy_delay=2)
    losses = {}
    for device in ("cpu", "cuda"):
        learner = make_learner(algo, SPEC, torch.device(device), 7)
        learner.update(batches(device))
        totals = learner.read_metrics()
        losses[device] = dict(zip(totals.names, totals.sums / np.maximum(totals.counts, 1), strict=True))
    tolerance = 1e-4 if name == "td3" else 0.2
    assert losses["cuda"]["critic_loss"] == pytest.approx(losses["cpu"]["critic_loss"], rel=tolerance)


def test_the_fence_waits_for_the_work_queued_so_far() -> None:
    device = torch.device("cuda")
    work = torch.randn(4096, 4096, device=device)
    for _ in range(50):
        work = work @ work * 1e-3
    event = torch.cuda.Event()
    event.record()
    DeviceFence(device).wait()
    assert event.query()


def test_published_weights_are_those_on_the_device() -> None:
    learner = make_learner(AlgoConfig(name="sac"), SPEC, torch.device("cuda"), 7)
    learner.update(batches("cuda"))
    flat = np.zeros(flat_size(learner.policy), dtype=np.float32)
    flatten_into(learner.policy, flat)
    expected = np.concatenate([p.detach().cpu().numpy().ravel() for p in learner.policy.actor.parameters()])
    assert np.array_equal(flat, expected)


def test_a_run_on_the_device_completes_and_its_account_closes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offpolicy.cli", "train", "device=cuda", "total_timesteps=1500", "run_dir=run"]
    subprocess.run(
        [*command, "eval.episodes=2", "log.tensorboard=false"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    account = summary["timing"]["learner"]
    assert summary["status"] == "completed"
    assert sum(account["phases_s"].values()) + account["other_s"] == pytest.approx(account["wall_s"], abs=1e-6)
    assert account["other_s"] <= 0.02 * account["wall_s"]
