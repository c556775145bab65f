"""A process of a run: the specification that it gets from its supervisor, and its start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.machine import keep_freed_memory
from offpolicy.processes.child import ChildContext
from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.ledger import Ledger, make_ledger, trace_names
from offpolicy.timing.trace_writer import open_track
from offpolicy.types import SpaceSpec

SNAPSHOT_DIR = ".snapshot"  # `.snapshot-<name>`: directory of a collector's or a rank's part of a checkpoint


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The division of a host's cores among its processes."""

    has_evaluator: bool  # True if a process evaluates beside training; else rank 0 does
    learner_threads: int
    collector_threads: int
    env_threads: int = 1  # that step the batch of a collector, with env.vectorization=mujoco


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What every process of a host is given, the same for all of them."""

    cfg: RunConfig
    spec: SpaceSpec
    plan: HostPlan
    host: HostInfo
    run_dir: str  # of this host
    start_step: int  # env steps of the checkpoint that the run continues; 0: a fresh run
    checkpoint: int | None  # `start_step` if this host has a checkpoint of it
    store_port: int  # of the store through which the ranks find each other
    last_eval_step: int = 0  # env steps of the last evaluation that is not made again
    # Env steps of the checkpoint of `teacher` or `init_from` that a fresh run starts from; None: from new networks.
    origin_step: int | None = None
    env_device: str | None = None  # of the tensors of a batch; None: arrays
    trace_dir: str | None = None  # directory of the trace's tracks; None: the run is not traced
    ray_dir: str | None = None  # directory of the Ray cluster that the run starts
    restarts: int = 0  # times that all processes began again after a death, before this start

    @property
    def collects_tensors(self) -> bool:
        """True if the learner's process steps tensors: the replay lies on the learner's device."""
        return self.cfg.collects_in_learner and self.env_device is not None

    @property
    def kept_eval_step(self) -> int:
        """Env steps up to which evaluations stay recorded: later ones are made again, and so is that of the goal."""
        is_at_goal = self.start_step >= self.cfg.total_timesteps
        return min(self.last_eval_step, self.start_step - 1) if is_at_goal else self.last_eval_step

    def to_json(self) -> dict[str, Any]:
        """Returns plain data."""
        return {**asdict(self), "cfg": self.cfg.to_mapping()}

    @classmethod
    def of(cls, child: ChildContext) -> WorkerSpec:
        """Reads the payload of a child process."""
        given: Mapping[str, Any] = child.payload
        typed = {
            "cfg": RunConfig.from_mapping(given["cfg"]),
            "spec": SpaceSpec.from_json(given["spec"]),
            "plan": HostPlan(**given["plan"]),
            "host": HostInfo(**given["host"]),
        }
        return cls(**{**given, **typed})


def start_worker(  # noqa: PLR0913  # what tells the processes of a run apart
    job: WorkerSpec,
    role: str,
    index: int,
    phases: type[StrEnum],
    *,
    threads: int,
    is_background: bool = False,
) -> Ledger:
    """Returns the ledger of the process `role` `index`, open since its birth, once torch is set up.

    Denormals are flushed where networks learn or are evaluated, not in collectors, whose thread steps the environments
    too. A background process must not take the core of the learner that has woken it: its step would be charged to the
    learner's sync_coordination. A learner keeps the memory that it frees: autograd allocates in every update, and the
    kernel would clear that memory page by page.
    """
    import torch  # here, because the supervisor imports this module too and has no torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(role != "collector")
    if role == "learner":
        keep_freed_memory()
    if is_background:
        with contextlib.suppress(OSError):  # a sandbox may refuse it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    trace = open_track(job.trace_dir, f"{role}-{index}", trace_names(phases), f"{role} {index}")
    is_enabled, opened_ns = job.cfg.timing.enabled, process_birth_ns()
    return make_ledger(phases, is_enabled=is_enabled, opened_ns=opened_ns, trace=trace)
