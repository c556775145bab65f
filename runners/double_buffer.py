"""Topology `double_buffer`: as `single_gpu`, but the next batch is packed and copied while this one trains."""

from __future__ import annotations

from offpolicy.ipc.child import ChildContext

from .learner import Session
from .seat import Seat
from .team import alone


def learner_main(context: ChildContext) -> None:
    """Entry point of the learner process."""
    seat = Seat.take(context)
    Session(seat, alone(seat), source="prefetch").run()
