"""Advice that is followed makes the run faster: each of the settings that a verdict names on a CPU.

Packing beside training is not among them: on a CPU no real update is shorter than the gathering of its rows.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCli

TWO_CORES = len(os.sched_getaffinity(0)) >= 2
pytestmark = [
    pytest.mark.mp, pytest.mark.slow, pytest.mark.alone,
    pytest.mark.skipif(not TWO_CORES, reason="there is no core for another thread or process"),
]  # fmt: skip
COMMON = (
    *("env=halfcheetah", "algo.learning_starts=300", "replay.capacity=20000", "eval.every=0", "eval.episodes=0"),
    *("checkpoint.every=0", "checkpoint.replay=false", "log.tensorboard=false", "log.panel=off", "log.every_s=1"),
)
HEAVY_STEP = "env.kwargs.frame_skip=1300"  # an env step of about 10 ms
SMALL = ("algo.hidden_dims=[64,64]", "algo.batch_size=64")
# The advice, what a run has that is given it, and the least factor by which it must be faster.
FOLLOWED = {
    "threads.learner=auto": (("threads.learner=1", "algo.hidden_dims=[400,400]", "total_timesteps=1000"), 1.05),
    "collect.mode=auto": ((HEAVY_STEP, "threads.learner=1", "total_timesteps=1000"), 1.2),
    "env.vectorization=async": (
        (HEAVY_STEP, *SMALL, "threads.learner=1", "env.num_envs=2", "env.vectorization=sync", "total_timesteps=1200"),
        1.2,
    ),
    "env.num_envs=4 env.vectorization=async": (
        (HEAVY_STEP, *SMALL, "threads.learner=1", "env.num_envs=1", "env.vectorization=sync", "total_timesteps=1200"),
        1.2,
    ),
    "eval.beside=true": (
        (
            *(HEAVY_STEP, *SMALL, "threads.learner=1", "eval.beside=false"),
            *("eval.every=100", "eval.episodes=3", "env.kwargs.max_episode_steps=60", "total_timesteps=700"),
        ),
        1.3,
    ),
}  # fmt: skip


def summary_of(run_cli: RunCli, tmp_path: Path, name: str, *overrides: str) -> dict[str, Any]:
    done = run_cli(["train", *COMMON, *overrides, f"run_dir={name}"], timeout=240.0)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((tmp_path / name / "summary.json").read_text())
    return summary


def settings(summary: dict[str, Any]) -> list[str]:
    """The settings that are advised, without why."""
    settings_advised = (advice.partition(": ")[0] for advice in summary["bottleneck"]["advice"])
    return [" ".join(word for word in text.split() if "=" in word) for text in settings_advised]


@pytest.mark.parametrize("advice", FOLLOWED)
def test_advice_that_is_followed_makes_the_run_faster(run_cli: RunCli, tmp_path: Path, advice: str) -> None:
    overrides, factor = FOLLOWED[advice]
    before = summary_of(run_cli, tmp_path, "before", *overrides)
    assert advice in settings(before), before["bottleneck"]
    words = advice.split()
    keys = {word.partition("=")[0] for word in words}
    kept = [override for override in overrides if override.partition("=")[0] not in keys]
    after = summary_of(run_cli, tmp_path, "after", *kept, *words)
    faster = after["rates"]["steps_per_sec"] / before["rates"]["steps_per_sec"]
    assert faster >= factor, (before["rates"], after["rates"])
