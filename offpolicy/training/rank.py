"""One learner rank on its host: its clock, its device, its side of the shared memory, and the ranks that it joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from offpolicy.algos.optim import SoloExchange
from offpolicy.collect.collecting_gate import CollectingGate
from offpolicy.config.schema import RunConfig, device_problems
from offpolicy.distributed.process_group import Arrivals, GroupExchange, ProcessGroup, bind_interface, open_store
from offpolicy.distributed.world import World
from offpolicy.errors import ConfigError
from offpolicy.machine import num_usable_cores
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import ControlPage, HostWord, RankWord
from offpolicy.processes.handshake import LearnerGate
from offpolicy.seeding import generator, torch_seed
from offpolicy.timing.device_timer import DeviceTimer, StreamSync, make_device_timer
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import DeviceSpan, LearnerPhase
from offpolicy.timing.trace_writer import TraceTrack, open_track
from offpolicy.training.run_memory import control_page, learner_gate, peer_timeout_s
from offpolicy.training.worker import WorkerSpec, start_worker


class Rank:
    """What all parts of a learner rank share; it holds no learner and no batches."""

    def __init__(  # noqa: PLR0913  # all that its parts share
        self,
        child: ChildContext,
        job: WorkerSpec,
        ledger: Ledger,
        device: torch.device,
        device_timer: DeviceTimer,
        control: ControlPage,
        gate: LearnerGate,
    ) -> None:
        self.child, self.job, self.ledger, self.device, self.device_timer = child, job, ledger, device, device_timer
        self.control, self.gate = control, gate
        self.cfg, self.spec, self.is_one_host = job.cfg, job.spec, job.host.is_alone
        self.words = control.ranks[child.index]  # the control words of this rank
        self.is_leader = child.index == 0  # of its host: steers collectors, publishes weights, saves checkpoints
        self.rank = job.host.index * self.cfg.runner.world_size + child.index  # over all hosts
        self.num_ranks = job.host.num_hosts * self.cfg.runner.world_size  # of all hosts
        # The part of a random stream's name that tells a run's start from its resumptions.
        self.start_path = (job.start_step,) if job.start_step else ()

    @classmethod
    def open(cls, child: ChildContext) -> Rank:
        """Sets up the process. Raises `ConfigError` without a device."""
        job, index = WorkerSpec.of(child), child.index
        ledger = start_worker(job, "learner", index, LearnerPhase, threads=job.plan.learner_threads)
        device = pick_device(job.cfg.device, index)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # or torch would open the first one beside it
            # cuDNN's default, TF32, has errors of 1e-3 beside the policies of the collectors; products are float32.
            torch.backends.cudnn.allow_tf32 = False
        control = control_page(child.block("control"), job.cfg)
        device_sync = StreamSync(device, yields_core=is_crowded(job.cfg))

        def open_device_track(name: str, what: str) -> TraceTrack | None:
            return open_track_of(child, job, name, tuple(DeviceSpan), f"device {index}, {what}")

        device_timer = make_device_timer(
            device_sync, ledger, is_enabled=job.cfg.timing.enabled, open_track=open_device_track
        )
        gate = learner_gate(child, job, control)
        if job.cfg.collects_in_learner:
            wake_event = child.wake_event(f"learner_wake-{index}")
            gate = CollectingGate(control, index, wake_event, (), num_collectors=job.host.num_hosts)
            gate.ledger, gate.on_device = ledger, device_timer.span(DeviceSpan.COLLECT)
        return cls(child, job, ledger, device, device_timer, control, gate)

    @property
    def learner_seed(self) -> int:
        """The seed of the learner's weights and random numbers; rank 0 of a fresh run has the run's own."""
        path = (self.rank, *self.start_path) if self.rank or self.start_path else ()
        return torch_seed(self.cfg.seed, "learner", *path)

    @property
    def replay_seed(self) -> int:
        """The seed of a sampler on the device."""
        return torch_seed(self.cfg.seed, "replay", self.rank, *self.start_path)

    def replay_generator(self) -> np.random.Generator:
        """Returns the random numbers of a sampler on the host."""
        return generator(self.cfg.seed, "replay", self.rank, *self.start_path)

    def own_collectors(self) -> Sequence[int]:
        """Returns the collectors of this host that feed this rank, where each rank has its own: every R-th."""
        return range(self.child.index, self.cfg.num_rings, self.cfg.runner.world_size)

    def is_stopping(self) -> bool:
        """True if the supervisor asked to stop; the call counts as progress of this process."""
        self.words[RankWord.PROGRESS] += 1
        return self.control.is_stopping

    def note(self, text: str) -> None:
        """Sends a line for the run's log."""
        self.child.send("note", text=text)

    def new_device_sync(self) -> StreamSync:
        """Returns a wait for the device that another thread of this process uses."""
        return StreamSync(self.device, yields_core=is_crowded(self.cfg))

    def warn(self, text: str) -> None:
        """Sends a warning for the run's log."""
        self.child.send("warning", text=text)

    @contextmanager
    def activity(self, text: str) -> Iterator[None]:
        """Shows on the panel what this rank does besides learning; of several ranks, the first one shows it."""
        if self.rank != 0:
            yield
            return
        self.child.send("activity", text=text)
        try:
            yield
        finally:
            self.child.send("activity", text="")


