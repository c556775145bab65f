"""Topology `double_buffer`: as `single_gpu`, but the next batch is packed and copied while this one trains.

    collector -> replay ring -> packing thread -> slot 0 | slot 1 -> learner -> weights -> collector
                                (copy stream)     (on the device)

Batch source: `PrefetchSource` (`offpolicy/replay/prefetch_source.py`) with `replay.slots` slots, two by default. A slot
holds the batches of an iteration, in page-locked host memory and on the device; on a CPU both are the same memory. The
packing thread draws from the rows that there were when the slot was submitted, packs them, and copies the slot on a
second stream. The learner trains on one slot meanwhile, so a batch is one iteration old, and replay sample and h2d are
next to nothing. With `replay.slots=1` nothing is packed ahead.
`runner=single_gpu replay.source=prefetch collect.mode=overlap` is the same topology by other keys.
Collectors: as in `single_gpu`, but `collect.mode=overlap` is the default: they take the env steps of the next iteration
while this one trains.
World: one rank; collectives return their input. Exchange of gradients: none.
"""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.batch_sources import Replay, prefetch_source
from offpolicy.training.learner_process import build_learner, train_rank
from offpolicy.training.rank import Rank, single_rank
from offpolicy.training.resume import load_start


def learner_main(child: ChildContext) -> None:
    """Trains in this process until the run is done or stops."""
    rank = Rank.open(child)  # device, clock, shared memory
    world = single_rank(rank)
    learner = build_learner(rank, world)  # networks and optimisers of `algo.name`
    start = load_start(rank, world, learner)  # fresh, from a checkpoint, or from a teacher
    replay = Replay.open(rank, world, start)  # one ring per collector
    source = prefetch_source(replay)  # the packing thread and its slots
    train_rank(rank, world, learner, source, start, replay)  # adds the duties and calls `loop.train`
