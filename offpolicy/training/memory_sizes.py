"""The shared memory a run needs on one host, in bytes, and whether it fits. Torch-free."""

from __future__ import annotations

import os

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.replay.ring import Ring, RowLayout
from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing
from offpolicy.types import SpaceSpec

SAVE_BYTES_PER_S = 50e6


def row_layout(spec: SpaceSpec) -> RowLayout:
    """The replay row of an environment."""
    return RowLayout(spec.obs_dim, spec.action_dim)


def replay_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of the replay of this host, one ring per collector, announced before they are allocated."""
    return cfg.collect.num_collectors * Ring.nbytes(cfg.replay_rows, row_layout(spec).width, 4)


def rollout_layout(cfg: RunConfig, spec: SpaceSpec) -> RolloutLayout:
    """The rollouts of one collector."""
    return RolloutLayout(spec.obs_dim, spec.action_dim, cfg.rollout.length, cfg.env.num_envs)


def rollout_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of the rollout rings of this host, one per collector."""
    return cfg.collect.num_collectors * RolloutRing.nbytes(rollout_layout(cfg, spec), cfg.rollout.slots)


def transport_nbytes(cfg: RunConfig, spec: SpaceSpec) -> int:
    """Bytes of what lies between collectors and learners: the rings of rollouts, or the replay."""
    return rollout_nbytes(cfg, spec) if cfg.algo.learns_from_rollouts else replay_nbytes(cfg, spec)


def save_s(cfg: RunConfig, spec: SpaceSpec) -> float:
    """Seconds that saving what lies between collectors and learners of this host may take on a slow disk."""
    return transport_nbytes(cfg, spec) / SAVE_BYTES_PER_S


def peer_timeout_s(cfg: RunConfig, spec: SpaceSpec) -> float:
    """How long a rank may be waited for: `runner.timeout_s`, and two saves, since hosts save one after another."""
    return cfg.runner.timeout_s + 2 * save_s(cfg, spec)


def transport_name(cfg: RunConfig) -> str:
    """What the blocks between collectors and learners are called."""
    return "rollouts" if cfg.algo.learns_from_rollouts else "replay"


def size_key(cfg: RunConfig) -> str:
    """The key that their size depends on most."""
    return "rollout.length" if cfg.algo.learns_from_rollouts else "replay.capacity"


def check_memory(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuse a replay, or rollouts, that do not fit into the memory at hand, before anything is allocated."""
    needed, available, key = transport_nbytes(cfg, spec), available_memory(), size_key(cfg)
    if needed > 0.9 * available:
        raise ConfigError(
            f"{key}: got {needed / 2**30:.2f} GiB of {transport_name(cfg)}, allowed 90 % of the"
            f" {available / 2**30:.2f} GiB available; lower {key}"
        )


def check_share(cfg: RunConfig, spec: SpaceSpec, where: str, available: int, copies: int = 1) -> None:
    """Refuse `copies` device copies of the replay that take more than `replay.device_share`. Raises `ConfigError`."""
    needed, share = copies * replay_nbytes(cfg, spec), cfg.replay.device_share
    if needed > share * available:
        raise ConfigError(
            f"replay.source: resident needs {needed / 2**30:.2f} GiB on {where}, allowed replay.device_share={share:g}"
            f" of the {available / 2**30:.2f} GiB free there; lower replay.capacity, raise replay.device_share, or use"
            " replay.source=prefetch"
        )


def available_memory() -> int:
    """Bytes the kernel, or this process's cgroup, can still give."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        fields = dict(line.split(":", 1) for line in meminfo)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit_path, usage_path in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        if os.path.exists(limit_path):
            with open(limit_path, encoding="ascii") as limit, open(usage_path, encoding="ascii") as usage:
                text = limit.read().strip()
                if text != "max":
                    available = min(available, max(int(text) - int(usage.read()), 0))
    return available
