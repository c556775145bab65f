"""How environments are stepped together where `env.vectorization=auto`, and why not in one batch of MuJoCo.

Nothing is constructed, and MuJoCo is not imported.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.make import find_spec

MIN_BATCHED = 4  # environments from which `auto` takes the batch; with fewer, one after another is about as fast
TOGETHER = ("mujoco", "vector")  # one call steps all environments of a collector, maybe on several threads
THREADED = 0.9  # fraction of a batch's time that threads divide: 0.68 of 4 HalfCheetahs, 0.80 of 16, 0.92 of 64
NEEDS_BATCH = "mujoco.batch is not installed; pip install 'mujoco>=3.17'"

TASKS = (  # of gymnasium.envs.mujoco, that are classes of `offpolicy.envs.batched.tasks` too, there without "Env"
    *("half_cheetah_v5:HalfCheetahEnv", "hopper_v5:HopperEnv", "walker2d_v5:Walker2dEnv", "swimmer_v5:SwimmerEnv"),
    *("ant_v5:AntEnv", "humanoid_v5:HumanoidEnv", "reacher_v5:ReacherEnv", "pusher_v5:PusherEnv"),
    *("inverted_pendulum_v5:InvertedPendulumEnv", "inverted_double_pendulum_v5:InvertedDoublePendulumEnv"),
)


def task_of(spec: EnvSpec) -> str | None:
    """Returns the class of a registered task, `module:Class`; None if it is none of ours."""
    package, _, task = str(spec.entry_point).rpartition(".")
    if package != "gymnasium.envs.mujoco" or task not in TASKS:
        return None
    return f"offpolicy.envs.batched.tasks:{task.rpartition(':')[2].removesuffix('Env')}"


def why_not_batched(spec: EnvSpec, kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Returns why a registered environment cannot be stepped in one batch of MuJoCo; None if it can.

    `kwargs` are those of its constructor.
    """
    if task_of(spec) is None:
        return f"{spec.id} has no vector environment, and is none of Gymnasium's MuJoCo v5 tasks"
    if spec.additional_wrappers:
        wrappers = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        return f"{spec.id} is registered with wrappers ({wrappers}), which a batch does not have"
    if spec.vector_entry_point is not None:
        return f"{spec.id} has its own vector environment, which env.vectorization=vector starts"
    if (kwargs or {}).get("render_mode") == "human":
        return "a batch opens no windows (env.kwargs.render_mode=human)"
    found = importlib.util.find_spec("mujoco")  # nothing is imported
    folders = (found and found.submodule_search_locations) or ()
    if not any((Path(folder) / "batch.py").is_file() for folder in folders):
        return NEEDS_BATCH
    return None


def is_batch(cfg: EnvConfig) -> bool:
    """True if one call steps all environments of a collector; `auto` is resolved."""
    return cfg.batch is not None or cfg.vectorization in TOGETHER


def is_own(cfg: EnvConfig) -> bool:
    """True for an id of Gymnasium, or of this package; imports nothing. Raises as `find_spec`."""
    if cfg.batch is not None:
        return False
    owner = cfg.id.rpartition(":")[0] or str(find_spec(cfg.id).entry_point)
    return owner.partition(".")[0] in ("gymnasium", "offpolicy")


def has_single(cfg: EnvConfig) -> bool:
    """True if it is an id whose environments can be stepped one by one. Raises as `find_spec`."""
    return cfg.batch is None and find_spec(cfg.id).entry_point is not None


def resolve_vectorization(cfg: EnvConfig, *, may_import: bool = True) -> EnvConfig:
    """Returns the environment with the vectorization that `auto` stands for: mujoco, vector or sync.

    Whether an id of a module has a vector is known once that module is imported; it stays `auto` where it may not be.
    Raises as `find_spec`.
    """
    if cfg.vectorization != "auto" or cfg.batch is not None:
        return cfg
    if ":" in cfg.id:
        if not may_import:
            return cfg
        spec = find_spec(cfg.id)
        has_vector = spec.vector_entry_point is not None and not cfg.wrappers
        is_chosen = has_vector and (cfg.num_envs > 1 or not has_single(cfg))
        return dataclasses.replace(cfg, vectorization="vector" if is_chosen else "sync")
    is_chosen = cfg.num_envs >= MIN_BATCHED and is_batched_task(cfg) and not cfg.wrappers
    is_chosen = is_chosen and why_not_batched(find_spec(cfg.id), cfg.kwargs) is None
    return dataclasses.replace(cfg, vectorization="mujoco" if is_chosen else "sync")


def batch_cost(num_threads: int, num_envs: int) -> float:
    """Returns the time of a batch's step on some threads over that on one."""
    return 1.0 - THREADED + THREADED / min(num_threads, num_envs)


def slower_because(cfg: EnvConfig) -> str | None:
    """Returns why a task is stepped one environment after another though there are enough of them for a batch."""
    if cfg.vectorization != "sync" or cfg.num_envs < MIN_BATCHED or not is_batched_task(cfg):
        return None
    return "env.wrappers wrap one environment" if cfg.wrappers else why_not_batched(find_spec(cfg.id), cfg.kwargs)


def is_batched_task(cfg: EnvConfig) -> bool:
    """True for one of the tasks. What a module registers is known only where that module may be imported."""
    return cfg.batch is None and ":" not in cfg.id and task_of(find_spec(cfg.id)) is not None
