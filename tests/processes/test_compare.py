"""Runs that really took place, compared by the command that users type."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.mp, pytest.mark.slow]

EVERY = ("env.id=offpolicy.envs.toy:PointMass-v0", "eval.episodes=1", "log.every_s=0.05", "threads.learner=1")
REPLAY = (*EVERY, "total_timesteps=3000", "algo.learning_starts=30", "algo.hidden_dims=[16,16]", "algo.batch_size=16")
ROLLOUTS = (
    *EVERY,
    "algo=appo",
    "total_timesteps=16000",
    "env.num_envs=2",
    "algo.epochs=1",
    "algo.num_minibatches=1",
    "rollout.length=64",
)


def train(run_cli: Any, run: Path, *words: str) -> Path:
    done = run_cli(["train", *words, f"run_dir={run}"])
    assert done.returncode == 0, done.stderr
    return run


def events_of(run: Path, copy: Path) -> Path:
    """A directory with the event files of a run and nothing else."""
    copy.mkdir()
    for path in run.glob("events.out.tfevents.*"):
        shutil.copy(path, copy)
    return copy


def compared(run_cli: Any, *words: str) -> list[str]:
    done = run_cli(["compare", *words])
    assert done.returncode == 0, done.stderr
    lines: list[str] = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_seeds_a_torn_record_event_files_and_a_run_of_appo_are_compared(run_cli: Any, tmp_path: Path) -> None:
    seeds = [train(run_cli, tmp_path / f"sac-{seed}", *REPLAY, f"seed={seed}") for seed in (1, 2)]
    copies = [events_of(run, tmp_path / f"events-{index}") for index, run in enumerate(seeds)]
    appo = train(run_cli, tmp_path / "appo", *ROLLOUTS)
    with (seeds[1] / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 3600, "wal')
    words = [f"{label}={run}" for label, runs in (("sac", seeds), ("events", copies)) for run in runs]
    lines = compared(run_cli, *words)
    assert "events: no config.yaml, so its settings are not compared" in lines
    rows = [line.split() for line in lines if line.startswith(("Train ", "Env Step ", "Iter Wall "))]
    # The event files of a run tell what its records tell; beside other tests the cores may be shared.
    assert [row[-1] in ("noise", "busy") for row in rows] == [True] * 3
    text = " ".join(" ".join(compared(run_cli, *words[:2], str(appo))).split())
    assert "warning: not the same task or algorithm (sac, appo): algo.name sac, appo" in text
    assert "env steps/iteration" in text
