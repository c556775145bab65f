"""What can be refused before a training process exists."""

from __future__ import annotations

import json
import subprocess
import sys

from offpolicy.checkpoint import Checkpoint
from offpolicy.checkpoint.fingerprint import fingerprint
from offpolicy.collect.episode_hook import check_hook
from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.schema import RunConfig
from offpolicy.envs.probe import check_id, probe
from offpolicy.errors import ConfigError
from offpolicy.launch.teacher import check_groups
from offpolicy.logger.sinks.wandb import require_login
from offpolicy.replay.demonstrations import read_demos
from offpolicy.training.memory_sizes import available_memory, check_memory, check_share
from offpolicy.types import SpaceSpec


def preflight(cfg: RunConfig) -> SpaceSpec:
    """Look at devices, environment, memory. Raises `ConfigError`, or `EnvFailure` if the environment itself fails."""
    check_id(cfg.env.id)
    free = cuda_memory() if asks_for_gpus(cfg) else []
    check_gpus(cfg, len(free))
    if cfg.log.wandb == "online":
        require_login()
    spec = probe(cfg.env)
    check_actions(cfg, spec)
    check_groups(cfg, spec)
    check_memory(cfg, spec)
    check_demos(cfg, spec)
    if cfg.eval.hook is not None and cfg.eval.episodes:
        check_hook(cfg.eval.hook)
    if cfg.replay.source == "resident":
        check_resident(cfg, spec, free)
    return spec


def check_actions(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuse an action space that the algorithm cannot act in. Raises `ConfigError`."""
    if spec.num_actions and not cfg.algo.learns_from_rollouts:
        raise ConfigError(
            f"env.id: got {cfg.env.id}, whose actions are Discrete({spec.num_actions}); {cfg.algo.name} needs a Box"
            " action space: algo=appo takes Discrete actions"
        )


def check_demos(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuse demonstrations that are none of this environment's. Raises `ConfigError`."""
    if cfg.replay.demos is not None:
        found = read_demos(cfg.replay.demos, spec)
        if cfg.algo.n_step > 1:
            found.require_sequences("algo.n_step")


def asks_for_gpus(cfg: RunConfig) -> bool:
    """Whether a GPU is named, or one per rank is needed if there is any."""
    wants_to_know = cfg.runner.world_size > 1 or cfg.replay.source == "resident"
    return cfg.device.startswith("cuda") or (cfg.device == "auto" and wants_to_know)


_ASK_CUDA = (
    "import torch; print([torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())])"  # bytes free
)


def cuda_memory() -> list[int]:
    """Free bytes of every CUDA device. Another process asks torch: the supervisor stays free of it."""
    answer = subprocess.run([sys.executable, "-P", "-c", _ASK_CUDA], capture_output=True, text=True, check=False)
    free: list[int] = json.loads(answer.stdout or "[]")
    return free


def check_gpus(cfg: RunConfig, count: int) -> None:
    """Refuse a device that is not there, and more ranks than GPUs. Raises `ConfigError`."""
    index = cfg.device.partition(":")[2]
    if cfg.device.startswith("cuda") and int(index or 0) >= count:
        raise ConfigError(
            f"device: got {cfg.device}, allowed auto, cpu or one of the {count} CUDA devices of this machine"
        )
    if count and cfg.device != "cpu" and not index and cfg.runner.world_size > count:
        raise ConfigError(
            f"runner.world_size: got {cfg.runner.world_size}, allowed 1 to {count}, the CUDA devices of this machine;"
            " device=cuda:0 runner.backend=gloo lets ranks share a GPU, device=cpu needs none"
        )


def check_resident(cfg: RunConfig, spec: SpaceSpec, free: list[int]) -> None:
    """Refuse a device copy of the replay that does not fit. Raises `ConfigError`."""
    index, is_shared = int(cfg.device.partition(":")[2] or 0), ":" in cfg.device or not free
    where, available = (f"cuda:{index}", free[index]) if free else ("the CPU", available_memory())
    check_share(cfg, spec, where, available, copies=cfg.runner.world_size if is_shared else 1)


# What may change when a run goes on; anything else would make it another experiment.
RESUMABLE = (
    *("total_timesteps", "device", "log", "eval", "checkpoint", "timing", "threads", "env.step_timeout_s", "runner"),
    "env.measure",
    *(f"replay.{name}" for name in ("source", "demos", "demo_share", "device_share", "slots", "prefetch", "newest")),
)


def check_same(cfg: RunConfig, saved: RunConfig) -> None:
    """Refuse to go on with a run under another configuration, naming every difference. Raises `ConfigError`."""
    before, now = flatten(saved.to_mapping()), flatten(cfg.to_mapping())
    free = (*RESUMABLE, "run_dir", "resume", "teacher")  # a checkpoint holds all there is of a teacher
    differences = [
        f"{key}: the run has {before.get(key)!r}, this command {now.get(key)!r}; cannot change when a run goes on"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not is_within(key, free)
    ]
    if differences:
        raise ConfigError(differences)


def check_fits(cfg: RunConfig, spec: SpaceSpec, checkpoint: Checkpoint) -> None:
    """Refuse to continue a checkpoint of another shape, naming every difference. Raises `ConfigError`."""
    saved = checkpoint.json("state")["fingerprint"]
    now = fingerprint(cfg, spec)
    differences = [
        f"{key}: the checkpoint {checkpoint.path} has {saved.get(key)}, this configuration {value}"
        for key, value in now.items()
        if saved.get(key) != value
    ]
    if differences:
        raise ConfigError(differences)
