"""Topology `single_gpu`: one learner, one device; batches are sampled where the ring, or its device copy, lives."""

from __future__ import annotations

from offpolicy.ipc.child import ChildContext

from .learner import Session
from .seat import Seat
from .team import alone


def learner_main(context: ChildContext) -> None:
    """Entry point of the learner process."""
    seat = Seat.take(context)
    Session(seat, alone(seat)).run()
