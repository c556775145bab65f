"""The shared memory of one host: its size, its blocks, and the views each process takes of them. Torch-free."""

from __future__ import annotations

import errno

import numpy as np

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.machine import allow_open_files, gives_memory_back, memory
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, ControlPage
from offpolicy.processes.handshake import LearnerGate
from offpolicy.processes.mailbox import EvaluationRequests, Mailbox
from offpolicy.processes.reports import Reports
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.ring import HEADER_BYTES, Ring
from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing
from offpolicy.replay.row_layout import RowLayout
from offpolicy.training.worker import WorkerSpec
from offpolicy.types import CollectorTotals, EpisodeRecord, EvaluatorTotals, LearnerTotals, SpaceSpec

EPISODE_COLUMNS = len(EpisodeRecord._fields)
EPISODE_CAPACITY = 65_536  # finished episodes of a collector that the supervisor may not have read yet
SAVE_BYTES_PER_S = 50e6  # of a slow disk
RAY_STORE_BYTES = 200 << 20  # of the object store that a run starts: weights lie there, and replies of over 100 kB
OTHER_FILES = 32  # that the supervisor opens besides: of the records, and for a moment while it starts a process
COLLECTOR_COUNTERS = ("env_steps", "vector_steps", "policy_lag_sum", "policy_steps")
EVALUATOR_WAKE = "evaluator_wake"


def row_layout(spec: SpaceSpec) -> RowLayout:
    """Returns the replay row of an environment."""
    return RowLayout(spec.obs_dim, spec.action_dim, spec.obs_dtype)


def replay_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Returns the bytes of the replay of this host, one ring per collector, announced before they are allocated."""
    size = ReplayRing.nbytes_for(cfg.replay_rows, row_layout(spec), cfg.env.num_envs, cfg.algo.n_step)
    return cfg.num_rings * size


def ring_room(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Returns the bytes that the view of a replay ring spans."""
    return ReplayRing.room_for(cfg.replay_rows, row_layout(spec), cfg.env.num_envs, cfg.algo.n_step)


def rollout_layout(cfg: RunConfig, spec: SpaceSpec) -> RolloutLayout:
    """Returns the rollouts of one collector."""
    return RolloutLayout(
        spec.obs_dim, spec.action_dim, cfg.rollout.length, cfg.env.num_envs, has_final_obs=spec.resets_in_step
    )


