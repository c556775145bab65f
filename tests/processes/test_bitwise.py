"""Bit for bit after five kills at random points: all algorithms, with Gymnasium, MuJoCo and demonstrations."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import Traces
from tests.processes.conftest import TINY, LiveRun, StartRun, last_checkpoint, replay_bytes, write_random_demos
from tests.processes.test_appo import TINY_APPO
from tests.processes.test_hora import TEACH

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(300)]
NUM_KILLS, SEEDS = 5, (1, 2, 3)
STEPS = 50  # between two checkpoints
PATIENCE_S = 90.0
COMMON = (
    *("collect.mode=alternate", "device=cpu", "env.num_envs=2", "eval.episodes=0"),
    *("total_timesteps=2400", f"checkpoint.every={STEPS}", "checkpoint.keep=100"),
)
REPLAY = ("train", *TINY, *COMMON, "algo.utd=0.5")
RESIDUAL = ("algo.actor_width=8", "algo.critic_width=8", "algo.num_bins=11", "algo.noise_repeat=16")
COMMANDS = {
    "sac": (*REPLAY, "algo.n_step=3", "algo.normalize_obs=true"),
    "td3": (*REPLAY, "algo=td3", "replay.capacity=300"),
    "flashsac": (*(word for word in REPLAY if not word.startswith("algo.hidden_dims")), "algo=flashsac", *RESIDUAL),
    "appo": (*TINY_APPO, *COMMON),
    "hora": (*TEACH, *COMMON),
}
ENVS = {
    "gymnasium": ("env.id=Pendulum-v1",),
    "discrete": ("env.id=CartPole-v1",),
    "hand": (),  # what HORA trains in
    "mujoco": ("env.id=Hopper-v5",),
    "demos": ("env.id=Pendulum-v1", "replay.demos=demos.npz"),
}
CELLS = [
    *((algo, env) for algo in ("sac", "td3", "flashsac") for env in ("gymnasium", "mujoco", "demos")),
    ("sac", "discrete"),
    *(("appo", "gymnasium"), ("appo", "mujoco"), ("hora", "hand")),
]


def words_of(algo: str, env: str) -> tuple[str, ...]:
    """The words that start a run; the last of several with one key counts."""
    last = {word.split("=")[0]: word for word in (*COMMANDS[algo], *ENVS[env])}
    return tuple(last.values())


def content(checkpoint: Path) -> dict[str, bytes]:
    """Everything of a checkpoint; the rows of the replay as one, whichever segments they are in."""
    files = {
        path.name: path.read_bytes()
        for path in checkpoint.iterdir()
        if path.name != "MANIFEST.json" and not path.name.startswith("replay-")
    }
    has_rows = bool(json.loads(files["state.json"])["replay_end"])
    return files | ({"replay": replay_bytes(checkpoint)} if has_rows else {})


def kill_at_random(run: LiveRun, traces: Traces, chance: random.Random) -> str:
    """Kills one process of a run, or all, some steps after a new checkpoint; returns what it did."""
    before, wanted = run.checkpoints(), chance.randrange(1, 5)
    victim, delay_s = chance.choice(("supervisor", "learner", "all")), chance.uniform(0.0, 0.05)
    run.wait_until(lambda: len(run.checkpoints()) >= len(before) + wanted, PATIENCE_S)
    time.sleep(delay_s)
    pids = {"supervisor": [run.process.pid], "learner": [run.pid_of("learner")]}.get(victim) or traces.processes()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert run.finish(PATIENCE_S)[0] == (1 if victim == "learner" else -signal.SIGKILL), "killed too late"
    return f"{victim} after {run.checkpoints()[-1]} and {delay_s * 1000:.0f} ms"


def finish_exactly(run: LiveRun) -> Path:
    """The last checkpoint of a run that succeeded and was bitwise."""
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert "not bitwise" not in out
    return last_checkpoint(run)


@pytest.fixture(autouse=True)
def _demos(tmp_path: Path) -> None:
    write_random_demos(tmp_path / "demos.npz", "Pendulum-v1")


@pytest.mark.promise("exact-resume")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("algo", "env"), CELLS)
def test_after_five_kills_at_random_points_a_run_ends_as_if_nothing_had_been(
    start_run: StartRun, traces: Traces, algo: str, env: str, seed: int
) -> None:
    words, chance = (
        (*words_of(algo, env), f"seed={seed}", "runner.max_restarts=0"),
        random.Random(f"{algo}-{env}-{seed}"),
    )
    whole = finish_exactly(start_run("run_dir=whole", command=words))
    kills = []
    for kill in range(NUM_KILLS):
        by_resume = kill > 0 and chance.random() < 0.5
        run = start_run(command=("resume", "broken")) if by_resume else start_run("run_dir=broken", command=words)
        kills.append(kill_at_random(run, traces, chance))
        print(f"{algo} {env} seed={seed}, kill {kill + 1}: {kills[-1]}")
    again = finish_exactly(start_run("run_dir=broken", command=words))
    assert again.name == whole.name
    expected, found = content(whole), content(again)
    assert [name for name in expected | found if found.get(name) != expected.get(name)] == [], kills
