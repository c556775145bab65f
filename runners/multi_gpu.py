"""Topology `multi_gpu`: several learner ranks, on this host and under torchrun on others, train the same networks.

    collectors -> replay rings of this host -> batch source of rank 0 -> learner 0 \
                                            -> batch source of rank 1 -> learner 1  > averaged gradients
                                               ...                       ...       /

Ranks: `runner.world_size` processes per host, each with a GPU, or with `device=cpu` without. The `batch_size` is
divided among them; each rank samples other rows of the same rings.
World: a group of the ranks of all hosts. They agree once per iteration, and save, stop and fail together.
Exchange: gradients are averaged before each optimiser step. The first rank of a host steers its collectors; rank 0
evaluates.
Batch source: as in `single_gpu`, one per rank; `algo.batch_size` counts the rows of all ranks of all hosts.
Collectors: as in `double_buffer`.
"""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.batch_sources import Replay, configured_source
from offpolicy.training.learner_process import build_learner, train_rank
from offpolicy.training.rank import Rank, join
from offpolicy.training.resume import load_start


def learner_main(child: ChildContext) -> None:
    """Trains one rank in this process until the run is done or stops."""
    rank = Rank.open(child)  # device, clock, shared memory
    with join(rank) as world:
        learner = build_learner(rank, world)  # joined with the others by `world.exchange`
        start = load_start(rank, world, learner)  # read by rank 0, broadcast to all
        replay = Replay.open(rank, world, start)  # the rings of this host
        source = configured_source(replay)  # other rows on every rank
        train_rank(rank, world, learner, source, start, replay)  # adds the duties and calls `loop.train`
