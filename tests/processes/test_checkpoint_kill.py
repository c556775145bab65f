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

import pytest

import offpolicy
from offpolicy.checkpoint import CheckpointStore
from tests.disks import WatchedDisk, save_tagged, tag_of

pytestmark = pytest.mark.mp

REPOSITORY = Path(offpolicy.__file__).parents[1]
SIZE = 20_000  # of a save: about 400 KB


def verdict(root: Path, acknowledged: int) -> dict[str, Any]:
    """What a fresh process would find."""
    store = CheckpointStore(root)
    newest = store.newest_valid()
    return {
        "acknowledged": acknowledged, "loaded": newest.env_steps if newest else 0, "tag": tag_of(newest),
        "num_checkpoints": len(list(root.glob("step-*"))),
        "num_usable": len([found for found in store.usable() if found.path.name.startswith("step-")]),
        "rejected": store.rejected,
    }  # fmt: skip


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


class SuicidalDisk(WatchedDisk):
    """Kills its process before its n-th operation, or half-way through it when it writes, or removes a directory."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at

    def watch(self, kind: str, path: Path, new: Path | None = None, content: bytes = b"") -> None:
        self._left -= 1
        if self._left == 0:
            if kind == "write":
                path.write_bytes(content[: len(content) // 2])
            elif kind == "remove" and path.is_dir():
                max(path.iterdir()).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_every_operation(base: Path) -> Iterable[dict[str, Any]]:
    """For a first save, a save that expires another, and a second save of the same step."""
    for earlier, env_steps in (((), 1), ((1, 2), 3), ((1, 2), 2)):
        for kill_at in range(1, 100):
            run = base / f"{env_steps}-{len(earlier)}-{kill_at}"
            run.mkdir()
            for step in earlier:
                save_tagged(CheckpointStore(run / "checkpoints"), step, step, SIZE)
            store = CheckpointStore(run / "checkpoints", 2, SuicidalDisk(kill_at))
            _, status = os.waitpid(fork(lambda: save_tagged(store, env_steps, env_steps, SIZE)), 0)  # noqa: B023  # it runs at once
            (run / "checkpoints").mkdir(exist_ok=True)
            yield {"case": [len(earlier), env_steps, kill_at], **verdict(run / "checkpoints", max(earlier, default=0))}
            if not os.WIFSIGNALED(status):
                break


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
        assert found["tag"] == found["loaded"], found
        assert found["rejected"] == [], found


if __name__ == "__main__":
    for found in kill_at_every_operation(Path(sys.argv[1])):
        print(json.dumps(found), flush=True)
