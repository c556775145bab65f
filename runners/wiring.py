"""The shared memory of one host of a run: how much of what, and the views each process takes of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from offpolicy.collect.episodes import EPISODE_COLUMNS
from offpolicy.config import RunConfig
from offpolicy.data.layout import RowLayout
from offpolicy.data.pace import Anchor, Pace
from offpolicy.data.ring import Ring
from offpolicy.data.rollout_ring import RolloutLayout, RolloutRing
from offpolicy.errors import ConfigError
from offpolicy.ipc.child import ChildContext
from offpolicy.ipc.control import ControlPage
from offpolicy.ipc.evaluation import EvaluationRequests, EvaluatorReports
from offpolicy.ipc.gate import LearnerGate
from offpolicy.ipc.mailbox import Mailbox
from offpolicy.ipc.reports import CollectorReports, LearnerReports, ReportLayout
from offpolicy.ipc.shared import Doorbell, SharedBlock
from offpolicy.nets.hora_shapes import HISTORY, PRIVILEGED, adaptation_parameters, mlp_parameters
from offpolicy.options import plain
from offpolicy.ranks.place import Place
from offpolicy.timing.phases import CollectorPhase, EvaluatorPhase, LearnerPhase, PackerPhase
from offpolicy.types import SpaceSpec

EPISODE_CAPACITY = 65_536  # episodes the supervisor may fall behind
MAX_METRICS = 64
SAVE_BYTES_PER_S = 50e6
CHECKPOINT_LAYOUT = 2  # which files a checkpoint holds; 2: one replay file per collector, one state per rank
NEEDED_THREADS = 8  # of a learner: one less of more than these is less than a whole core for evaluations
NVIDIA_DRIVER = "/dev/nvidiactl"  # there where a GPU is; asking torch would cost the supervisor a second
SNAPSHOT_DIR = ".snapshot"  # `.snapshot-<name>`: where collectors and ranks leave their share of a checkpoint
COLLECTOR_COUNTERS = ("env_steps", "vector_steps", "policy_lag_sum", "policy_steps")
COLLECTOR_PHASES = tuple(str(phase) for phase in CollectorPhase)
LEARNER_PHASES = tuple(str(phase) for phase in LearnerPhase)
PACKER_PHASES = tuple(str(phase) for phase in PackerPhase)
EVALUATOR_PHASES = tuple(str(phase) for phase in EvaluatorPhase)
EVALUATOR_BELL = "evaluator_bell"


def lane_names(cfg: RunConfig) -> list[str]:
    """The threads of this host that a trace has a lane for."""
    ranks, collectors = range(cfg.runner.world_size), range(cfg.collect.num_collectors)
    kinds, has_device = ["learner"], cfg.device != "cpu" and os.path.exists(NVIDIA_DRIVER)
    may_pack = has_device or cfg.runner.name == "double_buffer"  # where replay.source is auto
    if not cfg.algo.learns_from_rollouts and {"prefetch": True, "auto": may_pack}.get(cfg.replay.source, False):
        kinds.append("packer")
    if has_device:
        kinds += ["device", "device_copies"]
    names = [*(f"{kind}-{i}" for kind in kinds for i in ranks), *(f"collector-{i}" for i in collectors)]
    beside = ["evaluator-0", *(["hook-0"] if cfg.eval.hook else [])]
    return names + (beside if has_evaluator(cfg) else [])


def row_layout(spec: SpaceSpec) -> RowLayout:
    """The replay row of an environment."""
    return RowLayout(spec.obs_dim, spec.action_dim)


def replay_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of the replay of this host, one ring per collector, announced before they are allocated."""
    return cfg.collect.num_collectors * Ring.nbytes(cfg.replay_rows, row_layout(spec).width, 4)


def rollout_layout(cfg: RunConfig, spec: SpaceSpec) -> RolloutLayout:
    """The rollouts of one collector."""
    return RolloutLayout(spec.obs_dim, spec.action_dim, cfg.rollout.length, cfg.env.num_envs)


def rollout_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of the rollout rings of this host, one per collector."""
    return cfg.collect.num_collectors * RolloutRing.nbytes(rollout_layout(cfg, spec), cfg.rollout.slots)


def transport_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of what lies between collectors and learners: the rings of rollouts, or the replay."""
    return rollout_nbytes(cfg, spec) if cfg.algo.learns_from_rollouts else replay_nbytes(cfg, spec)


def save_s(cfg: RunConfig, spec: SpaceSpec) -> float:
    """Seconds that saving what lies between collectors and learners of this host may take on a slow disk."""
    return transport_nbytes(cfg, spec) / SAVE_BYTES_PER_S


