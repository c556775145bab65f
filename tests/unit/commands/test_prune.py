"""`offpolicy prune`: what goes, what stays, and how many bytes that frees."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import BestStore, CheckpointStore
from offpolicy.commands.prune import freed_bytes
from offpolicy.launch.run_lock import RunLock
from offpolicy.types import EvalResult
from tests.unit.commands.conftest import Typed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at 10, 20 and 30 env steps and a best policy; that of 30 links the rows of 20."""
    (tmp_path / "config.yaml").touch()
    store = CheckpointStore(tmp_path / "checkpoints", keep=9)
    for env_steps in (10, 20, 30):
        with store.begin(env_steps) as draft:
            draft.add_json("state", {"env_steps": env_steps})
            if env_steps == 30:
                (before,) = (found for found in store.usable() if found.env_steps == 20)
                draft.add_link("replay-0-000000000000000.f32", before, "replay-0-000000000000000.f32")
            else:
                draft.add_rows("replay-0-000000000000000", [np.ones((50, 4), np.float32)])
    BestStore(tmp_path).save({"policy.x": np.ones(2, np.float32)}, EvalResult(10, 1.0, 0.0, 5.0, 1))
    return tmp_path


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if not path.name.startswith("latest"))


def test_the_newest_good_one_and_the_best_stay(run: Path, printed: Typed) -> None:
    """Rows that the kept checkpoint shares stay with it, and free nothing."""
    directories = [run / "checkpoints" / f"step-{step:012d}" for step in (20, 10)]
    own = sum(path.stat().st_size for path in directories[1].iterdir())
    with_links = sum(path.stat().st_size for path in directories[0].iterdir() if path.suffix != ".f32")
    assert freed_bytes(directories) == own + with_links
    before = names(run)
    assert "1 checkpoint would be removed" in printed("prune", run, "--keep", "2", "--dry-run")
    assert names(run) == before
    assert not (run / ".lock").exists()
    assert "2 checkpoints removed, 0.0 MB; env step 30 stays" in printed("prune", run)
    assert names(run) == ["best", "step-000000000030"]
    (left,) = CheckpointStore(run / "checkpoints").usable()
    assert left.rows("replay-0-000000000000000", 4).shape == (50, 4)


def test_a_damaged_newer_checkpoint_is_no_reason_to_remove_the_newest_good_one(run: Path, printed: Typed) -> None:
    (run / "checkpoints" / "step-000000000030" / "MANIFEST.json").write_text(json.dumps({"format": 0}))
    printed("prune", run)
    assert names(run) == ["best", "step-000000000020", "step-000000000030"]


def damage_states(run: Path) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        os.truncate(path / "state.json", 3)


def damage_rows(run: Path) -> None:
    """A start goes on without those rows. To prune for their sake would remove what may be mended."""
    for rows in (run / "checkpoints").glob("step-*/replay-0-*.f32"):
        with rows.open("r+b") as file:
            file.write(b"????")


def test_a_run_without_a_good_checkpoint_that_all_hosts_have_keeps_all(run: Path, printed: Typed) -> None:
    save(run / "host-1", 40, 50)
    missing = "no good checkpoint that all hosts have, so nothing is removed"
    assert printed("prune", run).count(missing) == 2
    shutil.rmtree(run / "host-1")
    for damage in (damage_rows, damage_states):
        damage(run)
        assert "no good checkpoint, so nothing is removed" in printed("prune", run)
    assert len(names(run)) == 4


def save(path: Path, *steps: int) -> None:
    path.mkdir(exist_ok=True)
    store = CheckpointStore(path / "checkpoints", keep=9)
    for env_steps in steps:
        with store.begin(env_steps) as draft:
            draft.add_json("state", {"env_steps": env_steps})


def test_a_run_in_progress_is_refused_before_anything_goes(run: Path, refused: Typed) -> None:
    save(run / "host-1", 10, 20, 30)
    for busy in (run, run / "host-1"):
        lock = RunLock(busy)
        lock.sign()
        assert "is in use by pid" in refused("prune", run, code=73)
        lock.release()
    assert (len(names(run)), len(names(run / "host-1"))) == (4, 3)


def test_of_several_hosts_the_newest_that_all_have_stays(run: Path, printed: Typed) -> None:
    """Host 1 was killed after its save of 40, which host 0 lacks: a start needs what both have."""
    save(run / "host-1", 10, 20, 30, 40)
    save(run / "host-2")  # replaced, and without a checkpoint
    assert "host-1: 2 checkpoints removed, 0.0 MB; env step 40, 30 stays" in printed("prune", run)
    assert names(run) == ["best", "step-000000000030"]
    assert names(run / "host-1") == ["step-000000000030", "step-000000000040"]
