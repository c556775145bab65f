"""Topology `appo`: one or more learner ranks learn from whole rollouts, each from its own collectors; HORA too.

    environments -> collector -> rollout ring -> batch source -> learner -> weights -> collector
                    (process)    (shared memory)   (each rollout once)      (mailbox)

Collectors: `collect.num_collectors` processes; of R ranks on a host, each learns from every R-th. A collector acts with
the newest weights while the learner trains: `collect.mode=free`, until the `rollout.slots` of its ring are full.
Batch source: as many finished rollouts as the rank has collectors, from whichever rings have them first. One that is
older than `rollout.max_lag` versions is dropped and another one awaited. Each is used once; there is no replay.
World and exchange: as in `multi_gpu`; alone, one rank without any collective.
"""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.batch_sources import rollout_source
from offpolicy.training.learner_process import build_learner, train_rank
from offpolicy.training.rank import Rank, join
from offpolicy.training.resume import load_start


def learner_main(child: ChildContext) -> None:
    """Trains one rank in this process until the run is done or stops."""
    rank = Rank.open(child)  # device, clock, shared memory
    with join(rank) as world:
        learner = build_learner(rank, world)  # APPO, or a stage of HORA
        start = load_start(rank, world, learner)  # fresh, from a checkpoint, or from a teacher
        source = rollout_source(rank, world)  # a rollout ring per collector of this rank
        train_rank(rank, world, learner, source, start)  # adds the duties and calls `loop.train`
