"""What a collector counts and reports when it is resumed, and when it takes over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from offpolicy.checkpoint import CheckpointStore
from offpolicy.config.schema import RunConfig
from runners.collector import steps_before


def test_env_steps_before_a_resume_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """A collector that it does not hold has done none."""
    with CheckpointStore(tmp_path / "checkpoints").begin(30) as draft:
        draft.add_json("collector-1", {"env_steps": 14})
    cfg = RunConfig.from_mapping({"collect": {"num_collectors": 2}})
    job: Any = SimpleNamespace(cfg=cfg, run_dir=str(tmp_path), checkpoint=30)
    assert steps_before(job) == [0, 14]
    job.checkpoint = None
    assert steps_before(job) == [0, 0]
