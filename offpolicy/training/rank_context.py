"""What a learner process starts with: its assignment, clock, device, control words and wake events."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import ControlPage, ControlWords, HostWord, RankWord
from offpolicy.processes.handshake import LearnerGate
from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.device import DEVICE_SPANS, DeviceFence
from offpolicy.timing.device_timer import DeviceTime, Traces, make_lane
from offpolicy.timing.ledger import TimeAccount, make_ledger, trace_names
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.trace_writer import open_lane
from offpolicy.training.resources import thread_budget
from offpolicy.training.run_memory import control_page, learner_gate
from offpolicy.training.worker_spec import WorkerSpec


def pick_device(name: str, local_rank: int) -> torch.device:
    """The device of a rank: `auto` and `cuda` give each rank of a host a GPU of its own. Raises `ConfigError`."""
    count = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and count == 0):
        return torch.device("cpu")
    _, _, index = name.partition(":")
    device = torch.device("cuda", int(index or local_rank))
    if (device.index or 0) >= count:
        raise ConfigError(f"device: got {name} for learner rank {local_rank}, allowed one of {count} CUDA devices")
    return device


def _device_traces(job: WorkerSpec, rank: int) -> Traces:
    """A lane for the device's own stream, and one for copies beside it."""
    lanes = [
        open_lane(job.trace_dir, f"{name}-{rank}", DEVICE_SPANS, f"learner {rank}", f"device {rank}, {what}")
        for name, what in (("device", "work"), ("device_copies", "copies"))
    ]
    return Traces(*lanes)


@dataclass(frozen=True, slots=True)
class RankContext:
    """One learner rank on its host."""

    context: ChildContext
    job: WorkerSpec
    ledger: TimeAccount
    device: torch.device
    fence: DeviceFence
    lane: DeviceTime
    control: ControlPage
    gate: LearnerGate

    @classmethod
    def take(cls, context: ChildContext) -> RankContext:
        """Set up the process."""
        job = WorkerSpec.of(context)
        name = f"learner {context.index}"
        trace = open_lane(job.trace_dir, f"learner-{context.index}", trace_names(LearnerPhase), name)
        ledger = make_ledger(LearnerPhase, is_enabled=job.cfg.timing.enabled, opened_ns=process_birth_ns(), trace=trace)
        torch.set_num_threads(thread_budget(job.cfg)["learner"])
        torch.set_flush_denormal(True)
        device = pick_device(job.cfg.device, context.index)
        control = control_page(context.block("control"), job.cfg)
        gate = learner_gate(context, job, control, f"learner_wake-{context.index}", is_main=True)
        lane = make_lane(device, is_enabled=job.cfg.timing.enabled, traces=lambda: _device_traces(job, context.index))
        return cls(context, job, ledger, device, DeviceFence(device), lane, control, gate)

    @property
    def cfg(self) -> RunConfig:
        """The configuration."""
        return self.job.cfg

    @property
    def words(self) -> ControlWords:
        """The control words of this rank."""
        return self.control.ranks[self.context.index]

    @property
    def is_leader(self) -> bool:
        """Whether this rank steers the collectors of its host, publishes the weights and saves the checkpoints."""
        return self.context.index == 0

    @property
    def rank(self) -> int:
        """The rank over all hosts."""
        return self.job.place.host * self.cfg.runner.world_size + self.context.index

    @property
    def num_ranks(self) -> int:
        """The ranks of all hosts."""
        return self.job.place.num_hosts * self.cfg.runner.world_size

    @property
    def start_path(self) -> tuple[int, ...]:
        """What tells the random streams of a run's start from those of its continuations."""
        return (self.job.start_step,) if self.job.start_step else ()

    def reports_wanted(self) -> int:
        """How many reports the supervisor has asked for."""
        return self.control.host.get(HostWord.REPORT_REQUEST)

    def is_stopping(self) -> bool:
        """Whether the supervisor asked to stop; asking shows that this process makes progress."""
        self.words.bump(RankWord.PROGRESS)
        return self.control.is_stopping
