"""SIGKILL during a save, before every single operation on the disk.

This file is also the script that the test starts: a small parent that forks a saver, and loads what a kill has left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offpolicy
from offpolicy.checkpoint import Checkpoint, CheckpointStore, Disk

pytestmark = pytest.mark.mp

REPOSITORY = Path(offpolicy.__file__).parents[1]
OLD_ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def save(store: CheckpointStore, env_steps: int) -> None:
    """A state of about 400 KB in which every file carries its step, but for one that all saves take over."""
    base = store.newest_valid()
    with store.begin(env_steps) as draft:
        if base is None:
            draft.add_rows("old", [OLD_ROWS])
        else:
            draft.add_link("old.f32", base, "old.f32")
        draft.add_tensors("model", {"weight": np.full(20_000, env_steps, np.float32)})
        draft.add_json("state", {"env_steps": env_steps})
        draft.add_rows("replay", [np.full((20_000, 4), env_steps, np.float32)])


def is_consistent(checkpoint: Checkpoint) -> bool:
    """Whether every file belongs to this step."""
    weight, rows = checkpoint.tensors("model")["weight"], checkpoint.rows("replay", 4)
    state = checkpoint.json("state")["env_steps"]
    if not np.array_equal(checkpoint.rows("old", 4), OLD_ROWS):
        return False
    return state == checkpoint.env_steps and bool((weight == state).all()) and bool((rows == state).all())


def verdict(root: Path, acknowledged: int) -> dict[str, Any]:
    """What a fresh process would find."""
    store = CheckpointStore(root)
    newest = store.newest_valid()
    return {
        "acknowledged": acknowledged,
        "loaded": newest.env_steps if newest else -1,
        "is_consistent": newest is not None and is_consistent(newest),
        "num_checkpoints": len(list(root.glob("step-*"))),
        "num_usable": len([found for found in store.usable() if found.path.name.startswith("step-")]),
        "rejected": store.rejected,
    }


# --- the script: no test runs below the fork, and no thread exists at it


def fork(body: Callable[[], None]) -> int:
    """A child that runs `body` and ends; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid


class SuicidalDisk(Disk):
    """Kills its process before its n-th operation, or half-way through it when it writes, or removes a directory."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def mkdir(self, path: Path) -> None:
        self._count()
        super().mkdir(path)

    def write(self, path: Path, blocks: Iterable[bytes | memoryview]) -> None:
        content = b"".join(blocks)
        if self._left == 1:
            super().write(path, [content[: len(content) // 2]])
        self._count()
        super().write(path, [content])

    def link(self, old: Path, new: Path) -> None:
        self._count()
        super().link(old, new)

    def fsync(self, path: Path) -> None:
        self._count()
        super().fsync(path)

    def fsync_dir(self, path: Path) -> None:
        self._count()
        super().fsync_dir(path)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        if self._left == 1 and path.is_dir():
            max(path.iterdir()).unlink()
        self._count()
        super().remove(path)


def kill_at_every_operation(base: Path) -> Iterable[dict[str, Any]]:
    """For a first save, a save that expires another, and a second save of the same step."""
    for earlier, env_steps in (((), 1), ((1, 2), 3), ((1, 2), 2)):
        for kill_at in range(1, 100):
            run = base / f"{env_steps}-{len(earlier)}-{kill_at}"
            run.mkdir()
            for step in earlier:
                save(CheckpointStore(run / "checkpoints"), step)
            store = CheckpointStore(run / "checkpoints", 2, SuicidalDisk(kill_at))
            _, status = os.waitpid(fork(lambda: save(store, env_steps)), 0)  # noqa: B023  # it runs at once
            (run / "checkpoints").mkdir(exist_ok=True)
            yield {"case": [len(earlier), env_steps, kill_at], **verdict(run / "checkpoints", max(earlier, default=-1))}
            if not os.WIFSIGNALED(status):
                break


# --- the test


@pytest.mark.promise("no-broken-checkpoint")
def test_a_kill_before_any_operation_never_loses_an_acknowledged_save(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) > 50
    for found in verdicts:
        assert found["loaded"] >= found["acknowledged"], found
        assert found["num_usable"] == found["num_checkpoints"], found
        assert found["is_consistent"] or found["loaded"] == found["acknowledged"] == -1, found
        assert found["rejected"] == [], found


if __name__ == "__main__":
    for found in kill_at_every_operation(Path(sys.argv[1])):
        print(json.dumps(found), flush=True)
