"""Which batch source a learner rank gets: what was asked for, or what its device and memory suggest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from offpolicy.collect.demonstrations import demonstration_rows
from offpolicy.processes.control_page import RankWord
from offpolicy.replay.demonstrations import read_demos
from offpolicy.replay.endless import EndlessRows
from offpolicy.replay.mixture import MixedSampler, ResidentDemos, Share
from offpolicy.replay.prefetch_source import Packer, PrefetchSource, PrefetchSpec
from offpolicy.replay.rate_limiter import make_rate_limiter
from offpolicy.replay.replay_source import Feed, ReplaySource, SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource, resident_nbytes
from offpolicy.replay.rollout_source import RolloutSource, RolloutSpec
from offpolicy.replay.sampler import Sampler, UniformSampler
from offpolicy.seeding import generator, torch_seed
from offpolicy.timing.ledger import make_ledger, trace_names
from offpolicy.timing.phases import PackerPhase
from offpolicy.timing.trace_writer import open_lane
from offpolicy.training.memory_sizes import available_memory, check_share, rollout_layout, row_layout
from offpolicy.training.run_memory import learner_gate, rollout_ring
from offpolicy.types import Batches

if TYPE_CHECKING:
    from offpolicy.training.learner import Session

AUTO = "auto"  # resident on a GPU where it fits, else prefetch; direct on the CPU, where the rings already are


def make_feed(session: Session, default: str) -> Feed[Any]:
    """The rollouts, or the batch source of `replay.source`; where that is auto, the runner's `default`.

    Raises `ConfigError` without room.
    """
    if session.seat.cfg.algo.learns_from_rollouts:
        return _rollouts(session)
    kind = session.seat.cfg.replay.source
    if kind == AUTO:
        kind = default
    if kind == AUTO:
        kind = _fitting(session)
    if kind == "resident":
        _require_resident(session)
    return _MAKERS[kind](session)


def _fitting(session: Session) -> str:
    if session.seat.device.type == "cpu":
        return "direct"
    cfg = session.seat.cfg
    return "resident" if _resident_nbytes(session) <= cfg.replay.device_share * _free(session) else "prefetch"


def _require_resident(session: Session) -> None:
    """The last check, now that the device is known: asked for, it is never silently something else."""
    seat = session.seat
    check_share(seat.cfg, session.job.spec, str(seat.device), _free(session))


def _free(session: Session) -> int:
    device = session.seat.device
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def _resident_nbytes(session: Session) -> int:
    ring = session.rings[0]
    return resident_nbytes(len(session.rings), ring.capacity, ring.width)


def _spec(session: Session) -> SourceSpec:
    cfg, seat = session.seat.cfg, session.seat
    local_ranks = cfg.runner.world_size
    shown = tuple(range(seat.context.index, len(session.rings), local_ranks)) if cfg.algo.normalize_obs else ()
    return SourceSpec(
        layout=row_layout(session.job.spec),
        pace=make_rate_limiter(cfg, session.anchor, session.job.place.num_hosts),
        batch_size=cfg.algo.batch_size // seat.num_ranks,
        device=seat.device,
        normalize_obs=cfg.algo.normalize_obs,
        fresh_rings=shown,  # every observation is shown by exactly one rank
    )


def _sampler(session: Session) -> Sampler:
    cfg, rank = session.seat.cfg, session.seat.rank
    rng = generator(cfg.seed, "replay", rank, *session.seat.start_path)
    replay, share = UniformSampler(session.rings, rng, guard=8 * cfg.env.num_envs), session.demos
    return replay if share is None else MixedSampler(replay, share)


def demo_share(session: Session) -> Share | None:
    """The demonstrations of `replay.demos` as this rank uses them. Raises `ConfigError`."""
    cfg, seat, spec = session.seat.cfg, session.seat, session.job.spec
    source = cfg.replay.demos
    if source is None:
        return None
    found = read_demos(source, spec)
    rows = demonstration_rows(found, row_layout(spec), gamma=cfg.algo.gamma, n_step=cfg.algo.n_step)
    batch_size, returns = cfg.algo.batch_size // seat.num_ranks, found.ep_return
    return Share(
        EndlessRows(rows, cfg.seed, seat.rank, seat.num_ranks, seat.start_path),
        per_batch=round(cfg.replay.demo_share * batch_size),
        batch_size=batch_size,
        told=f"{source} ({len(rows):,} transitions, {len(returns):,} episodes, mean return {returns.mean():,.1f})",
    )


def _direct(session: Session) -> Feed[Batches]:
    return ReplaySource(
        _spec(session),
        session.rings,
        _sampler(session),
        session.gate,
        session.world,
        session.learner.num_updates,
    )


def _prefetch(session: Session) -> Feed[Batches]:
    seat = session.seat
    replay = seat.cfg.replay
    common = _spec(session)
    spec = PrefetchSpec(
        layout=common.layout,
        pace=common.pace,
        batch_size=common.batch_size,
        device=common.device,
        normalize_obs=common.normalize_obs,
        fresh_rings=common.fresh_rings,
        num_slots=replay.slots,
        prefetch=replay.prefetch,
        newest=replay.newest,
    )
    wake_event = f"packer_wake-{seat.context.index}"
    gate = learner_gate(session.context, session.job, seat.control, wake_event, is_main=False)
    index = seat.context.index
    names, process = trace_names(PackerPhase), f"learner {index}"
    lane = open_lane(session.job.trace_dir, f"packer-{index}", names, process, f"packer {index}")
    ledger = make_ledger(PackerPhase, is_enabled=seat.cfg.timing.enabled, trace=lane, has_spread=False)
    packer = Packer(_sampler(session), gate, seat.device, ledger, copies=seat.lane.copies_beside())
    return PrefetchSource(spec, session.rings, packer, session.gate, session.world, session.learner.num_updates)


def _resident(session: Session) -> Feed[Batches]:
    seat = session.seat
    seed = torch_seed(seat.cfg.seed, "replay", seat.rank, *seat.start_path)
    spec, share = _spec(session), session.demos
    demos = None if share is None else ResidentDemos(share, spec.pace.max_updates, seat.device, seat.fence)
    timer = seat.lane.held_copies()
    sampler = ResidentSampler(session.rings, seat.device, seed, seat.fence, timer, demos)
    return ResidentSource(spec, session.rings, sampler, session.gate, session.world, session.learner.num_updates)


def _rollouts(session: Session) -> RolloutSource:
    """Those of the rank's own collectors: of C on this host, every R-th."""
    seat = session.seat
    cfg, own = seat.cfg, range(seat.context.index, seat.cfg.collect.num_collectors, seat.cfg.runner.world_size)
    spec = RolloutSpec(
        layout=rollout_layout(cfg, session.job.spec),
        mode=cfg.collect_mode,
        max_lag=cfg.rollout.max_lag,
        total=cfg.total_timesteps,
        device=seat.device,
    )
    rings = [rollout_ring(session.context, session.job, index) for index in own]
    leader = seat.control.leader
    # Where the checkpoint does not say what each rank has learnt from, rank 0 answers for all.
    learnt = session.job.start_step if seat.rank == 0 else 0
    return RolloutSource(spec, rings, session.gate, lambda: leader.get(RankWord.VERSION), session.total, learnt)


_MAKERS: Mapping[str, Callable[[Session], Feed[Batches]]] = {
    "direct": _direct,
    "prefetch": _prefetch,
    "resident": _resident,
}
