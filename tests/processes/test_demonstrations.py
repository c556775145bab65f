"""Runs that mix demonstrations into their batches, some with schedules: killed and resumed, over ranks, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpolicy.config.sections import EnvConfig
from tests.processes.conftest import killed_and_resumed, write_random_demos
from tests.processes.test_resume import saved_files

pytestmark = [pytest.mark.mp, pytest.mark.slow]
POINT = EnvConfig(id="offpolicy.envs.toy:PointMass-v0")
VARIANTS = {
    "direct": ("algo.n_step=3", "env.num_envs=2", "algo.actor_lr={start:3e-4,end:0,over:500,shape:cosine}"),
    "resident": ("algo=td3", "replay.source=resident", "algo.exploration_noise={start:0.4,end:0,over:550}"),
    "prefetch": ("replay.source=prefetch", "algo.normalize_obs=true", "algo.target_entropy={start:0,end:-2,over:400}"),
}


@pytest.fixture(autouse=True)
def _demos(tmp_path: Path) -> None:
    write_random_demos(tmp_path / "demos.npz", POINT.id)


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_inside_a_demo_cycle_and_a_ramp_the_run_resumes_bitwise(start_run: Any, variant: str) -> None:
    options = (*VARIANTS[variant], "replay.demos=demos.npz", "total_timesteps=700", "checkpoint.every=100")
    whole, again, output = killed_and_resumed(start_run, *options)
    assert saved_files(again) == saved_files(whole)
    assert "4 of 16 rows of every batch from demos.npz" in output


def test_two_ranks_learn_the_same_from_demonstrations_and_schedules(start_run: Any) -> None:
    run = start_run(
        "runner=multi_gpu", "runner.world_size=2", "device=cpu", "replay.demos=demos.npz", "replay.demo_share=0.5",
        "algo.actor_lr={start:3e-4,end:1e-4,over:300}", "total_timesteps=300",
    )  # fmt: skip
    code, out, err = run.finish()
    assert code == 0, err
    assert "4 of 8 rows of every batch" in out
    assert run.records()[-1]["train/actor_lr"] == pytest.approx(3e-4 - 2e-4 * 200 / 300)