def transport_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Returns the bytes of the rings between collectors and learners, of rollouts or of the replay."""
    if cfg.algo.learns_from_rollouts:
        return cfg.num_rings * RolloutRing.nbytes(rollout_layout(cfg, spec), cfg.rollout.slots)
    return replay_nbytes(cfg, spec)


def save_s(cfg: RunConfig, spec: SpaceSpec) -> float:
    """Returns the seconds that saving the rings of this host may take on a slow disk."""
    return transport_nbytes(cfg, spec) / SAVE_BYTES_PER_S


def peer_timeout_s(cfg: RunConfig, spec: SpaceSpec) -> float:
    """Returns the limit of a wait for a rank: `runner.timeout_s`, and two saves, since hosts save one after another."""
    return cfg.runner.timeout_s + 2 * save_s(cfg, spec)


def check_memory(cfg: RunConfig, spec: SpaceSpec, *, is_of_tensors: bool = False) -> None:
    """Refuses rings that do not fit into the memory at hand, before anything is allocated. Raises `ConfigError`.

    Where the kernel takes no memory back, the replay comes to use all the room of its rings, twice as much; so does one
    of tensors, from the start.
    """
    needed, available, is_rollouts = transport_nbytes(cfg, spec), memory()[0], cfg.algo.learns_from_rollouts
    if not is_rollouts and (is_of_tensors or not gives_memory_back()):
        needed = cfg.num_rings * ring_room(cfg, spec)
    store = RAY_STORE_BYTES if cfg.starts_ray else 0
    if needed + store > 0.9 * available:
        beside = f" beside {store / 2**20:.0f} MiB of Ray's object store" if store else ""
        key, name = ("rollout.length", "rollouts") if is_rollouts else ("replay.capacity", "replay")
        raise ConfigError(
            f"{key}: got {needed / 2**30:.2f} GiB of {name}{beside}, allowed 90 % of the"
            f" {available / 2**30:.2f} GiB available; lower {key}"
        )


def check_share(cfg: RunConfig, spec: SpaceSpec, where: str, available: int, copies: int = 1) -> None:
    """Refuses `copies` device copies of the replay that take more than `replay.device_share`. Raises `ConfigError`."""
    needed, share = copies * replay_nbytes(cfg, spec), cfg.replay.device_share
    if needed > share * available:
        raise ConfigError(
            f"replay.source: resident needs {needed / 2**30:.2f} GiB on {where}, allowed replay.device_share={share:g}"
            f" of the {available / 2**30:.2f} GiB free there; lower replay.capacity, raise replay.device_share, or use"
            " replay.source=prefetch"
        )


class RunMemory:
    """The shared memory and wake events of one host of a run, owned by its supervisor."""

    def __init__(
        self, cfg: RunConfig, spec: SpaceSpec, num_hosts: int, *, has_evaluator: bool, collects_tensors: bool = False
    ) -> None:
        """With `collects_tensors` the replay lies on the learner's device, and its counters alone are here."""
        runner, num_collectors, has_replay = cfg.runner, cfg.num_rings, not cfg.algo.learns_from_rollouts
        self.num_ranks, collectors = num_hosts * runner.world_size, range(num_collectors)
        ring, key = ("replay", "replay.capacity") if has_replay else ("rollouts", "rollout.length")
        sizes = {
            "control": ControlPage.nbytes(runner.world_size, num_collectors),
            "weights": Mailbox.nbytes(0),  # grown by the processes that open it: they know the policy's size
            "learner_report": Reports.nbytes(self.num_ranks),
        }
        for index in collectors:
            sizes |= {
                f"{ring}-{index}": HEADER_BYTES if collects_tensors else transport_nbytes(cfg, spec) // num_collectors,
                f"collector_report-{index}": Reports.nbytes(),
                f"episodes-{index}": Ring.nbytes(EPISODE_CAPACITY, EPISODE_COLUMNS, 8),
            }
        if has_evaluator:
            sizes["evaluation"] = EvaluationRequests.nbytes(0)  # grown in the same way
            sizes["evaluator_report"] = Reports.nbytes()
        if not collects_tensors:
            check_memory(cfg, spec)
        wake_names = [f"collector_wake-{index}" for index in collectors] + waiting_for_rows(cfg)
        wake_names += [EVALUATOR_WAKE] if has_evaluator else []
        num_children = runner.world_size + num_collectors + has_evaluator
        # A mapped block has two descriptors, and a child two.
        count = 2 * len(sizes) + len(wake_names) + 2 * num_children + OTHER_FILES
        needed, allowed = allow_open_files(count)
        if allowed < needed:
            raise ConfigError(
                f"ulimit -n: got {allowed} open files, allowed at least {needed} for these processes and their memory;"
                f" type ulimit -n {needed} as root, or lower collect.num_collectors"
            )
        self.blocks: dict[str, SharedBlock] = {}
        self.wake_events: dict[str, WakeEvent] = {}
        try:
            for name, size in sizes.items():
                room = ring_room(cfg, spec) if name.startswith("replay-") else 0
                self.blocks[name] = SharedBlock.create(name, size, room)
            for name in wake_names:
                self.wake_events[name] = WakeEvent.create()
        except OSError as error:
            self.close()
            gib = sum(sizes.values()) / 2**30
            if error.errno == errno.EFBIG:
                raise ConfigError(
                    f"ulimit -f: got less than the {gib:.2f} GiB of shared memory that count as files, allowed"
                    " unlimited; type ulimit -f unlimited"
                ) from error
            raise ConfigError(f"{key}: {gib:.2f} GiB cannot be had: {error}") from error
        self.control = control_page(self.blocks["control"].buffer, cfg)
        self.rings = [_replay_ring(self._buffer(f"replay-{i}"), cfg, spec) for i in collectors if has_replay]
        self.episodes = [Ring(self._buffer(f"episodes-{i}"), EPISODE_COLUMNS, np.float64) for i in collectors]
        self.learner_reports = Reports[LearnerTotals](self._buffer("learner_report"), self.num_ranks)
        self.collector_reports = [Reports[CollectorTotals](self._buffer(f"collector_report-{i}")) for i in collectors]
        self.evaluator_reports = Reports[EvaluatorTotals](self._buffer("evaluator_report")) if has_evaluator else None

    def close(self) -> None:
        """Gives the memory and the descriptors back: a program may start many runs."""
        for block in self.blocks.values():
            block.close()
        for wake_event in self.wake_events.values():
            wake_event.close()

    def clear(self) -> None:
        """Makes the memory as it was at first, but for the counts of environments that were made again.

        Raises `OSError` if memory is short: the largest block is cleared first, so that the counts, which the summary
        needs then, are there still.
        """
        restarts = [words[CollectorWord.RESTARTS] for words in self.control.collectors]
        for block in sorted(self.blocks.values(), key=lambda block: block.allocated, reverse=True):
            block.clear()
        for words, count in zip(self.control.collectors, restarts, strict=True):
            words[CollectorWord.RESTARTS] = count

    def _buffer(self, name: str) -> memoryview:
        return self.blocks[name].buffer

    @property
    def fds(self) -> dict[str, int]:
        """Descriptors to pass to the processes, by name."""
        blocks = {name: block.fd for name, block in self.blocks.items()}
        return blocks | {name: wake_event.fd for name, wake_event in self.wake_events.items()}


