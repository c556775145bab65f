"""What a collector counts and reports when it is resumed, and when it takes over."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.checkpoint import CheckpointStore
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError
from offpolicy.processes.control_page import CollectorWord, ControlPage
from runners.collector import CountsBefore, counts_before


def two_collectors() -> ControlPage:
    return ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 2))), 1, 2)


def test_counts_of_the_checkpoint_are_read_until_all_collectors_announce_their_own(tmp_path: Path) -> None:
    """Afterwards the checkpoint may have been removed: a collector that comes back needs none of it."""
    state = {"numbers": {"num_updates": 0}, "env_steps": 30, "num_collectors": 2, "num_ranks": 1, "start": [4, 0]}
    rest = {"replay_first": [], "replay_end": [], "last_eval_step": 0, "fingerprint": {}, "bad_rows": [2]}
    with CheckpointStore(tmp_path / "checkpoints").begin(30) as draft:
        draft.add_json("state", state | rest)
        draft.add_json("collector-1", {"env_steps": 14})
    cfg = RunConfig.from_mapping({"collect": {"num_collectors": 2}})
    job: Any = SimpleNamespace(cfg=cfg, run_dir=str(tmp_path), checkpoint=30)
    control = two_collectors()
    assert counts_before(job, control) == CountsBefore([0, 14], [2, 0])
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError):
        counts_before(job, control)
    for words in control.collectors:
        words.set(CollectorWord.HAS_BEGUN, 1)
    assert counts_before(job, control) == CountsBefore([0, 0], [0, 0])
