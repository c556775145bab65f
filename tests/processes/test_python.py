"""docs/python.md and the block of the README, run as they stand; Ctrl-C from within a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Traces
from tests.documents import blocks

pytestmark = [pytest.mark.mp, pytest.mark.timeout(600)]

INTERRUPTED = """
import os, signal
import offpolicy
class Stop(offpolicy.Callback):
    def on_record(self, record):
        os.kill(os.getpid(), signal.SIGINT)
try:
    offpolicy.train(callbacks=[Stop()], total_timesteps=100_000, log={"every_s": 0.5}, run_dir="runs/mine")
except offpolicy.Interrupted as stop:
    run = offpolicy.TrainedRun.read(stop.run_dir)
    print("stopped", run.status, stop.exit_code, run.policy().env_steps == run.summary["env_steps"])
"""
EPISODES = """
import json
import offpolicy
class Seen(offpolicy.Callback):
    records = []
    def on_episode(self, record):
        self.records.append(record)
offpolicy.train(
    callbacks=[Seen()], env="pendulum", total_timesteps=1000, eval={"every": 500, "episodes": 3, "beside": "false"},
    algo={"learning_starts": 200, "hidden_dims": [8]}, run_dir="runs/seen",
)
trained = [record for record in Seen.records if "episode" not in record]
assert trained == [json.loads(line) for line in open("runs/seen/episodes.jsonl")], trained
evaluated = [(record["env_steps"], record["episode"]) for record in Seen.records if "episode" in record]
assert evaluated == [(500, 0), (500, 1), (500, 2), (1000, 0), (1000, 1), (1000, 2)], evaluated
print("all", len(trained))
"""
OWN_MODULE = """
import gymnasium, offpolicy
from gymnasium.envs.classic_control import PendulumEnv
gymnasium.register("Mine-v0", PendulumEnv, max_episode_steps=20)
{guard}offpolicy.train("env.id={env_id}", "algo.learning_starts=40", "eval.episodes=1", "run_dir=runs/mine",
    total_timesteps=60)
"""
# The shared memory of a run, its replay too, is not kept until the program ends: a program may start many runs.
KEEPS_NOTHING = """
import gc, os
from pathlib import Path
gc.collect()
kept = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
assert not [name for name in kept if "memfd:offpolicy" in name or "eventfd" in name], kept
"""


def run_python(code: str, home: Path, timeout: float = 500) -> str:
    traces = Traces()
    environ = {
        **os.environ, **traces.environ, "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, timeout=timeout, check=False)
    traces.assert_none()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def python_of(page: str) -> list[str]:
    return [block.text for block in blocks((REPOSITORY / page).read_text()) if block.language == "python"]


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    shown = python_of("docs/python.md")
    assert len(shown) == 7
    out = run_python("\n".join(shown), tmp_path)
    assert "(1,) (5, 1)" in out
    assert "completed" in out
    assert "learning_rate: unknown key; did you mean algo.actor_lr" in out
    assert "HalfCheetah-v5" in out
    assert "td3 against sac" in out
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"one", "two", "three", "latest"}
    assert float(out.splitlines()[-1]) > -2000


@pytest.mark.promise("python")
def test_the_readme_trains_loads_and_acts_in_at_most_six_lines(tmp_path: Path) -> None:
    (shown,) = python_of("README.md")
    lines = [line for line in shown.splitlines() if line]
    assert len(lines) <= 6
    short = shown.replace("total_timesteps=6000", "total_timesteps=1100")
    run_python(f"{short}\nassert action.shape == (1,)\n{KEEPS_NOTHING}", tmp_path)


@pytest.mark.promise("python")
def test_ctrl_c_saves_and_raises(tmp_path: Path) -> None:
    assert "stopped interrupted 130 True" in run_python(INTERRUPTED + KEEPS_NOTHING, tmp_path)


@pytest.mark.promise("python")
def test_a_callback_gets_every_episode_of_training_and_of_evaluations(tmp_path: Path) -> None:
    assert "all 5" in run_python(EPISODES, tmp_path)


@pytest.mark.parametrize(("env_id", "guard"), [("mine:Mine-v0", ""), ("Mine-v0", 'if __name__ == "__main__": ')])
def test_a_program_that_is_its_own_environment_module_is_refused_at_once(
    tmp_path: Path, env_id: str, guard: str
) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODULE.format(env_id=env_id, guard=guard))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert 'write env.id=module:EnvId, and train below `if __name__ == "__main__":`' in done.stderr
    assert "offpolicy.errors.ConfigError" in done.stderr
    assert not (tmp_path / "runs").exists()
