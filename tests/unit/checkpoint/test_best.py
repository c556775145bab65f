"""The policy of the best evaluation: one file that a kill leaves whole, and that nobody loads when it is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.checkpoint import BestStore, CheckpointStore, read_best
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.types import EvalResult
from tests.fakes import refused

WEIGHTS = {"policy.actor.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}


def result(env_steps: int, mean_reward: float) -> EvalResult:
    return EvalResult(env_steps, mean_reward, 1.0, 200.0, 10)


def file_of(run: Path) -> Path:
    return run / "checkpoints" / "best" / "policy.safetensors"


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    store = BestStore(tmp_path)
    assert store.mean_reward() is None
    store.save(WEIGHTS, result(500, -3.5))
    best = read_best(tmp_path)
    assert (best.env_steps, best.mean_reward) == (500, -3.5)
    np.testing.assert_array_equal(best.tensors("learner")["policy.actor.weight"], WEIGHTS["policy.actor.weight"])
    assert store.mean_reward() == -3.5


@pytest.mark.promise("no-broken-checkpoint")
@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_a_disk_that_refuses_leaves_the_old_one(tmp_path: Path, operation: str) -> None:
    store = BestStore(tmp_path)
    store.save(WEIGHTS, result(500, 1.0))
    with refused(f"file.{operation}:ENOSPC"), pytest.raises(SaveError, match="No space left"):
        store.save({name: tensor + 1 for name, tensor in WEIGHTS.items()}, result(900, 2.0))
    assert read_best(tmp_path).env_steps == 500
    assert [path.name for path in file_of(tmp_path).parent.iterdir()] == ["policy.safetensors"]


def test_a_damaged_one_is_refused_with_both_digests(tmp_path: Path) -> None:
    BestStore(tmp_path).save(WEIGHTS, result(500, 1.0))
    content = bytearray(file_of(tmp_path).read_bytes())
    content[-1] ^= 1
    file_of(tmp_path).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"expected sha256 [0-9a-f]{64}, got [0-9a-f]{64}"):
        read_best(tmp_path)
    assert BestStore(tmp_path).mean_reward() is None


@pytest.mark.parametrize("content", [b"", b"no safetensors", b"\x02\0\0\0\0\0\0\0{}"])
def test_what_no_run_has_written_is_refused(tmp_path: Path, content: bytes) -> None:
    file_of(tmp_path).parent.mkdir(parents=True)
    file_of(tmp_path).write_bytes(content)
    with pytest.raises(CheckpointError):
        read_best(tmp_path)


def test_without_an_evaluation_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no evaluation of this run has finished"):
        read_best(tmp_path)


def test_no_retention_touches_it_and_no_checkpoint_is_looked_for_in_it(tmp_path: Path) -> None:
    BestStore(tmp_path).save(WEIGHTS, result(500, 1.0))
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for env_steps in (10, 20, 30):
        with store.begin(env_steps) as draft:
            draft.add_json("state", {})
    assert read_best(tmp_path).env_steps == 500
    assert store.steps() == {30, 20}
