"""Who competes: how each is started, and where its env-step counter can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.children import environment, offpolicy_train
from benchmarks.results import REPOSITORY

PEERS = REPOSITORY / ".bench"  # one virtual environment per peer, made by the Makefile


class Job(NamedTuple):
    """One repeat: SAC on HalfCheetah-v5 for `steps` env steps, with `scratch` for its files."""

    steps: int
    seed: int
    scratch: Path


class Report(NamedTuple):
    """What a repeat left behind: its env-step counter over time, and the versions that ran."""

    ticks: list[tuple[int, float]]  # env steps done, seconds on a monotonic clock
    versions: dict[str, str]


class Contender(Protocol):
    """A trainer that does the job."""

    @property
    def name(self) -> str: ...

    def why_missing(self) -> str | None:
        """Why it cannot run here, or None."""

    def command(self, job: Job) -> list[str]: ...

    def environment(self) -> dict[str, str]: ...

    def report(self, job: Job) -> Report: ...


@dataclass(frozen=True, slots=True)
class Ours:
    """`offpolicy train` with the runner single_gpu; logging and timing stay on, as a user has them."""

    name: str
    mode: str

    def why_missing(self) -> str | None:
        return None

    def command(self, job: Job) -> list[str]:
        return offpolicy_train(
            job.scratch / "run",
            "algo=sac",
            "env=halfcheetah",
            "runner=single_gpu",
            f"collect.mode={self.mode}",
            f"total_timesteps={job.steps}",
            f"seed={job.seed}",
            "device=cpu",
            "eval.episodes=0",
            "checkpoint.replay=false",
            "log.panel=off",
            "log.every_s=1",
        )

    def environment(self) -> dict[str, str]:
        return environment()

    def report(self, job: Job) -> Report:
        """The last record is left out: it is written when everything has been saved and every process has exited."""
        run = job.scratch / "run"
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        ticks = [(int(record["env_steps"]), float(record["wall_s"])) for record in records]
        versions = json.loads((run / "summary.json").read_text())["versions"]
        return Report([tick for tick in ticks if tick[0] < job.steps], versions)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer in its own virtual environment; `threads` of torch, 0 for what the peer chooses itself."""

    name: str
    home: str  # below PEERS
    module: str
    threads: int

    def why_missing(self) -> str | None:
        home = PEERS / self.home
        if (home / ".installed").is_file():
            return None
        log = home / "install.log"
        errors = [line for line in log.read_text().splitlines() if "ERROR" in line] if log.is_file() else []
        return errors[-1] if errors else "run `make bench-peers` to install it"

    def command(self, job: Job) -> list[str]:
        python, script = PEERS / self.home / "bin" / "python", Path(__file__).with_name("peer_sac.py")
        numbers = (job.steps, job.seed, self.threads)
        return [str(python), str(script), self.module, *map(str, numbers), str(job.scratch / "report.json")]

    def environment(self) -> dict[str, str]:
        return environment(OMP_NUM_THREADS=str(self.threads)) if self.threads else environment()

    def report(self, job: Job) -> Report:
        data = json.loads((job.scratch / "report.json").read_text())
        return Report([(steps, seconds) for steps, seconds in data["ticks"]], data["versions"])


CONTENDERS: Mapping[str, Contender] = {
    "ours": Ours("offpolicy", "alternate"),
    "overlap": Ours("offpolicy, overlap", "overlap"),
    "sb3-1": Peer("Stable-Baselines3, 1 thread", "sb3", "stable_baselines3", 1),
    "sb3-2": Peer("Stable-Baselines3, 2 threads", "sb3", "stable_baselines3", 2),
    "sbx": Peer("SBX", "sbx", "sbx", 0),
}
