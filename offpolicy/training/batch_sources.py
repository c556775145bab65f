"""The batch sources of a learner rank, built from its configuration; a runner names the one it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from offpolicy.distributed.world import World
from offpolicy.errors import ConfigError
from offpolicy.machine import memory
from offpolicy.output import counted
from offpolicy.processes.control_page import RankWord
from offpolicy.replay.demonstrations import Demonstrations, demonstration_rows, read_demos
from offpolicy.replay.device_ring import DeviceRing, DeviceSampler, DeviceSource
from offpolicy.replay.prefetch_source import PackerTimers, PrefetchSource, rows_recycled_while_open
from offpolicy.replay.rate_limiter import make_rate_limiter
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.resident_source import (
    ResidentSampler,
    ResidentSource,
    resident_nbytes,
)
from offpolicy.replay.rollout_source import RolloutSource, RolloutSpec
from offpolicy.replay.sampler import Sampler
from offpolicy.timing.ledger import make_ledger, trace_names
from offpolicy.timing.phases import PackerPhase
from offpolicy.training.rank import Rank, open_track_of
from offpolicy.training.resume import TrainingStart
from offpolicy.training.run_memory import check_share, replay_rings, rollout_layout, rollout_ring, row_layout

GUARD_ROWS = 8  # rows per environment that the sampler keeps away from the write head


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay rings of this host as one rank samples them, with the demonstrations that are mixed in."""

    rank: Rank
    world: World
    rings: Sequence[ReplayRing]
    demos: Demonstrations | None
    source_spec: SourceSpec
    updates: int  # done before this process

    @classmethod
    def open(cls, rank: Rank, world: World, start: TrainingStart) -> Replay:
        """Attaches to the rings and reads `replay.demos`. Raises `ConfigError`."""
        cfg, layout, rings = rank.cfg, row_layout(rank.spec), replay_rings(rank.child, rank.job)
        if rank.job.collects_tensors:
            sizes = {"num_envs": cfg.env.num_envs, "n_step": cfg.algo.n_step}
            rings = [DeviceRing(rank.child.block("replay-0"), layout, cfg.replay_rows, **sizes, device=rank.device)]
        source_spec = SourceSpec(
            layout=layout,
            rate_limiter=make_rate_limiter(cfg, start.learning_start, rank.job.host.num_hosts),
            batch_size=cfg.algo.batch_size // rank.num_ranks,
            device=rank.device,
            normalize_obs=cfg.algo.normalize_obs,
            # The normalisers take every row from exactly one rank.
            fresh_rings=tuple(rank.own_collectors()) if cfg.algo.normalize_obs or cfg.algo.scales_reward else (),
            return_discount=cfg.algo.gamma if cfg.algo.scales_reward else None,
            num_slots=cfg.replay.slots,
        )
        return cls(rank, world, rings, demonstrations(rank), source_spec, start.updates)

    def sampler(self, more_guard: int = 0) -> Sampler:
        """Returns a sampler on the host, which keeps `more_guard` rows more away from the write head."""
        cfg, rng = self.rank.cfg, self.rank.replay_generator()
        guard = GUARD_ROWS * cfg.env.num_envs + more_guard
        return Sampler(self.rings, rng, guard, capacity=cfg.ring_capacity, demos=self.demos)


def demonstrations(rank: Rank) -> Demonstrations | None:
    """Returns the demonstrations of `replay.demos` as this rank uses them. Raises `ConfigError`."""
    cfg, spec, source = rank.cfg, rank.spec, rank.cfg.replay.demos
    if source is None:
        return None
    found = read_demos(source, spec)
    rows = demonstration_rows(found, row_layout(spec), gamma=cfg.algo.gamma, n_step=cfg.algo.n_step)
    batch_size, returns = cfg.algo.batch_size // rank.num_ranks, found.ep_return
    size = f"{counted(len(rows), 'transition')}, {counted(len(returns), 'episode')}"
    return Demonstrations(
        rows,
        per_batch=round(cfg.replay.demo_share * batch_size),
        batch_size=batch_size,
        source=f"{source} ({size}, mean return {returns.mean():z,.1f})",
        seed=cfg.seed,
        rank=rank.rank,
        num_ranks=rank.num_ranks,
        path=rank.start_path,
    )


