"""Processes that are killed at random instants: all begin again from the newest checkpoint, and the goal is reached.

The environment's observation is [seed, step, episode] and its reward the step, so a row that was put together from two
steps, environments or episodes shows. Without n-step rows, every env step has exactly one row.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.config.run_files import read_config
from offpolicy.replay.row_layout import RowLayout
from tests import faults
from tests.processes.conftest import FINISHED, PACED, LiveRun, StartRun, find_process, replay_bytes
from tests.processes.test_appo import TINY_APPO
from tests.replay_scene import saved_transitions

pytestmark = pytest.mark.mp
PACE = "env.kwargs.step_ms=2"  # no machine is so fast that a run ends before it is killed
COUNTER = ("env.id=tests.toys:Counter-v0", "env.kwargs.terminate_at=7", "env.kwargs.stagger=1", PACE)
LAYOUT = RowLayout(obs_dim=3, action_dim=1)
PATIENCE_S = 90.0
BACK_S = 15.0  # from a death until env steps are recorded again, at most
RUNNERS = {
    "single_gpu": (),
    "overlap": ("collect.mode=overlap", "eval.every=50", "eval.episodes=1", "eval.beside=true"),
    "free": ("collect.mode=free", "collect.num_collectors=2", "env.num_envs=2"),
    "double_buffer": ("runner=double_buffer",),
    "multi_gpu": ("runner=multi_gpu", "runner.world_size=2", "device=cpu", "collect.num_collectors=2"),
}
# Crashes once: the file is there then.
CRASHING = """
import os
import pathlib
import signal
import gymnasium
from offpolicy.envs.toy import PointMass

class Crashing(PointMass):
    def step(self, action):
        flag = pathlib.Path("has-crashed")
        if self.np_random.random() < 0.02 and pathlib.Path("run/metrics.jsonl").exists() and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)

gymnasium.register("Crashing-v0", Crashing)
"""


def kill(run: LiveRun, role: str, index: int = 0) -> None:
    """Kills a process, which may only have been started, once it can be found."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(wait_for(run, role, index), signal.SIGKILL)


def wait_for(run: LiveRun, role: str, index: int = 0) -> int:
    found: list[int] = []

    def is_there() -> bool:
        with contextlib.suppress(AssertionError):
            found.append(find_process(run.run_id, role, index))
        return bool(found)

    run.wait_until(is_there, PATIENCE_S)
    return found[-1]


def num_restarts(run: LiveRun) -> int:
    return int(max((record.get("train/restarts", 0) for record in run.records()), default=0))


def wait_for_restart(run: LiveRun, number: int, timeout_s: float = PATIENCE_S) -> None:
    """Returns once a record of the processes after this restart is there."""
    run.wait_until(lambda: num_restarts(run) >= number, timeout_s)


def rows_of(run: LiveRun) -> tuple[int, int, int]:
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


def check_rows(run: LiveRun) -> None:
    num_rows, num_bad, num_missing = rows_of(run)
    assert num_rows > 100
    assert (num_bad, num_missing) == (0, 0)


def check_records(run: LiveRun) -> None:
    """Each env step and each episode is recorded once; neither env steps nor updates go back."""
    counts = [(record["env_steps"], record.get("train/n_updates", 0)) for record in run.records()]
    assert [steps for steps, _ in counts] == sorted({steps for steps, _ in counts})
    assert [updates for _, updates in counts] == sorted(updates for _, updates in counts)
    episodes = (run.directory / "episodes.jsonl").read_text().splitlines()
    assert len(set(episodes)) == len(episodes) > 0


def check_account(summary: dict[str, Any]) -> None:
    for account in (summary["timing"]["learner"], summary["timing"]["collector"]):
        assert account["wall_s"] == pytest.approx(sum(account["phases_s"].values()) + account["other_s"])