def peer_timeout_s(cfg: RunConfig, spec: SpaceSpec) -> float:
    """How long a rank may be waited for: `runner.timeout_s`, and two saves, since hosts save one after another."""
    return cfg.runner.timeout_s + 2 * save_s(cfg, spec)


def make_pace(cfg: RunConfig, anchor: Anchor, num_hosts: int) -> Pace:
    """The pace of this configuration: all collectors of all hosts step as one vector."""
    return Pace.of(
        cfg.collect_mode,
        cfg.algo.utd,
        cfg.env.num_envs * cfg.collect.num_collectors * num_hosts,
        band=cfg.collect.band,
        anchor=anchor,
        total=cfg.total_timesteps,
    )


def first_learning_step(cfg: RunConfig, num_hosts: int) -> int:
    """Env steps before the first update: never before every ring can have its first n-step row, or rollout."""
    num_collectors = cfg.collect.num_collectors * num_hosts
    if cfg.algo.learns_from_rollouts:
        return cfg.rollout.length * cfg.env.num_envs * num_collectors
    return max(cfg.algo.learning_starts, cfg.algo.n_step * cfg.env.num_envs * num_collectors)


def max_policy_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """An upper bound of the flat policy: a Gaussian actor, norms and the normaliser; torch-free."""
    input_dim = spec.obs_dim + (cfg.algo.latent_dim if cfg.algo.name == "hora" else 0)
    widths = (input_dim, *cfg.algo.hidden_dims, max(2 * spec.action_dim, spec.num_actions))
    actor = mlp_parameters(*widths) + 2 * sum(widths)
    return 4 * (actor + _latent_parameters(cfg, spec) + 4 * spec.obs_dim + 64)


