"""The shared memory of a run: how much of what, and the views each process takes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offpolicy.collect.episodes import EPISODE_COLUMNS
from offpolicy.config import RunConfig
from offpolicy.data.layout import RowLayout
from offpolicy.data.pace import Anchor, Pace
from offpolicy.data.ring import Ring
from offpolicy.errors import ConfigError
from offpolicy.ipc.child import ChildContext
from offpolicy.ipc.control import PAGE_BYTES, ControlPage
from offpolicy.ipc.mailbox import Mailbox
from offpolicy.ipc.reports import CollectorReports, LearnerReports
from offpolicy.ipc.shared import Doorbell, SharedBlock
from offpolicy.rundir import RunDir
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.types import SpaceSpec

EPISODE_CAPACITY = 65_536  # episodes the supervisor may fall behind
MAX_METRICS = 64
SNAPSHOT_DIR = ".snapshot"  # where the collector leaves its share of a checkpoint
SIGNALLING = ("collector_bell", "learner_bell")
COLLECTOR_COUNTERS = ("env_steps", "vector_steps", "policy_lag_sum", "policy_steps")
COLLECTOR_PHASES = tuple(str(phase) for phase in CollectorPhase)
LEARNER_PHASES = tuple(str(phase) for phase in LearnerPhase)


def row_layout(spec: SpaceSpec) -> RowLayout:
    """The replay row of an environment."""
    return RowLayout(spec.obs_dim, spec.action_dim)


def replay_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of the replay ring, announced before they are allocated."""
    return Ring.nbytes(cfg.replay_rows, row_layout(spec).width, 4)


def make_pace(cfg: RunConfig, anchor: Anchor) -> Pace:
    """The pace of this configuration."""
    return Pace.of(
        cfg.collect_mode,
        cfg.algo.utd,
        cfg.env.num_envs,
        band=cfg.collect.band,
        anchor=anchor,
        total=cfg.total_timesteps,
    )


def first_learning_step(cfg: RunConfig) -> int:
    """Env steps before the first update: never before the first n-step row can exist."""
    return max(cfg.algo.learning_starts, cfg.algo.n_step * cfg.env.num_envs)


def max_policy_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """An upper bound of the flat policy: a Gaussian actor, norms and the normaliser; torch-free."""
    widths = (spec.obs_dim, *cfg.algo.hidden_dims, 2 * spec.action_dim)
    actor = sum((a + 1) * b for a, b in zip(widths, widths[1:], strict=False))
    return 4 * (actor + 2 * sum(widths) + 4 * spec.obs_dim + 64)


class SharedMemory:
    """Everything shared of one run, owned by the supervisor."""

    def __init__(self, cfg: RunConfig, spec: SpaceSpec) -> None:
        sizes = {
            "control": PAGE_BYTES,
            "replay": replay_nbytes(cfg, spec),
            "weights": Mailbox.nbytes(max_policy_nbytes(cfg, spec)),
            "learner_report": Mailbox.nbytes(LearnerReports.layout(LEARNER_PHASES, ["_"] * MAX_METRICS).nbytes),
            "collector_report": Mailbox.nbytes(CollectorReports.layout(COLLECTOR_PHASES).nbytes),
            "episodes": Ring.nbytes(EPISODE_CAPACITY, EPISODE_COLUMNS, 8),
        }
        check_memory(sizes["replay"])
        try:
            self.blocks = {name: SharedBlock.create(name, size) for name, size in sizes.items()}
        except OSError as error:
            raise ConfigError(f"replay.capacity: {sizes['replay'] / 2**30:.2f} GiB cannot be had: {error}") from error
        self.bells = {name: Doorbell.create() for name in SIGNALLING}
        self.control = ControlPage(self.blocks["control"].buffer)
        self.episodes = Ring(self.blocks["episodes"].buffer, EPISODE_COLUMNS, np.float64)
        self.replay = Ring(self.blocks["replay"].buffer, row_layout(spec).width, np.float32)
        self.collector_reports = collector_reports(self.blocks["collector_report"].buffer)

    @property
    def fds(self) -> dict[str, int]:
        """The descriptors to pass to children, by name."""
        blocks = {name: block.fd for name, block in self.blocks.items()}
        return blocks | {name: bell.fd for name, bell in self.bells.items()}

    def learner_reports(self, metrics: list[str]) -> LearnerReports:
        """The learner's reports, once it has said which metrics it keeps."""
        return learner_reports(self.blocks["learner_report"].buffer, metrics)


