"""`checkpoints/best/policy.safetensors`: the policy of the best evaluation so far, beside the checkpoints.

It is one file, so one rename replaces it: a kill leaves the old one or the new one. It holds what a policy needs to act
and the result of its evaluation, but nothing to go on training with. No checkpoint's retention touches it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.numpy
from safetensors import SafetensorError, safe_open

from offpolicy.checkpoint.manifest import Array, save_error
from offpolicy.checkpoint.store import CHECKPOINTS
from offpolicy.errors import CheckpointError
from offpolicy.files import Disk, atomic_write, remove_temporaries
from offpolicy.types import EvalResult

BEST, FILE = "best", "policy.safetensors"


@dataclass(frozen=True, slots=True)
class BestPolicy:
    """The policy of the best evaluation of a run."""

    path: Path
    env_steps: int
    mean_reward: float
    sha256: str  # of names and bytes of the tensors
    policy: Mapping[str, Array]  # by their names in a checkpoint's learner, `policy.` first

    def tensors(self, _: str) -> Mapping[str, Array]:
        """Returns the tensors, as `Checkpoint.tensors("learner")` does; there is nothing else."""
        return self.policy


class BestStore:
    """The best policy of one run. Only the process that evaluates may save."""

    def __init__(self, run: Path) -> None:
        self._root = run / CHECKPOINTS / BEST

    def save(self, tensors: Mapping[str, Array], result: EvalResult) -> None:
        """Replaces the best policy. Raises `SaveError`; then the old one is as it was."""
        note = {"evaluation": json.dumps(result._asdict(), allow_nan=False), "sha256": _digest(tensors)}
        disk = Disk()
        try:
            for directory in (self._root.parent, self._root):
                with contextlib.suppress(FileExistsError):  # the checkpointer makes the first one too
                    disk.mkdir(directory)
                disk.fsync_dir(directory.parent)
            remove_temporaries(self._root)
            atomic_write(self._root / FILE, safetensors.numpy.save(dict(tensors), metadata=note), durable=True)
        except OSError as error:
            raise save_error(self._root / FILE, error) from error

    def mean_reward(self) -> float | None:
        """The return of the policy that is there; None without one that is whole."""
        try:
            return _read(self._root / FILE).mean_reward
        except CheckpointError:
            return None


def read_best(run: Path) -> BestPolicy:
    """Returns the best policy of a run. Raises `CheckpointError` where there is none, or a damaged one."""
    path = run / CHECKPOINTS / BEST / FILE
    if not path.is_file():
        raise CheckpointError(
            f"--best: {path.parent} holds no policy: no evaluation of this run has finished (eval.every, eval.episodes)"
        )
    return _read(path)


def _read(path: Path) -> BestPolicy:
    try:
        with safe_open(path, framework="np") as file:
            note: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
        evaluation, expected = EvalResult(**json.loads(note["evaluation"])), note["sha256"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a readable best policy: {error!s:.200}") from error
    digest = _digest(tensors)
    if expected != digest:
        raise CheckpointError(f"{path}: expected sha256 {expected:.64}, got {digest}")
    return BestPolicy(path, evaluation.env_steps, evaluation.mean_reward, digest, tensors)


def _digest(tensors: Mapping[str, Array]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        found.update(tensors[name].tobytes())
    return found.hexdigest()
