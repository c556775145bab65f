"""Topology `single_gpu`: one learner on one device, which samples its batches itself.

    environments -> collector -> replay ring -> batch source -> learner -> weights -> collector
                    (process)    (shared memory)   (learner's process)     (mailbox)

Collectors: `collect.num_collectors` processes (`collector.py`), each with a ring. They and the learner take turns:
`collect.mode=alternate` is this topology's default, the textbook loop.
Batch source: `replay.source`. On a CPU the learner's thread samples the rings directly; a GPU samples from a resident
copy of them, or takes prefetched batches where that copy does not fit.
World: one rank; collectives return their input. Exchange of gradients: none.
"""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.batch_sources import Replay, configured_source
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
    source = configured_source(replay)
    train_rank(rank, world, learner, source, start, replay)  # adds the duties and calls `loop.train`
