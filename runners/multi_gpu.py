"""Topology `multi_gpu`: several learner ranks, on this host and under torchrun on others, train the same networks."""

from __future__ import annotations

from offpolicy.ipc.child import ChildContext

from .learner import Session
from .seat import Seat
from .team import joined


def learner_main(context: ChildContext) -> None:
    """Entry point of every rank."""
    seat = Seat.take(context)
    with joined(seat) as team:
        Session(seat, team).run()
