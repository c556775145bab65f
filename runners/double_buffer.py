"""Topology `double_buffer`: as `single_gpu`, but the next batch is packed and copied while this one trains.

    collector -> replay ring -> packing thread -> slot 0 | slot 1 -> learner -> weights -> collector
                                (copy stream)     (on the device)

Batch source: `PrefetchSource`, with `replay.slots` slots, two by default. While the learner trains on the batch of one
slot, a thread draws the rows of the next batch, packs them into page-locked memory and copies them to the device on a
second stream. The learner waits (replay batch wait) only when the next slot is not ready.
`offpolicy/replay/prefetch_source.py` holds both sides of that exchange.

Collectors: as in `single_gpu`, but one iteration ahead: `collect.mode=overlap` is this topology's default.
World: one rank; no collective does anything. Exchange of gradients: none.
"""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.batch_sources import Replay, prefetch_source
from offpolicy.training.learner_process import build_learner, train_rank
from offpolicy.training.rank_context import RankContext
from offpolicy.training.ranks import single_rank
from offpolicy.training.resume import load_start


def learner_main(child: ChildContext) -> None:
    """Trains in this process until the run is done or stops."""
    rank = RankContext.open(child)  # device, clock, shared memory
    ranks = single_rank(rank)
    learner = build_learner(rank, ranks)  # networks and optimisers of `algo.name`
    start = load_start(rank, ranks, learner)  # fresh, from a checkpoint, or from a teacher
    replay = Replay.open(rank, ranks, start)  # one ring per collector
    source = prefetch_source(replay)  # the packing thread and its slots
    train_rank(rank, ranks, learner, source, start, replay)
