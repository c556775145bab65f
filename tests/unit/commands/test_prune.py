"""`offpolicy prune`: what goes, what stays, and how many bytes that frees."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import BestStore, CheckpointStore
from offpolicy.commands.prune import freed_bytes, prune
from offpolicy.errors import RunDirBusyError
from offpolicy.launch.run_lock import RunLock
from offpolicy.types import EvalResult


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at 10, 20 and 30 env steps and a best policy; that of 30 links the rows of 20."""
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


def test_the_newest_good_one_and_the_best_stay(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prune([run], keep=1, is_dry=False)
    assert names(run) == ["best", "step-000000000030"]
    assert "2 checkpoints removed, 0.0 MB; env step 30 stays" in capsys.readouterr().out


def test_rows_that_a_kept_checkpoint_shares_stay_with_it_and_free_nothing(run: Path) -> None:
    directories = [run / "checkpoints" / f"step-{step:012d}" for step in (20, 10)]
    own = sum(path.stat().st_size for path in directories[1].iterdir())
    with_links = sum(path.stat().st_size for path in directories[0].iterdir() if path.suffix != ".f32")
    assert freed_bytes(directories) == own + with_links
    prune([run], keep=1, is_dry=False)
    (left,) = CheckpointStore(run / "checkpoints").usable()
    assert left.rows("replay-0-000000000000000", 4).shape == (50, 4)


def test_a_dry_run_removes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(run)
    prune([run], keep=2, is_dry=True)
    assert names(run) == before
    assert "1 checkpoint would be removed" in capsys.readouterr().out
    assert not (run / ".lock").exists()


def test_a_damaged_newer_checkpoint_is_no_reason_to_remove_the_newest_good_one(run: Path) -> None:
    manifest = run / "checkpoints" / "step-000000000030" / "MANIFEST.json"
    manifest.write_text(json.dumps({"format": 0}))
    prune([run], keep=1, is_dry=False)
    assert names(run) == ["best", "step-000000000020", "step-000000000030"]


def test_a_run_without_a_good_checkpoint_keeps_all(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        os.truncate(path / "state.json", 3)
    prune([run], keep=1, is_dry=False)
    assert len(names(run)) == 4
    assert "no good checkpoint, so nothing is removed" in capsys.readouterr().out


def test_a_run_in_progress_that_has_not_saved_yet_is_refused(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(RunDirBusyError, match="is in use by pid"):
        prune([tmp_path], keep=1, is_dry=False)
    lock.release()


def test_a_run_in_progress_is_refused(run: Path) -> None:
    lock = RunLock(run)
    with pytest.raises(RunDirBusyError, match="is in use by pid"):
        prune([run], keep=1, is_dry=False)
    lock.release()
    assert len(names(run)) == 4


def save(path: Path, *steps: int) -> None:
    path.mkdir(exist_ok=True)
    store = CheckpointStore(path / "checkpoints", keep=9)
    for env_steps in steps:
        with store.begin(env_steps) as draft:
            draft.add_json("state", {"env_steps": env_steps})


def test_of_several_hosts_the_newest_that_all_have_stays(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Host 1 was killed after its save of 40, which host 0 lacks: a start needs what both have."""
    save(run / "host-1", 10, 20, 30, 40)
    save(run / "host-2")  # replaced, and without a checkpoint
    prune([run], keep=1, is_dry=False)
    assert names(run) == ["best", "step-000000000030"]
    assert names(run / "host-1") == ["step-000000000030", "step-000000000040"]
    assert "host-1: 2 checkpoints removed, 0.0 MB; env step 40, 30 stays" in capsys.readouterr().out


def test_hosts_without_a_common_checkpoint_keep_all(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(run / "host-1", 40, 50)
    prune([run], keep=1, is_dry=False)
    assert (len(names(run)), len(names(run / "host-1"))) == (4, 2)
    assert capsys.readouterr().out.count("no good checkpoint that all hosts have, so nothing is removed") == 2


def test_a_host_in_progress_is_refused_before_anything_goes(run: Path) -> None:
    save(run / "host-1", 10, 20, 30)
    lock = RunLock(run / "host-1")
    with pytest.raises(RunDirBusyError, match="is in use by pid"):
        prune([run], keep=1, is_dry=False)
    lock.release()
    assert (len(names(run)), len(names(run / "host-1"))) == (4, 3)


def test_checkpoints_whose_rows_are_damaged_are_not_good(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A start goes on without those rows. To prune for their sake would remove what may be mended."""
    for rows in (run / "checkpoints").glob("step-*/replay-0-*.f32"):
        with rows.open("r+b") as file:
            file.write(b"????")
    before = names(run)
    prune([run], keep=1, is_dry=False)
    assert names(run) == before
    assert "no good checkpoint, so nothing is removed" in capsys.readouterr().out
