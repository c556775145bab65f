"""`collect.hook` in a real run: counted, hidden beside collecting, and never in the way for longer than its queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.mp, pytest.mark.slow]
HOOKS = "tests.processes.example_hooks"
RUN = (
    "env.id=offpolicy.envs.toy:PointMass-v0", "total_timesteps=1500", "algo.learning_starts=100", "eval.episodes=0",
    "algo.hidden_dims=[16,16]", "algo.batch_size=16", "log.every_s=0.2", "threads.learner=1",
)  # fmt: skip


def finished(run_cli: Any, path: Path, hook: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the records of a run with the hook, and what it printed."""
    done = run_cli(["train", *RUN, f"collect.hook={HOOKS}:{hook}", f"run_dir={path}", *words])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()], done.stdout


def num_episodes(path: Path) -> int:
    return len((path / "episodes.jsonl").read_text().splitlines())


def test_every_training_episode_reaches_the_hook_beside_collecting(run_cli: Any, tmp_path: Path) -> None:
    records, _ = finished(run_cli, tmp_path / "run", "take_100_ms")
    last = records[-1]
    assert num_episodes(tmp_path / "run") >= 10
    assert num_episodes(tmp_path / "run") - 3 <= last["collect/post_episodes"] <= num_episodes(tmp_path / "run")
    assert last["collect/post_failures"] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())  # of a run without an evaluation
    assert summary["rollout"] == {"ep_rew_mean": last["rollout/ep_rew_mean"]}
    assert all(record["collect/overlap"] > 0.9 for record in records if "collect/overlap" in record)


def test_failures_are_counted_reported_once_and_cost_nothing_else(run_cli: Any, tmp_path: Path) -> None:
    records, out = finished(run_cli, tmp_path / "run", "fail_if_odd")
    done, failed = records[-1]["collect/post_episodes"], records[-1]["collect/post_failures"]
    assert done >= 10
    assert failed == done // 2
    assert out.count("collect.hook failed for the training episode that ended at env step") == 1
    assert "ValueError: episode 1 is odd" in (tmp_path / "run" / "train.log").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


def test_a_hook_that_does_not_exist_is_refused_before_anything_starts(run_cli: Any, tmp_path: Path) -> None:
    done = run_cli(["train", *RUN, f"collect.hook={HOOKS}:no_such_function", f"run_dir={tmp_path / 'run'}"])
    assert done.returncode == 2
    assert f"collect.hook: got '{HOOKS}:no_such_function', allowed module:function: AttributeError" in done.stderr
    assert not (tmp_path / "run").exists()
