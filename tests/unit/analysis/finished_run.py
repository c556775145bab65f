"""A finished run made of numbers: its configuration and `summary.json`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.model.throughput import Capacities, pipeline_of
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))


def finished_run(path: Path, *overrides: str, done: float = 95.0, **changes: Any) -> Path:
    """A run whose learner takes 10 ms per env step and whose collector takes 4: T = 100, I = 250."""
    path.mkdir()
    cfg = load_config(["collect.mode=overlap", *overrides])
    write_config(path, cfg, SPEC)
    learner = {str(phase): 0.0 for phase in LearnerPhase if phase != "other"}
    learner |= {"train": 80.0, "replay_sample": 10.0, "evaluation": 5.0}
    collector = {"env_step": 30.0, "action_select": 10.0, "learner_wait": 60.0}
    learner_s, collector_s = {**learner, "other": 10.0}, {**collector, "other": 0.0}
    measured = Capacities(collector=250.0, learner=100.0)
    pipeline = pipeline_of(collector_s, learner_s, measured, cfg.collect.num_collectors, cfg.collect_mode)
    summary = {
        "status": "completed",
        "reason": "done",
        "timing": {
            "learner": {"wall_s": 107.0, "phases_s": {**learner, "warmup": 2.0}, "other_s": 10.0},
            "collector": {"wall_s": 101.0, "phases_s": {**collector, "warmup": 1.0}, "other_s": 0.0},
        },
        "learning": {"learner_s": learner_s, "collectors_s": [collector_s]},
        "pipeline": pipeline.to_mapping(),
        "rates": {
            "steps_per_sec": done,
            "collector_capacity": 250.0,
            "learner_capacity": 100.0,
            "predicted_steps_per_sec": 100.0,
            "utd": 1.0,
        },
        "bottleneck": {"verdict": "learner", "phase": "train", "reason": "it is busy", "advice": ["do less"]},
    }
    (path / "summary.json").write_text(json.dumps(summary | changes))
    return path


def goes_on_after_its_end(path: Path) -> None:
    """Leaves the files of a run that was started again after its end, and then killed."""
    (path / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    os.utime(path / "summary.json", ns=(0, 0))
