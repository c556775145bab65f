"""What a child process of a run is given, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.processes.child import ChildContext
from offpolicy.types import SpaceSpec

SNAPSHOT_DIR = ".snapshot"  # `.snapshot-<name>`: where collectors and ranks leave their share of a checkpoint


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a child process needs to know, as JSON in its spec."""

    cfg: RunConfig
    spec: SpaceSpec
    run_dir: str  # of this host
    start_step: int  # the env step that the run goes on from; 0: from the start
    checkpoint: int | None  # `start_step` if this host has a checkpoint of it
    place: HostInfo
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
    def of(cls, context: ChildContext) -> WorkerSpec:
        """From a child's payload."""
        given: Mapping[str, Any] = context.payload
        cfg, spec = RunConfig.from_mapping(given["cfg"]), SpaceSpec.from_json(given["spec"])
        place = HostInfo(**given["place"])
        own = ("run_dir", "start_step", "checkpoint", "store_port", "teacher_step", "trace_dir")
        return cls(cfg=cfg, spec=spec, place=place, **{name: given[name] for name in own})
