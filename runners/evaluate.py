"""`offpolicy eval <run>`: the deterministic policy of a saved run on fresh environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from offpolicy.checkpoint import CheckpointStore
from offpolicy.collect.evaluation import rollout_returns
from offpolicy.errors import CheckpointError
from offpolicy.nets.policy import Policy, make_policy

from .preflight import read_config, read_spec
from .seat import pick_device


def evaluate(run: Path, *, episodes: int, seed: int | None, step: int | None, device: str) -> int:
    """Evaluate a checkpoint (the newest, or that of `step`), print the returns and append them to `eval.jsonl`."""
    cfg = read_config(run)
    store = CheckpointStore(run / "checkpoints")
    checkpoint = store.newest_valid() if step is None else store.at(step)
    for problem in store.rejected:
        sys.stderr.write(f"offpolicy: {problem}\n")
    if checkpoint is None:
        raise CheckpointError(f"{run / 'checkpoints'} holds no usable checkpoint")
    policy = make_policy(cfg.algo, read_spec(run)).eval()
    _load_policy(policy, checkpoint.tensors("learner"))
    policy.to(pick_device(device, 0))
    seed = cfg.seed if seed is None else seed
    returns, lengths = rollout_returns(policy, cfg.env, episodes=episodes, seed=seed)
    result = {
        "env_steps": checkpoint.env_steps,
        "episodes": episodes,
        "seed": seed,
        "mean_reward": float(returns.mean()),
        "std_reward": float(returns.std()),
        "min_reward": float(returns.min()),
        "max_reward": float(returns.max()),
        "mean_ep_length": float(lengths.mean()),
    }
    with open(run / "eval.jsonl", "a", encoding="utf-8") as sink:
        sink.write(json.dumps(result) + "\n")
    _print(run, result)
    return 0


def _load_policy(policy: Policy, tensors: Mapping[str, NDArray[Any]]) -> None:
    """The policy's part of a saved learner."""
    prefix = "policy."
    state = {name[len(prefix) :]: torch.from_numpy(a.copy()) for name, a in tensors.items() if name.startswith(prefix)}
    policy.load_state_dict(state)


def _print(run: Path, result: Mapping[str, float]) -> None:
    table = Table(title=f"evaluation of {run}", show_header=False)
    for name, value in result.items():
        table.add_row(name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
    Console().print(table)
