"""Topology `multi_gpu`: several learner ranks, on this host and under torchrun on others, train the same networks."""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.learner import Session
from offpolicy.training.rank_context import RankContext
from offpolicy.training.team import joined


def learner_main(context: ChildContext) -> None:
    """Entry point of every rank."""
    seat = RankContext.take(context)
    with joined(seat) as team:
        Session(seat, team).run()
