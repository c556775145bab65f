"""Whole runs: what they leave behind when all goes well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.mp


@pytest.mark.alone
def test_a_run_reaches_its_goal_and_its_account_closes(start_run: Any, traces: Any) -> None:
    run = start_run()
    code, out, err = run.finish()
    assert (code, err) == (0, "")
    summary = run.summary()
    assert (summary["status"], summary["exit_code"], summary["env_steps"], summary["updates"]) == (
        "completed", 0, 600, 500,
    )  # fmt: skip
    for side, most in (("learner", 0.02), ("collector", 0.03)):
        account = summary["timing"][side]
        assert account["other_s"] <= most * account["wall_s"]
        assert sum(account["phases_s"].values()) + account["other_s"] == pytest.approx(account["wall_s"], abs=1e-6)
    assert run.checkpoints() == ["step-000000000600"]
    assert "bottleneck=" in out
    assert {"config.yaml", "metrics.jsonl", "episodes.jsonl", "summary.json", "train.log"} <= {
        path.name for path in run.directory.iterdir()
    }
    traces.assert_none()


@pytest.mark.parametrize(
    "overrides",
    [
        ("collect.mode=overlap",),
        ("collect.mode=free", "collect.band=50"),
        ("algo=td3", "env.num_envs=4", "algo.utd=0.5"),
        ("algo.n_step=3", "algo.normalize_obs=true", "algo.critic_layer_norm=true", "algo.max_grad_norm=1.0"),
        ("env.num_envs=2", "env.vectorization=async"),
        pytest.param(("replay.capacity=128", "algo.utd=2"), marks=pytest.mark.slow),
        ("env.id=offpolicy.envs.toy:DictObs-v0",),
        pytest.param(("env.id=offpolicy.envs.toy:OddBounds-v0",), marks=pytest.mark.slow),
    ],
)
def test_every_mode_and_option_runs_to_its_end_at_its_utd(start_run: Any, overrides: tuple[str, ...]) -> None:
    run = start_run("total_timesteps=300", *overrides)
    code, _, err = run.finish()
    assert (code, err) == (0, "")
    summary = run.summary()
    assert summary["env_steps"] >= 300
    utd = next((float(o.split("=")[1]) for o in overrides if o.startswith("algo.utd")), 1.0)
    slack = 60 if "collect.mode=free" in overrides else 2
    assert abs(summary["updates"] - (summary["env_steps"] - 100) * utd) <= slack


def test_what_the_machine_attains_is_measured_once_and_held_against_the_run(
    start_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPOLICY_CACHE", str(tmp_path / "cache"))
    run = start_run("threads.learner=1")
    assert run.finish()[0] == 0
    records = [record for record in run.records() if "perf/flops_per_sec" in record]
    assert all(0.0 < record["perf/env_step_share"] < 1.0 for record in records if "perf/env_step_share" in record)
    known = [json.loads(path.read_text())["flops_per_sec"] for path in (tmp_path / "cache").glob("attainable-*.json")]
    assert len(known) <= 1  # a machine that is too busy tells nothing
    for record in records:
        assert record.get("perf/flops_of_attainable") == (record["perf/flops_per_sec"] / known[0] if known else None)


def test_without_timing_the_records_keep_their_rates_and_lose_their_phases(
    start_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPOLICY_CACHE", str(tmp_path / "cache"))
    run = start_run("timing.enabled=false")
    assert run.finish()[0] == 0
    assert not (tmp_path / "cache").exists()
    last = run.records()[-1]
    assert not [key for key in last if key.startswith("timing/")]
    assert run.summary()["timing"]["learner"] is None
    assert run.summary()["rates"]["steps_per_sec"] > 0


def test_timing_changes_nothing_that_is_learnt(start_run: Any, tmp_path: Path) -> None:
    saved = []
    for enabled in ("true", "false"):
        run = start_run(f"timing.enabled={enabled}", f"run_dir=timing-{enabled}", "total_timesteps=1100")
        assert run.finish()[0] == 0
        checkpoint = tmp_path / f"timing-{enabled}" / "checkpoints" / "step-000000001100"
        saved.append({name: (checkpoint / name).read_bytes() for name in ("learner.safetensors", "replay-0.f32")})
    assert saved[0] == saved[1]


def test_every_finished_episode_is_recorded_once(start_run: Any) -> None:
    run = start_run("env.id=offpolicy.envs.toy:Counter-v0", "env.kwargs.truncate_at=7", "total_timesteps=350")
    assert run.finish()[0] == 0
    episodes = [json.loads(line) for line in (run.directory / "episodes.jsonl").read_text().splitlines()]
    assert [episode["ep_length"] for episode in episodes] == [7] * 50
    assert [episode["env_steps"] for episode in episodes] == [7 * i for i in range(1, 51)]