def configured_source(replay: Replay) -> ReplaySource | PrefetchSource | ResidentSource:
    """Returns the batch source of `replay.source`, the one that fits the device where that is auto.

    On a CPU, where the rings lie, rows are sampled directly. A GPU gets a resident copy of the replay if that fits into
    its memory, else prefetched batches. Raises `ConfigError` without room for a resident copy that was asked for.
    """
    rank, kind = replay.rank, replay.rank.cfg.replay.source
    if rank.job.collects_tensors:
        return device_source(replay)
    if kind == "auto":
        ring = replay.rings[0]
        needed = resident_nbytes(len(replay.rings), ring.copied_rows, ring.width)
        fits = needed <= rank.cfg.replay.device_share * _free_memory(rank)
        kind = "direct" if rank.device.type == "cpu" else "resident" if fits else "prefetch"
    if kind == "direct":
        return ReplaySource(replay.source_spec, replay.sampler(), rank.gate, replay.world, replay.updates)
    return prefetch_source(replay) if kind == "prefetch" else resident_source(replay)


def prefetch_source(replay: Replay) -> PrefetchSource:
    """Returns a source whose packing thread fills and copies the next batches while the learner trains."""
    rank, spec, index = replay.rank, replay.source_spec, replay.rank.child.index
    if rank.job.collects_tensors:
        raise ConfigError(
            f"runner: got double_buffer, allowed single_gpu: the replay lies on {rank.device}, where nothing is packed"
        )
    track = open_track_of(rank.child, rank.job, "packer", trace_names(PackerPhase), f"packer {index}")
    ledger = make_ledger(PackerPhase, is_enabled=rank.cfg.timing.enabled, trace=track, has_histogram=False)
    timers = PackerTimers(ledger, rank.device_timer.background_copies(), rank.new_device_sync())
    num_rings = len(replay.rings) * rank.job.host.num_hosts
    # An episode's end recycles as many vector steps as an n-step row spans.
    more_guard = rank.cfg.algo.n_step * rank.cfg.env.num_envs
    more_guard += rows_recycled_while_open(spec.rate_limiter, num_rings, spec.num_slots)
    return PrefetchSource(spec, replay.sampler(more_guard), rank.gate, replay.world, replay.updates, timers)


def resident_source(replay: Replay) -> ResidentSource:
    """Returns a source that samples from a copy of the rings on the device. Raises `ConfigError` without room."""
    rank, spec = replay.rank, replay.source_spec
    if rank.cfg.replay.source == "resident":  # asked for: it is refused now that the device is known, never replaced
        check_share(rank.cfg, rank.spec, str(rank.device), _free_memory(rank))
    sampler = ResidentSampler(replay.rings, rank.device, rank.replay_seed, rank.device_timer, replay.demos)
    return ResidentSource(spec, sampler, rank.gate, replay.world, replay.updates)


def device_source(replay: Replay) -> DeviceSource:
    """Returns the source of a ring on the device. Raises `ConfigError` for what is read on the host."""
    rank, spec, (ring,) = replay.rank, replay.source_spec, replay.rings
    if rank.cfg.replay.source not in ("auto", "resident"):
        raise ConfigError(
            f"replay.source: got {rank.cfg.replay.source}, allowed auto or resident: the replay lies on {rank.device}"
        )
    sampler = DeviceSampler([ring], rank.device, rank.replay_seed, rank.device_timer, replay.demos)
    return DeviceSource(spec, sampler, rank.gate, replay.world, replay.updates)


def rollout_source(rank: Rank, world: World) -> RolloutSource:
    """Returns a source of whole rollouts from the rank's own collectors."""
    cfg, leader = rank.cfg, rank.control.leader
    spec = RolloutSpec(
        layout=rollout_layout(cfg, rank.spec),
        mode=cfg.collect_mode,
        max_lag=cfg.rollout.max_lag,
        total=cfg.total_timesteps,
        device=rank.device,
    )
    rings = [rollout_ring(rank.child, rank.job, index) for index in rank.own_collectors()]
    # Where the checkpoint does not say what each rank has learnt from, rank 0 answers for all.
    learnt = rank.job.start_step if rank.rank == 0 else 0
    return RolloutSource(spec, rings, rank.gate, lambda: leader[RankWord.VERSION], world.total, learnt)


def source_identity(rank: Rank, source: object, replay: Replay | None) -> list[Any]:  # Any: JSON values
    """Returns what must be equal for the random state of one batch source to fit another."""
    options = [rank.cfg.replay.slots] if isinstance(source, PrefetchSource) else []
    demos = replay.demos.identity if replay is not None and replay.demos is not None else []
    return [type(source).__name__, rank.device.type, *options, *demos]


def _free_memory(rank: Rank) -> int:
    """Returns the free bytes of the rank's device."""
    return torch.cuda.mem_get_info(rank.device)[0] if rank.device.type == "cuda" else memory()[0]
