"""APPO as real processes: the same loop, account and duties as every algorithm, with rollouts in between."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.processes.conftest import LiveRun, StartRun, kill_and_resume, last_checkpoint, run_to_end
from tests.processes.test_delays import POINT, SLOW_STEP

pytestmark = pytest.mark.mp
TINY_APPO = (
    "train", "algo=appo", POINT, "algo.hidden_dims=[16,16]", "algo.epochs=2", "algo.num_minibatches=2",
    "env.num_envs=2", "rollout.length=10", "threads.learner=1", "total_timesteps=600", "eval.episodes=1",
    "log.tensorboard=false", "log.every_s=0.2", "run_dir=run",
)  # fmt: skip
ENDLESS = "total_timesteps=100000000"
REPEATABLE = ("collect.mode=alternate", "total_timesteps=1000", "checkpoint.every=100", "algo.lr_schedule=kl_adaptive")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    """A run to its end, for tests that only read it."""
    return run_to_end(tmp_path_factory.mktemp("appo"), *REPEATABLE, command=TINY_APPO)


@pytest.mark.promise("account-closes")
def test_a_run_completes_and_its_time_account_closes(whole: LiveRun) -> None:
    summary = whole.summary()
    assert summary["status"] == "completed"
    assert 1000 <= summary["env_steps"] < 1020
    assert (
        summary["not_learnt_from"] == 0
    )  # in alternate mode a rollout is not begun before the last one is learnt from
    assert summary["updates"] == 2 * 2 * whole.records()[-1]["iteration"] >= 2 * 2 * 50
    for account in summary["timing"].values():
        closed = sum(account["phases_s"].values()) + account["other_s"]
        assert closed == pytest.approx(account["wall_s"], abs=1e-6)
    assert "rollouts: 1 of 10 steps x 2 environments" in whole.out


@pytest.mark.promise("any-env")
@pytest.mark.parametrize("env_id", ["CartPole-v1", pytest.param("tests.toys:Locks-v0", marks=pytest.mark.slow)])
def test_discrete_actions_train(start_run: StartRun, env_id: str) -> None:
    run = start_run(f"env.id={env_id}", command=TINY_APPO)
    assert run.finish()[::2] == (0, "")
    assert run.summary()["eval"]["episodes"] == 1


@pytest.mark.parametrize(
    "overrides",
    [
        ("collect.mode=overlap", "algo.advantage=gae", "algo.lr_schedule=linear"),
        pytest.param(
            (
                *("env.id=offpolicy.envs.hand:HandRotation-v1", "env.vectorization=mujoco", "eval.episodes=0"),
                "env.kwargs.groups=[obs,privileged]",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(("rollout.when_full=drop", "rollout.slots=1"), marks=pytest.mark.slow),
        pytest.param(("collect.num_collectors=3", "env.vectorization=async"), marks=pytest.mark.slow),
    ],
)
def test_every_option_completes(start_run: StartRun, overrides: tuple[str, ...]) -> None:
    run = start_run(*overrides, command=TINY_APPO)
    assert run.finish()[::2] == (0, "")
    assert run.summary()["env_steps"] >= 600


@pytest.mark.slow
def test_two_ranks_learn_each_from_a_collector(start_run: StartRun) -> None:
    ranks = ("runner.world_size=2", "collect.num_collectors=2", "device=cpu", "total_timesteps=1200")
    run = start_run(*ranks, command=TINY_APPO)
    assert run.finish(100.0)[::2] == (0, "")
    summary = run.summary()
    assert summary["env_steps"] - summary["not_learnt_from"] >= 1200
    assert max(record.get("rank/num", 0) for record in run.records()) == 2


@pytest.mark.promise("exact-resume")
def test_a_run_killed_and_resumed_is_bitwise_the_uninterrupted_one(start_run: StartRun, whole: LiveRun) -> None:
    again, expected = kill_and_resume(start_run, whole, *REPEATABLE, command=TINY_APPO), last_checkpoint(whole)
    for name in ("learner.safetensors", "collector-0.safetensors"):
        assert (again / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.slow
def test_a_run_stopped_inside_a_rollout_resumes_there(start_run: StartRun, tmp_path: Path) -> None:
    run = start_run(ENDLESS, f"{SLOW_STEP}", "env.kwargs.step_ms=5", "collect.mode=alternate", command=TINY_APPO)
    run.wait_for_updates()
    run.signal(signal.SIGINT)
    assert run.finish()[0] == 130
    stopped_at = run.summary()["env_steps"]
    code, out, err = start_run(f"total_timesteps={stopped_at + 100}", command=("resume", "run")).finish()
    assert (code, err) == (0, "")
    assert "not bitwise" not in out
    # Rollouts of 20 transitions: the open one was finished, not started again.
    env_steps = run.summary()["env_steps"]
    assert stopped_at + 100 <= env_steps < stopped_at + 100 + 20
