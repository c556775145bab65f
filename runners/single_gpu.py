"""Topology `single_gpu`: one learner, one device; batches are sampled where the ring, or its device copy, lives."""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.learner import Session
from offpolicy.training.rank_context import RankContext
from offpolicy.training.team import alone


def learner_main(context: ChildContext) -> None:
    """Entry point of the learner process."""
    seat = RankContext.take(context)
    Session(seat, alone(seat)).run()
