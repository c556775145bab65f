"""What a process of a run is given by its supervisor, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.processes.child import ChildContext
from offpolicy.types import SpaceSpec

SNAPSHOT_DIR = ".snapshot"  # `.snapshot-<name>`: where collectors and ranks leave their part of a checkpoint


@dataclass(frozen=True, slots=True)
class HostPlan:
    """How the processes of one host divide its cores."""

    has_evaluator: bool  # True if a process evaluates beside training; else rank 0 does
    learner_threads: int
    collector_threads: int


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The same for every process of a host."""

    cfg: RunConfig
    spec: SpaceSpec
    plan: HostPlan
    place: HostInfo
    run_dir: str  # of this host
    start_step: int  # env steps of the checkpoint that the run continues; 0: a fresh run
    checkpoint: int | None  # `start_step` if this host has a checkpoint of it
    store_port: int  # of the store through which the ranks find each other
    teacher_step: int | None = None  # env steps of the teacher's checkpoint to start from; None: none is needed
    trace_dir: str | None = None  # directory of the trace's tracks; None: the run is not traced

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
            "place": HostInfo(**given["place"]),
        }
        return cls(**{**given, **typed})