def learner_reports(buffer: memoryview, metrics: list[str]) -> LearnerReports:
    """The learner's report mailbox."""
    layout = LearnerReports.layout(LEARNER_PHASES, metrics)
    return LearnerReports(Mailbox(buffer, layout.nbytes), layout)


def collector_reports(buffer: memoryview) -> CollectorReports:
    """The collector's report mailbox."""
    layout = CollectorReports.layout(COLLECTOR_PHASES)
    return CollectorReports(Mailbox(buffer, layout.nbytes), layout)


def check_memory(needed: int) -> None:
    """Refuse a replay that does not fit into the memory at hand, before anything is allocated."""
    available = available_memory()
    if needed > 0.9 * available:
        raise ConfigError(
            f"replay.capacity: the replay needs {needed / 2**30:.2f} GiB, allowed 90 % of the"
            f" {available / 2**30:.2f} GiB available; lower replay.capacity"
        )


def available_memory() -> int:
    """Bytes the kernel, or this process's cgroup, can still give."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        fields = dict(line.split(":", 1) for line in meminfo)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit_path, usage_path in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if os.path.exists(limit_path):
            with open(limit_path, encoding="ascii") as limit, open(usage_path, encoding="ascii") as usage:
                text = limit.read().strip()
                if text != "max":
                    available = min(available, max(int(text) - int(usage.read()), 0))
    return available


def thread_budget(cfg: RunConfig) -> dict[str, int]:
    """CPU threads of each role: one per collector, the rest for the learner; configuration overrides.

    In `alternate` mode the collector stands still while the learner trains, so the learner has all the cores.
    """
    cores = len(os.sched_getaffinity(0))
    collector = cfg.threads.collector or 1
    busy = 0 if cfg.collect_mode == "alternate" else collector * cfg.collect.num_collectors
    spare = max(cores - busy, 1)
    return {"collector": collector, "learner": cfg.threads.learner or spare}


def fingerprint(cfg: RunConfig, spec: SpaceSpec) -> dict[str, Any]:
    """What must be equal for a checkpoint to fit a configuration, as JSON data."""
    algo = cfg.algo
    return {
        "algo.name": algo.name,
        "algo.hidden_dims": list(algo.hidden_dims),
        "algo.activation": algo.activation,
        "algo.critic_layer_norm": algo.critic_layer_norm,
        "algo.normalize_obs": algo.normalize_obs,
        "algo.n_step": algo.n_step,
        "algo.gamma": algo.gamma,
        "env observation size": spec.obs_dim,
        "env action size": spec.action_dim,
    }


def spec_from_json(data: Mapping[str, Any]) -> SpaceSpec:
    """The inverse of `asdict` after a trip through JSON."""
    fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
    return SpaceSpec(**fields)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a child process needs to know, as JSON in its spec."""

    cfg: RunConfig
    spec: SpaceSpec
    run_dir: str
    checkpoint: int | None  # the env step of the checkpoint to continue from

    @classmethod
    def for_run(cls, cfg: RunConfig, spec: SpaceSpec, run: RunDir) -> Assignment:
        """The assignment of a claimed run directory."""
        return cls(cfg, spec, str(run.path.resolve()), run.checkpoint.env_steps if run.checkpoint else None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"cfg": self.cfg.to_mapping(), "spec": asdict(self.spec), "run_dir": self.run_dir,
                "checkpoint": self.checkpoint}  # fmt: skip

    @classmethod
    def of(cls, context: ChildContext) -> Assignment:
        """From a child's payload."""
        payload: Mapping[str, Any] = context.payload
        cfg, spec = RunConfig.from_mapping(payload["cfg"]), spec_from_json(payload["spec"])
        return cls(cfg, spec, payload["run_dir"], payload["checkpoint"])
