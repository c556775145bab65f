"""The collector's part of a checkpoint: counters, random streams, running episodes, environments, open n-step rows.

The collector writes it between two steps, on the learner's request; the learner moves the files into its checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from offpolicy import fault
from offpolicy.checkpoint import Checkpoint, CollectorNumbers, write_json, write_tensors
from offpolicy.collect.collector import Progress
from offpolicy.collect.episodes import EpisodeTracker
from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.replay_writer import Writer
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.seeding import generator_state, set_generator_state


class CollectorSnapshot:
    """Saves and restores everything of a collector but its rows, which live in the ring. `name` names its files."""

    def __init__(
        self, name: str, env: VectorAdapter, policy: CollectorPolicy, writer: Writer, tracker: EpisodeTracker
    ) -> None:
        self.name = name
        self._env, self._policy, self._writer, self._tracker = env, policy, writer, tracker

    def save(self, directory: Path, progress: Progress) -> str | None:
        """Writes `<name>.json` and `<name>.safetensors`. Raises `SaveError`.

        Returns why a resume from it will not be exact, or None if it will: whatever the environments do, it is saved.
        """
        state = save_state(self._env)
        try:
            return self._write(directory, progress, state)
        except (TypeError, ValueError, RecursionError) as error:  # more than a file format holds
            return self._write(directory, progress, str(error))

    def _write(self, directory: Path, progress: Progress, state: EnvState | str) -> str | None:
        why_not, env = (state, None) if isinstance(state, str) else (None, state)
        rows, sums = self._writer.open_windows()
        arrays = {
            "obs": progress.obs,
            "noise": self._policy.policy_rng.get_state().numpy(),
            "ep_return": self._tracker.ep_return,
            "ep_length": self._tracker.ep_length,
            "open_rows": rows,
            "open_sums": sums,
        }
        if self._policy.repeated_noise is not None:
            arrays |= self._policy.repeated_noise.arrays()
        env_arrays = {f"env/{name}": array for name, array in (env.arrays if env else {}).items()}
        numbers = CollectorNumbers(
            env_steps=progress.env_steps,
            vector_steps=progress.vector_steps,
            policy_steps=progress.policy_steps,
            policy_lag_sum=progress.policy_lag_sum,
            uniform=generator_state(self._policy.warmup_rng),
            env=env.meta if env else None,
            why_not_exact=why_not,
        )
        shutil.rmtree(directory, ignore_errors=True)  # left by a save that failed
        try:
            fault.hit("snapshot.mkdir")
            directory.mkdir()
        except OSError as error:
            raise SaveError(f"{directory}: {error.strerror}") from error
        write_tensors(
            directory, self.name, {name: np.ascontiguousarray(a) for name, a in (arrays | env_arrays).items()}
        )
        write_json(directory, self.name, vars(numbers))
        return why_not

    def restore(self, checkpoint: Checkpoint, progress: Progress) -> str | None:
        """Restores a checkpoint. Returns why the continuation is not exact, or None if it is.

        Where the environments cannot be restored, new episodes begin. Raises `CheckpointError` for an unreadable file.
        """
        if not checkpoint.has(self.name):
            return f"{self.name} was not there when the checkpoint was saved"
        numbers, arrays = checkpoint.read(CollectorNumbers, self.name), checkpoint.tensors(self.name)
        progress.env_steps, progress.vector_steps = numbers.env_steps, numbers.vector_steps
        progress.policy_steps, progress.policy_lag_sum = numbers.policy_steps, numbers.policy_lag_sum
        set_generator_state(self._policy.warmup_rng, numbers.uniform)
        self._policy.policy_rng.set_state(torch.from_numpy(arrays["noise"]))
        if numbers.env is None:
            return str(numbers.why_not_exact)
        env_arrays = {name[4:]: array for name, array in arrays.items() if name.startswith("env/")}
        try:
            restore_state(self._env, EnvState(numbers.env, env_arrays))
        except CheckpointError as error:
            return str(error)
        if self._policy.repeated_noise is not None:
            self._policy.repeated_noise.restore(arrays)
        progress.obs = arrays["obs"]
        self._tracker.ep_return[:], self._tracker.ep_length[:] = arrays["ep_return"], arrays["ep_length"]
        self._writer.reopen_windows(arrays["open_rows"], arrays["open_sums"])
        return None