def _latent_parameters(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Of what HORA's policies infer the latent with."""
    algo = cfg.algo
    if algo.name != "hora":
        return 0
    if algo.is_adapting:
        num_frames, frame_dim = spec.shape_of(HISTORY)
        return adaptation_parameters(num_frames, frame_dim, algo.latent_dim)
    return mlp_parameters(math.prod(spec.shape_of(PRIVILEGED)), *algo.encoder_dims, algo.latent_dim)


class SharedMemory:
    """Everything shared of one host of a run, owned by its supervisor."""

    def __init__(self, cfg: RunConfig, spec: SpaceSpec, num_hosts: int) -> None:
        runner, num_collectors = cfg.runner, cfg.collect.num_collectors
        self.num_ranks = num_hosts * runner.world_size
        sizes = {
            "control": ControlPage.nbytes(runner.world_size, num_collectors),
            "weights": Mailbox.nbytes(max_policy_nbytes(cfg, spec)),
            "learner_report": Mailbox.nbytes(self.num_ranks * _report_layout(["_"] * MAX_METRICS).nbytes),
        }
        for index in range(num_collectors):
            sizes |= {
                f"{transport_name(cfg)}-{index}": transport_nbytes(cfg, spec) // num_collectors,
                f"collector_report-{index}": Mailbox.nbytes(CollectorReports.layout(COLLECTOR_PHASES).nbytes),
                f"episodes-{index}": Ring.nbytes(EPISODE_CAPACITY, EPISODE_COLUMNS, 8),
            }
        if has_evaluator(cfg):
            sizes["evaluation"] = EvaluationRequests.nbytes(max_policy_nbytes(cfg, spec))
            sizes["evaluator_report"] = Mailbox.nbytes(EvaluatorReports.layout(EVALUATOR_PHASES).nbytes)
        check_memory(cfg, spec)
        try:
            self.blocks = {name: SharedBlock.create(name, size) for name, size in sizes.items()}
        except OSError as error:
            gib = transport_nbytes(cfg, spec) / 2**30
            raise ConfigError(f"{size_key(cfg)}: {gib:.2f} GiB cannot be had: {error}") from error
        self.bells = {name: Doorbell.create() for name in bell_names(cfg)}
        self.control = control_page(self.blocks["control"].buffer, cfg)
        collectors = range(num_collectors)
        self.rings = [] if cfg.algo.learns_from_rollouts else [self._replay_ring(i, spec) for i in collectors]
        self.episodes = [Ring(self._buffer(f"episodes-{i}"), EPISODE_COLUMNS, np.float64) for i in collectors]
        self.collector_reports = [collector_reports(self._buffer(f"collector_report-{i}")) for i in collectors]
        self.evaluator_reports = evaluator_reports(self._buffer("evaluator_report")) if has_evaluator(cfg) else None

    def _replay_ring(self, index: int, spec: SpaceSpec) -> Ring:
        return Ring(self._buffer(f"replay-{index}"), row_layout(spec).width, np.float32)

    def _buffer(self, name: str) -> memoryview:
        return self.blocks[name].buffer

    @property
    def fds(self) -> dict[str, int]:
        """The descriptors to pass to children, by name."""
        blocks = {name: block.fd for name, block in self.blocks.items()}
        return blocks | {name: bell.fd for name, bell in self.bells.items()}

    def learner_reports(self, metrics: list[str]) -> LearnerReports:
        """The ranks' reports, once they have said which metrics they keep."""
        return learner_reports(self._buffer("learner_report"), metrics, self.num_ranks)


def bell_names(cfg: RunConfig) -> list[str]:
    """A bell for every collector, every rank, every rank's packing thread, and the evaluator."""
    collectors = [f"collector_bell-{index}" for index in range(cfg.collect.num_collectors)]
    return collectors + waiting_for_rows(cfg) + ([EVALUATOR_BELL] if has_evaluator(cfg) else [])


def waiting_for_rows(cfg: RunConfig) -> list[str]:
    """The bells of those who may wait for rows."""
    return [f"{role}_bell-{rank}" for role in ("learner", "packer") for rank in range(cfg.runner.world_size)]


def control_page(buffer: memoryview, cfg: RunConfig) -> ControlPage:
    """The control page of this host."""
    return ControlPage(buffer, cfg.runner.world_size, cfg.collect.num_collectors)


def learner_gate(
    context: ChildContext, job: Assignment, control: ControlPage, bell: str, *, is_main: bool
) -> LearnerGate:
    """A rank's gate, for the thread that owns the bell."""
    num_collectors = job.cfg.collect.num_collectors
    return LearnerGate(
        control,
        context.index,
        context.bell(bell),
        [context.bell(f"collector_bell-{index}") for index in range(num_collectors)],
        num_collectors=num_collectors * job.place.num_hosts,
        is_main=is_main,
    )


def transport_name(cfg: RunConfig) -> str:
    """What the blocks between collectors and learners are called."""
    return "rollouts" if cfg.algo.learns_from_rollouts else "replay"


def size_key(cfg: RunConfig) -> str:
    """The key that their size depends on most."""
    return "rollout.length" if cfg.algo.learns_from_rollouts else "replay.capacity"


def replay_rings(context: ChildContext, job: Assignment) -> list[Ring]:
    """The replay of this host, by collector; nothing where the algorithm keeps none."""
    width = row_layout(job.spec).width
    count = 0 if job.cfg.algo.learns_from_rollouts else job.cfg.collect.num_collectors
    return [Ring(context.block(f"replay-{index}"), width, np.float32) for index in range(count)]


def rollout_ring(context: ChildContext, job: Assignment, index: int) -> RolloutRing:
    """The rollout ring of a collector."""
    layout = rollout_layout(job.cfg, job.spec)
    return RolloutRing(context.block(f"rollouts-{index}"), layout, job.cfg.rollout.slots)


def _report_layout(metrics: list[str]) -> ReportLayout:
    return LearnerReports.layout(LEARNER_PHASES, metrics, packer_phases=PACKER_PHASES)


def learner_reports(buffer: memoryview, metrics: list[str], num_ranks: int) -> LearnerReports:
    """The report mailbox of all ranks."""
    layout = _report_layout(metrics)
    return LearnerReports(Mailbox(buffer, num_ranks * layout.nbytes), layout, num_ranks)


def collector_reports(buffer: memoryview) -> CollectorReports:
    """A collector's report mailbox."""
    layout = CollectorReports.layout(COLLECTOR_PHASES)
    return CollectorReports(Mailbox(buffer, layout.nbytes), layout)


def evaluator_reports(buffer: memoryview) -> EvaluatorReports:
    """The evaluator's report mailbox."""
    layout = EvaluatorReports.layout(EVALUATOR_PHASES)
    return EvaluatorReports(Mailbox(buffer, layout.nbytes), layout)


def settle_evaluator(cfg: RunConfig, place: Place) -> RunConfig:
    """`eval.beside` as true or false, for this host: only the first one evaluates.

    `auto` takes a core that nobody else needs (`num_spare_cores`). At the end alone there is nothing to be beside of.
    """
    is_free = cfg.eval.every > 0 and num_spare_cores(cfg) > 0
    is_beside = cfg.eval.beside == "true" or (cfg.eval.beside == "auto" and is_free)
    is_here = is_beside and place.host == 0 and cfg.eval.episodes > 0
    return replace(cfg, eval=replace(cfg.eval, beside=str(is_here).lower()))


def num_spare_cores(cfg: RunConfig) -> int:
    """Cores at hand beyond those of this host's collectors, their environments' processes and its learner ranks.

    A rank's are as many as its threads without an evaluator; of those it has by default, no more than `NEEDED_THREADS`.
    """
    workers = cfg.env.num_envs if cfg.env.vectorization == "async" else 0
    collectors = cfg.collect.num_collectors * ((cfg.threads.collector or 1) + workers)
    alone = replace(cfg, eval=replace(cfg.eval, beside="false"))
    threads = cfg.threads.learner or min(thread_budget(alone)["learner"], NEEDED_THREADS)
    return len(os.sched_getaffinity(0)) - collectors - cfg.runner.world_size * threads


def has_evaluator(cfg: RunConfig) -> bool:
    """Whether this host has a process that evaluates, once `settle_evaluator` has said so."""
    return cfg.eval.beside == "true"


def check_memory(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuse a replay, or rollouts, that do not fit into the memory at hand, before anything is allocated."""
    needed, available, key = transport_nbytes(cfg, spec), available_memory(), size_key(cfg)
    if needed > 0.9 * available:
        raise ConfigError(
            f"{key}: got {needed / 2**30:.2f} GiB of {transport_name(cfg)}, allowed 90 % of the"
            f" {available / 2**30:.2f} GiB available; lower {key}"
        )


def check_share(cfg: RunConfig, spec: SpaceSpec, where: str, available: int, copies: int = 1) -> None:
    """Refuse `copies` device copies of the replay that take more than `replay.device_share`. Raises `ConfigError`."""
    needed, share = copies * replay_nbytes(cfg, spec), cfg.replay.device_share
    if needed > share * available:
        raise ConfigError(
            f"replay.source: resident needs {needed / 2**30:.2f} GiB on {where}, allowed replay.device_share={share:g}"
            f" of the {available / 2**30:.2f} GiB free there; lower replay.capacity, raise replay.device_share, or use"
            " replay.source=prefetch"
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
    """CPU threads of each process: one per collector, the rest for the learner ranks; configuration overrides.

    In `alternate` mode the collector stands still while the learner trains, so the learner has all the cores but the
    one of an evaluator.
    """
    cores = len(os.sched_getaffinity(0))
    collector = cfg.threads.collector or 1
    busy = 0 if cfg.collect_mode == "alternate" else collector * cfg.collect.num_collectors
    spare = max((cores - busy - has_evaluator(cfg)) // cfg.runner.world_size, 1)
    return {"collector": collector, "learner": cfg.threads.learner or spare}


def fingerprint(cfg: RunConfig, spec: SpaceSpec) -> dict[str, Any]:
    """What must be equal for a checkpoint to fit a configuration, as JSON data."""
    algo = cfg.algo
    own = {"rollout.length": cfg.rollout.length, "algo.normalize_value": algo.normalize_value}
    rollouts = own if algo.learns_from_rollouts else {}
    names = ("stage", "latent_dim", "encoder_dims") if algo.name == "hora" else ()
    hora = {f"algo.{name}": plain(getattr(algo, name)) for name in names}
    return {
        **rollouts,
        **hora,
        "checkpoint layout": CHECKPOINT_LAYOUT,
        "algo.name": algo.name,
        "algo.hidden_dims": list(algo.hidden_dims),
        "algo.activation": algo.activation,
        "algo.critic_layer_norm": algo.critic_layer_norm,
        "algo.normalize_obs": algo.normalize_obs,
        "algo.n_step": algo.n_step,
        "algo.gamma": algo.gamma,
        "env observation size": spec.obs_dim,
        "env action size": spec.num_actions or spec.action_dim,
    }


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a child process needs to know, as JSON in its spec."""

    cfg: RunConfig
    spec: SpaceSpec
    run_dir: str  # of this host
    start_step: int  # the env step that the run goes on from; 0: from the start
    checkpoint: int | None  # `start_step` if this host has a checkpoint of it
    place: Place
    store_port: int  # where the ranks meet
    teacher_step: int | None = None  # env steps of the teacher's checkpoint to begin with; None: none is needed
    trace_dir: str | None = None  # where the lanes of the trace are; None: the run is not traced

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cfg": self.cfg.to_mapping(),
            "spec": asdict(self.spec),
            "run_dir": self.run_dir,
            "start_step": self.start_step,
            "checkpoint": self.checkpoint,
            "place": self.place.to_json(),
            "store_port": self.store_port,
            "teacher_step": self.teacher_step,
            "trace_dir": self.trace_dir,
        }

    @classmethod
    def of(cls, context: ChildContext) -> Assignment:
        """From a child's payload."""
        given: Mapping[str, Any] = context.payload
        cfg, spec = RunConfig.from_mapping(given["cfg"]), SpaceSpec.from_json(given["spec"])
        place = Place(**given["place"])
        own = ("run_dir", "start_step", "checkpoint", "store_port", "teacher_step", "trace_dir")
        return cls(cfg=cfg, spec=spec, place=place, **{name: given[name] for name in own})
