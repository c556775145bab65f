"""Who competes: how each is started, and where its env-step counter can be read."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.children import environment, offpolicy_train
from benchmarks.peers.workloads import Settings
from benchmarks.results import REPOSITORY
from offpolicy.machine import num_usable_cores

PEERS = REPOSITORY / ".bench"  # one virtual environment per peer, made by the Makefile
TUNED = "fastest: "  # begins the line in which a run says which threads or mode it has chosen
OUTPUT = "output"  # of a repeat, in its scratch directory
CHOICE = "fastest: "  # begins the line in which a run of ours reports which threads or mode it has chosen
UPDATE = ("replay_sample", "h2d", "train")  # phases of ours that are one update with the sampling of its batch
ENDLESS = 1_000_000_000  # env steps: the time ends a repeat


class Job(NamedTuple):
    """One repeat: a training that learns for `seconds`, with `scratch` for its files."""

    settings: Settings
    seconds: float
    seed: int
    scratch: Path


class Tick(NamedTuple):
    """What was done until an instant of this machine's monotonic clock."""

    env_steps: int
    clock_s: float
    updates: int
    in_updates_s: float  # with the sampling of their batches


class Report(NamedTuple):
    """What a repeat left behind."""

    updates: int
    env_steps: int  # when the updates were counted
    threads: str  # of the update, in words
    settings: dict[str, Any]  # as the contender's own objects have them
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Ours:
    """`offpolicy train` with the runner single_gpu; logging and timing stay on, as a user has them."""

    name: str
    overrides: tuple[str, ...] = ()
    is_endless = True  # it has to be stopped

    def why_missing(self) -> str | None:
        """Returns why it cannot run here, or None."""
        return None

    def command(self, job: Job) -> list[str]:
        ours = ("checkpoint.every=0", "checkpoint.replay=false", "log.panel=off", "log.every_s=1", *self.overrides)
        endless = (f"total_timesteps={ENDLESS}", f"seed={job.seed}")
        return offpolicy_train(job.scratch / "run", *overrides(job.settings), *endless, *ours)

    def environment(self) -> dict[str, str]:
        return environment()

    def has_chosen(self, job: Job) -> bool:
        """False as long as it tries threads or modes."""
        tries = num_usable_cores() > 1 and not any(word.startswith("runner.world_size=") for word in self.overrides)
        return not tries or CHOICE in (job.scratch / OUTPUT).read_text(errors="replace")

    def ticks(self, job: Job) -> list[Tick]:
        """Returns its counter over time, as far as it is written.

        The last record is left out: of a run that has ended it is written once every process has exited.
        """
        path = job.scratch / "run" / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.is_file() else []
        if not records:
            return []
        written_s = path.stat().st_mtime - time.time() + time.monotonic()
        offset_s = written_s - records[-1]["wall_s"]
        ticks, updates, in_updates_s = [], 0, 0.0
        for record in records[:-1]:
            if "timing/learner_train_ms" in record:
                update_ms = sum(record[f"timing/learner_{phase}_ms"] for phase in UPDATE)
                in_updates_s += (record["train/n_updates"] - updates) * update_ms / 1000
                updates = record["train/n_updates"]
            ticks.append(Tick(record["env_steps"], record["wall_s"] + offset_s, updates, in_updates_s))
        return ticks

    def report(self, job: Job) -> Report:
        run = job.scratch / "run"
        summary = json.loads((run / "summary.json").read_text())
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        threads = f"{last.get('perf/learner_threads')} + {summary['threads']['collector']}"  # learner + collector
        return Report(
            updates=summary["updates"],
            env_steps=summary["env_steps"],
            threads=f"{threads}, {summary['mode']}",
            settings=settings_of_run(yaml.safe_load((run / "config.yaml").read_text())),
            versions=summary["versions"],
        )


def overrides(settings: Settings) -> tuple[str, ...]:
    """Returns the settings as overrides of `offpolicy train`: those that its defaults equal today among them."""
    names = ("batch_size", "actor_lr", "critic_lr", "gamma", "tau", "learning_starts", "policy_delay", "utd")
    hidden = ",".join(map(str, settings.hidden_dims))
    return (
        *(f"algo={settings.algo}", "env=halfcheetah", f"env.id={settings.env_id}", f"env.num_envs={settings.num_envs}"),
        *(f"algo.{name}={getattr(settings, name)}" for name in names),
        *(f"algo.hidden_dims=[{hidden}]", f"replay.capacity={settings.capacity}"),
        *("runner=single_gpu", "device=cpu", "eval.every=0", "eval.episodes=0"),
    )


def settings_of_run(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in the configuration that a run of ours has written."""
    algo = cfg["algo"]
    same = ("batch_size", "hidden_dims", "actor_lr", "critic_lr", "gamma", "tau", "learning_starts", "policy_delay")
    env = {"env_id": cfg["env"]["id"], "num_envs": cfg["env"]["num_envs"] * cfg["collect"]["num_collectors"]}
    return {name: algo[name] for name in same} | env | {"algo": algo["name"], "capacity": cfg["replay"]["capacity"]}


@dataclass(frozen=True, slots=True)
class Program:
    """A program of this directory under an interpreter; `threads` of torch, 0 for what the library chooses itself.

    Under this interpreter it is a module of the package; others do not have it.
    """

    name: str
    home: str  # below PEERS; '' for this interpreter
    script: str
    arguments: tuple[str, ...]
    threads: int
    is_endless = False

    def why_missing(self) -> str | None:
        home = PEERS / self.home
        if not self.home or (home / ".installed").is_file():
            return None
        return f"`make bench-peers` installs it; what failed is in .bench/{self.home}/install.log"

    def command(self, job: Job) -> list[str]:
        program = [sys.executable, "-m", f"{__package__}.{self.script}"]
        if self.home:
            here = Path(__file__).with_name(f"{self.script}.py")
            program = [str(PEERS / self.home / "bin" / "python"), str(here)]
        numbers = (job.seconds, job.seed, self.threads)
        settings, out = json.dumps(job.settings.to_mapping()), str(job.scratch / "report.json")
        return [*program, *self.arguments, settings, *map(str, numbers), out]

    def environment(self) -> dict[str, str]:
        return environment(OMP_NUM_THREADS=str(self.threads)) if self.threads else environment()

    def has_chosen(self, job: Job) -> bool:
        return True

    def ticks(self, job: Job) -> list[Tick]:
        return [Tick(*one) for one in json.loads((job.scratch / "report.json").read_text())["ticks"]]

    def report(self, job: Job) -> Report:
        data = json.loads((job.scratch / "report.json").read_text())
        return Report(**{name: data[name] for name in Report._fields})


Contender = Ours | Program
CONTENDERS: Mapping[str, Contender] = {
    "ours": Ours("offpolicy", ("collect.mode=alternate",)),
    "overlap": Ours("offpolicy, overlap", ("collect.mode=overlap",)),
    "auto": Ours("offpolicy, auto", ("collect.mode=auto",)),
    "sb3-1": Program("Stable-Baselines3, 1 thread", "sb3", "peer_models", ("stable_baselines3",), 1),
    "sb3-2": Program("Stable-Baselines3, 2 threads", "sb3", "peer_models", ("stable_baselines3",), 2),
    "sbx": Program("SBX", "sbx", "peer_models", ("sbx",), 0),
    "control-1": Program("single file in torch, 1 thread", "", "control", (), 1),
    "control-2": Program("single file in torch, 2 threads", "", "control", (), 2),
    "by-hand-2": Program("single file without autograd, 2 threads", "", "by_hand", (), 2),
}