@pytest.mark.promise("restart", "no-torn-row", "account-closes")
@pytest.mark.parametrize(
    "runner", ["single_gpu", *(pytest.param(name, marks=pytest.mark.slow) for name in list(RUNNERS)[1:])]
)
def test_whichever_process_is_killed_the_run_goes_on_by_itself_and_reaches_its_goal(
    start_run: StartRun, traces: Any, runner: str
) -> None:
    options = RUNNERS[runner]
    run = start_run(*COUNTER, *options, "total_timesteps=2000", "checkpoint.every=200")
    run.wait_for_updates()
    killed = ["learner", "collector", *(["evaluator"] if "eval.beside=true" in options else [])]
    for number, role in enumerate(killed, 1):
        kill(run, role, 1 if runner == "multi_gpu" else 0)
        wait_for_restart(run, number, BACK_S)
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert [out.count(f"{role} {1 if runner == 'multi_gpu' else 0} (pid ") > 0 for role in killed] == [True] * len(
        killed
    )
    assert out.count("killed by SIGKILL at env step") == out.count("all processes begin again") == len(killed)
    summary = run.summary()
    assert (summary["learner_restarts"], summary["restarts"]) == (len(killed), 0)
    assert summary["env_steps"] in (2000, 2001)  # a vector step with a row of autoreset is one transition
    check_account(summary)
    check_records(run)
    check_rows(run)
    traces.assert_none()


@pytest.mark.promise("restart", "exact-resume")
@pytest.mark.parametrize("role", ["learner", pytest.param("collector", marks=pytest.mark.slow)])
def test_a_killed_process_of_alternate_changes_no_bit(
    start_run: StartRun, finished_run: LiveRun, traces: Any, role: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.VARIABLE, PACED)
        run = start_run(*FINISHED)
    run.wait_until(lambda: len(run.checkpoints()) >= 1, PATIENCE_S)
    kill(run, role)
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "all processes begin again at env step 500" in out
    assert "not bitwise" not in out
    assert run.summary()["learner_restarts"] == 1
    first, second = (one.directory / "checkpoints" / "step-000000001100" for one in (finished_run, run))
    assert (first / "learner.safetensors").read_bytes() == (second / "learner.safetensors").read_bytes()
    assert replay_bytes(first) == replay_bytes(second)
    check_records(run)
    traces.assert_none()


@pytest.mark.promise("restart")
@pytest.mark.parametrize("role", ["learner", pytest.param("collector", marks=pytest.mark.slow)])
def test_a_killed_process_of_appo_leaves_no_env_step_that_nothing_is_learnt_from(
    start_run: StartRun, traces: Any, role: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.VARIABLE, PACED)
        run = start_run("total_timesteps=2400", "checkpoint.every=1000", command=TINY_APPO)
    run.wait_until(lambda: len(run.checkpoints()) >= 1, PATIENCE_S)
    kill(run, role)
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "restart 1 of at most 4" in out
    assert run.summary()["env_steps"] >= 2400
    assert run.summary()["updates"] >= 2 * 2 * 2400 // (10 * 2)  # those that were lost with the networks are made again
    check_records(run)
    traces.assert_none()


@pytest.mark.promise("restart")
@pytest.mark.parametrize("vectorization", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_crash_of_an_environment_is_survived(
    start_run: StartRun, traces: Any, tmp_path: Path, vectorization: str
) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    run = start_run("env.id=crashing:Crashing-v0", f"env.vectorization={vectorization}", "eval.episodes=0")
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "killed by SIGSEGV" in out
    assert "restart 1 of at most 4" in out
    assert run.summary()["env_steps"] == 600
    traces.assert_none()


@pytest.mark.promise("restart")
@pytest.mark.slow
def test_a_killed_fork_server_is_replaced_when_the_processes_begin_again(start_run: StartRun, traces: Any) -> None:
    run = start_run(*COUNTER, "total_timesteps=1500")
    run.wait_for_updates()
    server = next(pid for pid in traces.processes() if name_of(pid) == "op-forkserver")
    os.kill(server, signal.SIGKILL)
    kill(run, "collector")
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "restart 1 of at most 4" in out
    traces.assert_none()


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
