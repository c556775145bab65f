"""Which batch source a learner rank gets: what was asked for, or what its device and memory suggest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from offpolicy.data.resident import ResidentSampler, ResidentSource, resident_nbytes
from offpolicy.data.sampler import UniformSampler
from offpolicy.data.sources import ReplayFeed, ReplaySource, SourceSpec
from offpolicy.prefetch import Packer, PrefetchSource, PrefetchSpec
from offpolicy.seeding import generator, torch_seed

from . import wiring

if TYPE_CHECKING:
    from .learner import Session

AUTO = "auto"  # resident on a GPU where it fits, else prefetch; direct on the CPU, where the rings already are


def make_feed(session: Session, default: str) -> ReplayFeed:
    """The batch source of `replay.source`; where that is auto, the runner's `default`. `ConfigError` without room."""
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
    wiring.check_share(seat.cfg, session.job.spec, str(seat.device), _free(session))


def _free(session: Session) -> int:
    device = session.seat.device
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else wiring.available_memory()


def _resident_nbytes(session: Session) -> int:
    ring = session.rings[0]
    return resident_nbytes(len(session.rings), ring.capacity, ring.width)


def _spec(session: Session) -> SourceSpec:
    cfg, seat = session.seat.cfg, session.seat
    local_ranks = cfg.runner.world_size
    shown = tuple(range(seat.context.index, len(session.rings), local_ranks)) if cfg.algo.normalize_obs else ()
    return SourceSpec(
        layout=wiring.row_layout(session.job.spec),
        pace=wiring.make_pace(cfg, session.anchor, session.job.place.num_hosts),
        batch_size=cfg.algo.batch_size // seat.num_ranks,
        device=seat.device,
        normalize_obs=cfg.algo.normalize_obs,
        fresh_rings=shown,  # every observation is shown by exactly one rank
    )


def _sampler(session: Session) -> UniformSampler:
    cfg, rank = session.seat.cfg, session.seat.rank
    rng = generator(cfg.seed, "replay", rank, *session.seat.start_path)
    return UniformSampler(session.rings, rng, guard=8 * cfg.env.num_envs)


def _direct(session: Session) -> ReplayFeed:
    return ReplaySource(
        _spec(session),
        session.rings,
        _sampler(session),
        session.gate,
        session.world,
        session.learner.num_updates,
    )


def _prefetch(session: Session) -> ReplayFeed:
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
    bell = f"packer_bell-{seat.context.index}"
    gate = wiring.learner_gate(session.context, session.job, seat.control, bell, is_main=False)
    packer = Packer(_sampler(session), gate, seat.device, is_timed=seat.cfg.timing.enabled)
    return PrefetchSource(spec, session.rings, packer, session.gate, session.world, session.learner.num_updates)


def _resident(session: Session) -> ReplayFeed:
    seat = session.seat
    seed = torch_seed(seat.cfg.seed, "replay", seat.rank, *seat.start_path)
    sampler = ResidentSampler(session.rings, seat.device, seed, seat.fence)
    return ResidentSource(
        _spec(session), session.rings, sampler, session.gate, session.world, session.learner.num_updates
    )


_MAKERS: Mapping[str, Callable[[Session], ReplayFeed]] = {
    "direct": _direct,
    "prefetch": _prefetch,
    "resident": _resident,
}