def waiting_for_rows(cfg: RunConfig) -> list[str]:
    """Returns the names of the wake events of those that may wait for rows: the learner ranks."""
    return [f"learner_wake-{rank}" for rank in range(cfg.runner.world_size)]


def weights_mailbox(context: ChildContext, policy_size: int) -> Mailbox:
    """Returns the mailbox of the flat policy [policy_size], allocated here: the supervisor has no networks."""
    return Mailbox(grown_block(context, "weights", Mailbox.nbytes(4 * policy_size)), 4 * policy_size)


def evaluation_requests(context: ChildContext, policy_size: int) -> EvaluationRequests:
    """Returns the requests of rank 0 to evaluate a flat policy [policy_size], allocated in the same way."""
    nbytes = EvaluationRequests.nbytes(4 * policy_size)
    return EvaluationRequests(grown_block(context, "evaluation", nbytes), policy_size)


def grown_block(context: ChildContext, name: str, nbytes: int) -> memoryview:
    """Returns a block that the supervisor could not size, grown to `nbytes`. Raises `ConfigError` without memory."""
    try:
        return context.block(name, nbytes)
    except OSError as error:
        raise ConfigError(f"algo.hidden_dims: {nbytes / 2**20:.1f} MiB cannot be had for {name}: {error}") from error


def control_page(buffer: memoryview, cfg: RunConfig) -> ControlPage:
    """Returns the control page of this host."""
    return ControlPage(buffer, cfg.runner.world_size, cfg.num_rings)


def learner_gate(context: ChildContext, job: WorkerSpec, control: ControlPage) -> LearnerGate:
    """Returns a rank's gate."""
    num_collectors = job.cfg.num_rings
    return LearnerGate(
        control,
        context.index,
        context.wake_event(f"learner_wake-{context.index}"),
        [context.wake_event(f"collector_wake-{index}") for index in range(num_collectors)],
        num_collectors=num_collectors * job.host.num_hosts,
    )


def replay_rings(context: ChildContext, job: WorkerSpec) -> list[ReplayRing]:
    """Returns the replay rings of this host, one per collector; none where the algorithm keeps no replay."""
    count = 0 if job.cfg.algo.learns_from_rollouts else job.cfg.num_rings
    return [replay_ring(context, job, index) for index in range(count)]


def replay_ring(context: ChildContext, job: WorkerSpec, index: int) -> ReplayRing:
    """Returns the replay ring of a collector."""
    return _replay_ring(context.block(f"replay-{index}"), job.cfg, job.spec)


def _replay_ring(buffer: memoryview, cfg: RunConfig, spec: SpaceSpec) -> ReplayRing:
    layout, num_envs = row_layout(spec), cfg.env.num_envs
    return ReplayRing(buffer, layout, cfg.replay_rows, num_envs=num_envs, n_step=cfg.algo.n_step)


def rollout_ring(context: ChildContext, job: WorkerSpec, index: int) -> RolloutRing:
    """Returns the rollout ring of a collector."""
    layout = rollout_layout(job.cfg, job.spec)
    return RolloutRing(context.block(f"rollouts-{index}"), layout, job.cfg.rollout.slots)
