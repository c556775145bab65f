"""Topology `double_buffer`: as `single_gpu`, but the next batch is packed and copied while this one trains."""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.training.learner import Session
from offpolicy.training.rank_context import RankContext
from offpolicy.training.team import alone


def learner_main(context: ChildContext) -> None:
    """Entry point of the learner process."""
    seat = RankContext.take(context)
    Session(seat, alone(seat), source="prefetch").run()
