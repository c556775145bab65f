"""The races: what every contender does, how each is started, and where its env-step counter can be read."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.children import environment, offpolicy_train
from benchmarks.results import REPOSITORY
from offpolicy.machine import num_usable_cores

UPDATES_SLACK = 0.05  # fraction by which the updates of a run may differ from those asked for
# Updates by which those of every run may differ, one at either end of its learning: the random steps end within a
# vector step, and the last vector step may have no update yet.
FEWEST_SLACK = 2.0
RACES = (("sac", 1), ("td3", 1), ("sac", 16), ("sac", 64))  # algorithm, environments
PEERS = REPOSITORY / ".bench"  # one virtual environment per peer, made by the Makefile
OUTPUT = "output"  # of a repeat, in its scratch directory
CHOICE = "fastest: "  # begins the line in which a run of ours reports which threads or mode it has chosen
UPDATE = ("replay_sample", "h2d", "train")  # phases of ours that are one update with the sampling of its batch
ENDLESS = 1_000_000_000  # env steps: the time ends a repeat


@dataclass(frozen=True, slots=True)
class Settings:
    """SAC or TD3 on HalfCheetah-v5 with one gradient update per vector step of all environments."""

    algo: str
    num_envs: int
    env_id: str = "HalfCheetah-v5"
    batch_size: int = 256
    hidden_dims: tuple[int, ...] = (256, 256)  # of the actor and of each of two critics
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    learning_starts: int = 1000  # env steps
    capacity: int = 1_000_000  # rows of the replay
    policy_delay: int = 1  # critic updates per actor update

    @classmethod
    def of(cls, algo: str, num_envs: int = 1) -> Settings:
        """Returns the settings of an algorithm; TD3 delays its actor as its paper does."""
        return cls(algo, num_envs, policy_delay=2 if algo == "td3" else 1)

    @property
    def utd(self) -> float:
        """Gradient updates per env step."""
        return 1.0 / self.num_envs

    def to_mapping(self) -> dict[str, Any]:
        """Returns the settings as JSON data."""
        return asdict(self) | {"hidden_dims": list(self.hidden_dims)}


WORKLOADS: Mapping[str, Settings] = {f"{algo}-{num}": Settings.of(algo, num) for algo, num in RACES}


class UnequalSettings(ValueError):
    """A contender did other work than the others."""


def check_equal(wanted: Settings, found: Mapping[str, Any], env_steps: int, updates: int) -> None:
    """Raises `UnequalSettings` that names every setting that a contender had otherwise, and a wrong number of updates.

    `found` must hold every setting: what a contender does not report is not equal.
    """
    problems = [
        f"{name}: got {found.get(name)!r}, allowed {value!r}"
        for name, value in wanted.to_mapping().items()
        if found.get(name) != value
    ]
    due = (env_steps - wanted.learning_starts) * wanted.utd
    slack = max(UPDATES_SLACK * due, FEWEST_SLACK)
    if abs(updates - due) > slack:
        problems.append(f"updates: got {updates}, allowed {due:.0f} +- {slack:.0f} after {env_steps} env steps")
    if problems:
        raise UnequalSettings("unequal settings: " + "; ".join(problems))


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
        """Returns its counter over time. The last record is left out: it may be written after every process's exit."""
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
    """A program of this directory under an interpreter; `threads` of torch, 0 for what the library chooses itself."""

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
    "sb3-2": Program("Stable-Baselines3, 2 threads", "sb3", "peer_models", ("stable_baselines3",), 2),
    "sbx": Program("SBX", "sbx", "peer_models", ("sbx",), 0),
    "control-2": Program("single file in torch, 2 threads", "", "control", (), 2),
}
