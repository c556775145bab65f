"""Collectors that are killed at random instants and started again: no row is lost, torn or counted twice.

The environment's observation is [seed, step, episode] and its reward the step, so a row that was put together from two
steps, environments or episodes shows. Without n-step rows, every env step has exactly one row.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.config.run_files import read_config
from offpolicy.replay.row_layout import RowLayout
from tests.processes.conftest import ENDLESS, LiveRun, StartRun, find_process
from tests.processes.test_appo import TINY_APPO
from tests.processes.test_delays import SLOW_STEP
from tests.replay_scene import saved_transitions

pytestmark = pytest.mark.mp
PACE = "env.kwargs.step_ms=2"  # no machine is so fast that a run ends before it is killed
COUNTER = ("env.id=offpolicy.envs.toy:Counter-v0", "env.kwargs.terminate_at=7", "env.kwargs.stagger=1", PACE)
LAYOUT = RowLayout(obs_dim=3, action_dim=1)
PATIENCE_S = 90.0


def kill_collectors(run: LiveRun, count: int, num_collectors: int, chance: random.Random) -> None:
    """Kills a random collector at a random instant, `count` times; one that starts may be killed too."""
    for number in range(count):
        time.sleep(chance.uniform(0.0, 2.0 / num_collectors))
        wait_for_collector(run, index := chance.randrange(num_collectors))
        os.kill(find_process(run.run_id, "collector", index), signal.SIGKILL)
        run.wait_until(lambda number=number: num_restarts(run) > number, PATIENCE_S)  # type: ignore[misc]


def wait_for_collector(run: LiveRun, index: int) -> None:
    def is_there() -> bool:
        try:
            return bool(find_process(run.run_id, "collector", index))
        except AssertionError:
            return False

    run.wait_until(is_there, PATIENCE_S)


def num_restarts(run: LiveRun) -> int:
    records = run.records()
    return int(max((record.get("collect/restarts", 0) for record in records), default=0))


def bad_rows(run: LiveRun) -> tuple[int, int, int]:
    """Rows of the last checkpoint; those that are not one step of one episode; env steps without their row."""
    checkpoint = CheckpointStore(run.directory / CHECKPOINTS).at(int(run.checkpoints()[-1].removeprefix("step-")))
    state = checkpoint.json("state")
    num_envs = read_config(run.directory).env.num_envs
    parts = [saved_transitions(checkpoint, index, LAYOUT, num_envs) for index in range(len(state["replay_end"]))]
    rows = np.concatenate([part for part in parts if part is not None])
    obs, next_obs, reward = rows[:, :3], rows[:, 3:6], rows[:, 7]
    is_right = (next_obs[:, 1] == obs[:, 1] + 1) & (next_obs[:, [0, 2]] == obs[:, [0, 2]]).all(axis=1)
    is_right &= reward == next_obs[:, 1]
    return len(rows), int((~is_right).sum()), state["env_steps"] - sum(state["replay_written"])


def never_backwards(run: LiveRun) -> bool:
    counts = [record["env_steps"] for record in run.records()]
    return counts == sorted(counts)


def check_rows(run: LiveRun) -> None:
    num_rows, num_bad, num_missing = bad_rows(run)
    assert num_rows > 100
    assert (num_bad, num_missing) == (0, 0)
    assert never_backwards(run)


def check_goes_on(run: LiveRun, start_run: StartRun) -> None:
    """The rows of an interrupted run are right, and those of the run that continues it to its end."""
    check_rows(run)
    goal = run.summary()["env_steps"] + 500
    code, _, err = start_run(f"total_timesteps={goal}", command=("resume", "run")).finish(PATIENCE_S)
    assert (code, err) == (0, "")
    check_rows(run)


@pytest.mark.promise("restart", "no-torn-row")
def test_a_killed_collector_comes_back_and_the_run_reaches_its_goal(start_run: StartRun, traces: Any) -> None:
    run = start_run(*COUNTER, "total_timesteps=2000", "env.num_envs=2", "collect.mode=alternate")
    run.wait_for_updates()
    kill_collectors(run, 2, 1, random.Random(1))
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert out.count("killed by SIGKILL; restart") == 2
    assert "not bitwise from env step" in out
    summary = run.summary()
    assert summary["restarts"] == 2
    assert summary["env_steps"] in (2000, 2001)  # a vector step with a row of autoreset is one transition
    account = summary["timing"]["collector"]
    # The warm-up is among the phases; `other` is the time without a collector.
    assert account["wall_s"] == pytest.approx(sum(account["phases_s"].values()) + account["other_s"])
    check_rows(run)
    traces.assert_none()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["alternate", "free"])
def test_a_killed_collector_of_appo_comes_back(start_run: StartRun, traces: Any, mode: str) -> None:
    paced = (SLOW_STEP, "env.kwargs.step_ms=5", "total_timesteps=3000")  # 7.5 s
    run = start_run(*paced, f"collect.mode={mode}", "collect.num_collectors=2", command=TINY_APPO)
    run.wait_for_updates()
    kill_collectors(run, 2, 2, random.Random(2))
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "its open rollout is dropped" in out
    assert run.summary()["env_steps"] >= 3000
    assert run.summary()["restarts"] == 2
    traces.assert_none()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        (50, ("collect.mode=free", "collect.num_collectors=3", "env.num_envs=2", "replay.capacity=3000")),
        (10, ("collect.mode=overlap", "collect.num_collectors=2", "checkpoint.every=200")),
        (5, ("collect.mode=alternate", "env.num_envs=2", "env.vectorization=async")),
    ],
)
def test_many_kills_at_random_instants(start_run: StartRun, traces: Any, kills: int, options: tuple[str, ...]) -> None:
    run = start_run(*ENDLESS, *COUNTER, "collect.max_restarts=1000000", *options)
    run.wait_for_updates()
    num_collectors = int(next((o.split("=")[1] for o in options if o.startswith("collect.num_collectors")), "1"))
    kill_collectors(run, kills, num_collectors, random.Random(kills))
    time.sleep(5.0)
    run.signal(signal.SIGINT)
    assert run.finish(PATIENCE_S)[0] == 130
    assert run.summary()["restarts"] == kills
    check_goes_on(run, start_run)
    traces.assert_none()


@pytest.mark.promise("restart")
def test_a_crash_of_an_environment_worker_is_survived(start_run: StartRun, traces: Any) -> None:
    faulty = ("env.id=offpolicy.envs.toy:Faulty-v0", "env.kwargs.fail=segv", "env.kwargs.at=250")
    run = start_run(*faulty, "env.vectorization=async", "total_timesteps=400", "eval.episodes=0")
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "killed by SIGSEGV; restart 1 of at most 4" in out
    traces.assert_none()
