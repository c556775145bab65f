"""Who competes: how each is started, when it is stopped, and where its env-step counter can be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from benchmarks.children import environment, offpolicy_train
from benchmarks.peers.settings import Settings
from benchmarks.results import REPOSITORY
from offpolicy.machine import num_usable_cores

PEERS = REPOSITORY / ".bench"  # one virtual environment per peer, made by the Makefile
TUNED = "fastest: "  # begins the line in which a run says which threads or mode it has chosen
OUTPUT = "output"  # of a repeat, in its scratch directory
UPDATE = ("replay_sample", "h2d", "train")  # phases of ours that are one update with the sampling of its batch
ENDLESS = 1_000_000_000  # env steps: the time ends a repeat


class Job(NamedTuple):
    """One repeat: a training that learns for `seconds`, with `scratch` for its files."""

    settings: Settings
    seconds: float
    seed: int
    scratch: Path


class Work(NamedTuple):
    """What was done until an instant of the clock of the ticks."""

    clock_s: float
    updates: int
    in_updates_s: float  # with the sampling of their batches


class Report(NamedTuple):
    """What a repeat left behind: its env-step counter over time, what it did, and the versions that ran."""

    ticks: list[tuple[int, float]]  # env steps done, seconds on a monotonic clock
    updates: int
    work: list[Work]  # from time to time
    env_steps: int  # when the updates were counted
    threads: str  # of the update, in words
    settings: dict[str, Any]  # as the contender's own objects have them
    versions: dict[str, str]


class Progress(NamedTuple):
    """What a repeat that goes on has written so far."""

    ticks: list[tuple[int, float]]  # as in `Report`, on a clock of its own
    num_choices: int = 0  # of threads or mode, by its own trials
    is_trying: bool = False  # its first trial has not ended


class Contender(Protocol):
    """A trainer that does the job."""

    @property
    def name(self) -> str: ...

    def why_missing(self) -> str | None:
        """Why it cannot run here, or None."""

    def command(self, job: Job) -> list[str]: ...

    def environment(self) -> dict[str, str]: ...

    def progress(self, job: Job) -> Progress | None:
        """How far it is; None for one that ends by itself, whose clock is ours."""

    def report(self, job: Job) -> Report: ...


@dataclass(slots=True)
class Seen:
    """What has been read of a run of ours: to read it anew five times a second took a tenth of a slow core."""

    has_trials: bool
    offset: int = 0  # bytes of the records that were read
    ticks: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ours:
    """`offpolicy train` with the runner single_gpu; logging and timing stay on, as a user has them."""

    name: str
    overrides: tuple[str, ...] = ()
    seen: dict[Path, Seen] = field(default_factory=dict, compare=False)  # by the scratch directory

    def why_missing(self) -> str | None:
        return None

    def command(self, job: Job) -> list[str]:
        return offpolicy_train(
            job.scratch / "run",
            *overrides(job.settings),
            f"total_timesteps={ENDLESS}",
            f"seed={job.seed}",
            "checkpoint.every=0",
            "checkpoint.replay=false",
            "log.panel=off",
            "log.every_s=1",
            *self.overrides,
        )

    def environment(self) -> dict[str, str]:
        return environment()

    def progress(self, job: Job) -> Progress | None:
        output = job.scratch / OUTPUT
        lines = output.read_text(errors="replace").split("\n")[:-1] if output.is_file() else []
        num_choices = sum(line.startswith(TUNED) for line in lines)
        seen = self._look(job)
        ticks = seen.ticks if seen else []
        return Progress(ticks, num_choices, bool(seen and ticks and not num_choices and seen.has_trials))

    def report(self, job: Job) -> Report:
        """The last record is left out: it is written when everything has been saved and every process has exited."""
        run = job.scratch / "run"
        summary = json.loads((run / "summary.json").read_text())
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        threads = (
            f"{records[-1].get('perf/learner_threads')} + {summary['threads']['collector']}"  # learner + collector
        )
        return Report(
            ticks=[(record["env_steps"], record["wall_s"]) for record in records[:-1]],
            updates=summary["updates"],
            work=work_of(records[:-1]),
            env_steps=summary["env_steps"],
            threads=f"{threads}, {summary['mode']}",
            settings=settings_of_run(yaml.safe_load((run / "config.yaml").read_text())),
            versions=summary["versions"],
        )

    def _look(self, job: Job) -> Seen | None:
        """Reads the records that are new; None before the first one."""
        path = job.scratch / "run" / "metrics.jsonl"
        if not path.is_file() or not path.stat().st_size:
            return None
        if job.scratch not in self.seen:
            cfg = yaml.safe_load(path.with_name("config.yaml").read_text())
            self.seen[job.scratch] = Seen(has_trials(cfg))
        seen = self.seen[job.scratch]
        with path.open("rb") as file:
            file.seek(seen.offset)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]  # a line that is being written is no record yet
        seen.offset += len(new)
        seen.ticks += [(one["env_steps"], one["wall_s"]) for one in map(json.loads, new.splitlines())]
        return seen


def work_of(records: Sequence[Mapping[str, Any]]) -> list[Work]:
    """The updates until each record of a run of ours, where an iteration makes one."""
    work, updates, in_updates_s = [], 0, 0.0
    for record in records:
        if "timing/learner_train_ms" not in record:  # nothing was learnt
            continue
        update_ms = sum(record[f"timing/learner_{phase}_ms"] for phase in UPDATE)
        in_updates_s += (record["train/n_updates"] - updates) * update_ms / 1000
        updates = record["train/n_updates"]
        work.append(Work(record["wall_s"], updates, in_updates_s))
    return work


def has_trials(cfg: Mapping[str, Any]) -> bool:
    """True if a run of ours with this configuration tries threads or modes when it begins to learn on these cores."""
    has_threads = cfg["threads"]["learner"] == "auto" and num_usable_cores() > 1
    return (has_threads or cfg["collect"]["mode"] == "auto") and cfg["runner"]["world_size"] == 1


def overrides(settings: Settings) -> tuple[str, ...]:
    """The settings as overrides of `offpolicy train`: those that its defaults equal today among them."""
    algo = [f"algo.{name}={getattr(settings, name)}" for name in ("batch_size", "actor_lr", "critic_lr", "gamma")]
    algo += [f"algo.{name}={getattr(settings, name)}" for name in ("tau", "learning_starts", "policy_delay", "utd")]
    hidden = ",".join(map(str, settings.hidden_dims))
    return (
        *(f"algo={settings.algo}", "env=halfcheetah", f"env.id={settings.env_id}", f"env.num_envs={settings.num_envs}"),
        *(*algo, f"algo.hidden_dims=[{hidden}]", f"replay.capacity={settings.capacity}"),
        *("runner=single_gpu", "device=cpu", "eval.every=0", "eval.episodes=0"),
    )


def settings_of_run(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the configuration that a run of ours has written."""
    algo = cfg["algo"]
    same = ("batch_size", "hidden_dims", "actor_lr", "critic_lr", "gamma", "tau", "learning_starts", "policy_delay")
    given = {name: algo[name] for name in same}
    env = {"env_id": cfg["env"]["id"], "num_envs": cfg["env"]["num_envs"] * cfg["collect"]["num_collectors"]}
    return given | env | {"algo": algo["name"], "capacity": cfg["replay"]["capacity"]}


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

    def why_missing(self) -> str | None:
        home = PEERS / self.home
        if not self.home or (home / ".installed").is_file():
            return None
        log = home / "install.log"
        errors = [line for line in log.read_text().splitlines() if "ERROR" in line] if log.is_file() else []
        return errors[-1] if errors else "run `make bench-peers` to install it"

    def command(self, job: Job) -> list[str]:
        here = Path(__file__).with_name(f"{self.script}.py")
        program = (
            [str(PEERS / self.home / "bin" / "python"), str(here)]
            if self.home
            else [sys.executable, "-m", f"{__package__}.{self.script}"]
        )
        numbers = (job.seconds, job.seed, self.threads)
        settings, out = json.dumps(job.settings.to_mapping()), str(job.scratch / "report.json")
        return [*program, *self.arguments, settings, *map(str, numbers), out]

    def environment(self) -> dict[str, str]:
        return environment(OMP_NUM_THREADS=str(self.threads)) if self.threads else environment()

    def progress(self, job: Job) -> Progress | None:
        return None

    def report(self, job: Job) -> Report:
        data = json.loads((job.scratch / "report.json").read_text())
        ticks, work = [(steps, seconds) for steps, seconds in data["ticks"]], [Work(*one) for one in data["work"]]
        return Report(**{**data, "ticks": ticks, "work": work, "env_steps": data.get("env_steps", ticks[-1][0])})


CONTENDERS: Mapping[str, Contender] = {
    "ours": Ours("offpolicy", ("collect.mode=alternate",)),
    "overlap": Ours("offpolicy, overlap", ("collect.mode=overlap",)),
    "auto": Ours("offpolicy, auto", ("collect.mode=auto",)),
    "tuned": Ours("offpolicy, tuned"),
    "sb3-1": Program("Stable-Baselines3, 1 thread", "sb3", "peer_models", ("stable_baselines3",), 1),
    "sb3-2": Program("Stable-Baselines3, 2 threads", "sb3", "peer_models", ("stable_baselines3",), 2),
    "sbx": Program("SBX", "sbx", "peer_models", ("sbx",), 0),
    "control-1": Program("single file in torch, 1 thread", "", "control", (), 1),
    "control-2": Program("single file in torch, 2 threads", "", "control", (), 2),
    "by-hand-2": Program("single file without autograd, 2 threads", "", "by_hand", (), 2),
}
