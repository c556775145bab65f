"""The collector's part of a checkpoint: counters, random streams, running episodes, environments, open n-step rows.

The collector writes it between two steps, on the learner's request; the learner moves the files into its checkpoint.
Its rows are in the ring.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from offpolicy.checkpoint import Checkpoint, CollectorNumbers, make_part, write_json, write_tensors
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.seeding import generator_state, set_generator_state

if TYPE_CHECKING:
    from offpolicy.collect.collector import Collector


def take_snapshot(collector: Collector) -> OSError | None:
    """Saves the collector into its `snapshot_dir`, or leaves nothing, warns and returns what the disk refused."""
    places = collector.arrays()  # first: it may begin episodes
    state = save_state(collector.env)
    try:
        try:
            why_not = _write(collector, places, state)
        except (TypeError, ValueError, RecursionError) as error:  # more than a file format holds
            why_not = _write(collector, places, str(error))
    except SaveError as error:
        shutil.rmtree(collector.snapshot_dir, ignore_errors=True)
        collector.warn(str(error))
        return error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error))
    if why_not is not None and not collector.has_warned and collector.cfg.env.vectorization != "async":
        collector.has_warned = True  # of `async` the documentation says so
        collector.warn(f"a resume from this checkpoint is not bitwise, because {why_not}; episodes will begin again")
    return None


def _write(collector: Collector, places: Mapping[str, NDArray[Any]], state: EnvState | str) -> str | None:
    """Writes `collector-<i>.json` and `.safetensors`; returns why a resume will not be exact. Raises `SaveError`."""
    policy, directory, name = collector.policy, collector.snapshot_dir, f"collector-{collector.index}"
    why_not, env = (state, None) if isinstance(state, str) else (None, state)
    rows, sums = collector.writer.open_windows()
    arrays = {
        **places,
        "noise": policy.policy_rng.get_state().numpy(),
        "open_rows": rows,
        "open_sums": sums,
    }
    if policy.repeated_noise is not None:
        arrays |= policy.repeated_noise.arrays()
    arrays |= {f"env/{name}": array for name, array in (env.arrays if env else {}).items()}
    numbers = CollectorNumbers(
        env_steps=collector.env_steps,
        vector_steps=collector.vector_steps,
        policy_steps=collector.policy_steps,
        policy_lag_sum=collector.policy_lag_sum,
        uniform=generator_state(policy.warmup_rng),
        env=env.meta if env else None,
        why_not_exact=why_not,
    )
    make_part(directory)
    write_tensors(directory, name, arrays)
    write_json(directory, name, vars(numbers))
    return why_not


def restore_snapshot(collector: Collector, checkpoint: Checkpoint) -> str | None:
    """Restores a collector. Returns why the continuation is not exact, or None if it is.

    Where the environments cannot be restored, new episodes must begin. Raises `CheckpointError` for an unreadable file.
    """
    policy, name = collector.policy, f"collector-{collector.index}"
    if not checkpoint.has(name):
        return f"{name} was not there when the checkpoint was saved"
    numbers, arrays = checkpoint.read(CollectorNumbers, name), checkpoint.tensors(name)
    collector.env_steps, collector.vector_steps = numbers.env_steps, numbers.vector_steps
    collector.policy_steps, collector.policy_lag_sum = numbers.policy_steps, numbers.policy_lag_sum
    set_generator_state(policy.warmup_rng, numbers.uniform)
    if arrays["noise"].shape != tuple(policy.policy_rng.get_state().shape):
        return "the exploration was drawn on another kind of device"
    policy.policy_rng.set_state(torch.from_numpy(arrays["noise"]))
    if numbers.env is None:
        return str(numbers.why_not_exact)
    env_arrays = {key[4:]: array for key, array in arrays.items() if key.startswith("env/")}
    try:
        restore_state(collector.env, EnvState(numbers.env, env_arrays))
    except CheckpointError as error:
        return str(error)
    if policy.repeated_noise is not None:
        policy.repeated_noise.restore(arrays)
    collector.restore(arrays)
    collector.writer.reopen_windows(arrays["open_rows"], arrays["open_sums"])
    return None