def single_rank(rank: Rank) -> World:
    """Returns a world of one rank: every collective is the identity."""
    return World(rank.gate, new_requests(rank), rank.ledger, SoloExchange())


@contextmanager
def join(rank: Rank) -> Iterator[World]:
    """Joins the ranks of all hosts, and leaves them at the end. Raises `PeerLostError` if one does not come."""
    runner, host = rank.cfg.runner, rank.job.host
    if rank.num_ranks == 1 and runner.backend != "nccl":
        yield single_rank(rank)
        return
    backend = pick_backend(rank)
    bind_interface(runner.interface)
    store = open_store(
        host, rank.rank, listen_fd=rank.child.fds.get("store"), port=rank.job.store_port, timeout_s=runner.timeout_s
    )
    arrivals = Arrivals(rank.ledger, rank.control.ranks, rank.child.index, is_one_host=host.is_alone)
    timeout_s = peer_timeout_s(rank.cfg, rank.spec)
    group = ProcessGroup(store, rank.rank, rank.num_ranks, backend=backend, timeout_s=timeout_s, arrivals=arrivals)
    try:
        exchange = GroupExchange(group, rank.device, rank.device_timer, rank.ledger)
        yield World(rank.gate, new_requests(rank), rank.ledger, exchange, group, is_leader=rank.is_leader)
    finally:
        group.close()


def pick_backend(rank: Rank) -> str:
    """Returns nccl where every rank has its own GPU, else gloo. Raises `ConfigError` for what cannot work."""
    asked = rank.cfg.runner.backend
    is_shared = rank.cfg.runner.world_size > 1 and ":" in rank.cfg.device  # cuda:0 for all ranks
    can_nccl = rank.device.type == "cuda" and not is_shared and torch.distributed.is_nccl_available()
    if asked == "nccl" and not can_nccl:
        why = "the ranks share one GPU" if is_shared else f"the ranks train on {rank.device.type}"
        raise ConfigError(f"runner.backend: got nccl, allowed auto or gloo: {why}")
    if asked == "auto":
        return "nccl" if can_nccl else "gloo"
    return asked


def new_requests(rank: Rank) -> Callable[[], tuple[bool, bool]]:
    """Returns a function that says if a report, and if a checkpoint, was asked for since its last call.

    The clock of the first host asks all ranks for a checkpoint; a user may ask on any host.
    """
    words = HostWord.REPORT_REQUEST, HostWord.SAVE_REQUEST if rank.rank == 0 else HostWord.SAVE_SIGNALS
    answered = [0, 0]

    def are_new() -> tuple[bool, bool]:
        before, answered[:] = answered.copy(), (rank.control.host[word] for word in words)
        return answered[0] != before[0], answered[1] != before[1]

    return are_new


def pick_device(name: str, local_rank: int) -> torch.device:
    """Returns the device of a rank: `auto` and `cuda` give each rank of a host its own GPU. Raises `ConfigError`."""
    if problems := device_problems(name):
        raise ConfigError(problems)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and count == 0):
        return torch.device("cpu")
    _, _, index = name.partition(":")
    number = int(index or local_rank)
    if number >= count:
        raise ConfigError(f"device: got {name} for learner rank {local_rank}, allowed one of {count} CUDA devices")
    return torch.device("cuda", number)


def unused_gpu(device: torch.device, name: str) -> str:
    """Returns a warning where `device=auto` has become the CPU although there is a GPU; '' where all is well.

    The driver answers how many there are, also where it is too old for this torch.
    """
    if device.type != "cpu" or name != "auto" or not torch.cuda.device_count():
        return ""
    return "device=auto is the CPU: torch cannot use the GPU of this machine; `offpolicy doctor` says why"


def is_crowded(cfg: RunConfig) -> bool:
    """True if this host's ranks, collectors and environment processes leave no core to a thread that only spins."""
    workers = cfg.env.num_envs if cfg.env.vectorization == "async" else 0
    own = workers if cfg.collects_in_learner else cfg.num_local_collectors * (1 + workers)
    return num_usable_cores() <= cfg.runner.world_size + own


def open_track_of(
    child: ChildContext, job: WorkerSpec, name: str, names: Sequence[str], thread: str
) -> TraceTrack | None:
    """Returns a track of a traced run; None, with a warning, where the supervisor saw no device and reserved none."""
    try:
        return open_track(job.trace_dir, f"{name}-{child.index}", names, f"learner {child.index}", thread)
    except FileNotFoundError:
        child.send("warning", text=f"timing.trace: no track of {thread}: the device was not expected; set device=cuda")
        return None
