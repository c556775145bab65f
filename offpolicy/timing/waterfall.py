"""From what two sides could do together to what they did: every env step per second that was lost, by name.

    1 / thru = 1 / predicted + pauses + waits that overlapping does not hide + the rest

All terms are seconds per env step on the learner's clock. The last one is what is left, so the account closes; it is
small where the model of the collection mode is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from offpolicy.timing.phases import LEARNER_PERIODIC, LearnerPhase
from offpolicy.timing.rates import predict_steps_per_sec

# The learner's waits for somebody else than the collectors: they add up where the learner is the slower side.
OWN_WAITS = (LearnerPhase.REPLAY_BATCH_WAIT, LearnerPhase.RANK_BARRIER, LearnerPhase.SYNC_COORDINATION)
TURNS, REST = "taking turns", "the rest"


class Loss(NamedTuple):
    """A cause, and the env steps per second that are left after it."""

    cause: str
    steps_per_sec: float


def waterfall(
    collector: float, learner: float, mode: str, steps_per_sec: float, learner_ns: Mapping[str, int]
) -> list[Loss]:
    """From min(I, T) down to `steps_per_sec`, in the order in which a user can do something about it.

    `collector` and `learner` are I and T in env steps per second, `learner_ns` the phases of the learner over the time
    in which `steps_per_sec` was done. Causes that cost nothing are left out. Raises ValueError without a wall.
    """
    wall_ns = sum(learner_ns.values())
    if wall_ns <= 0:
        raise ValueError("a waterfall needs the learner's wall")
    together = predict_steps_per_sec(collector, learner, mode)
    if not together:
        raise ValueError("a waterfall needs I and T")
    losses = [Loss("min(I, T)", min(collector, learner))]
    if mode == "alternate":
        losses.append(Loss(TURNS, together))
    left = together
    for phase in (*_added_waits(collector, learner, mode), *LEARNER_PERIODIC):
        cost_s = learner_ns.get(phase, 0) / wall_ns / steps_per_sec
        if cost_s > 0:
            left = 1.0 / (1.0 / left + cost_s)
            losses.append(Loss(phase, left))
    return [*losses, Loss(REST, steps_per_sec)]


def _added_waits(collector: float, learner: float, mode: str) -> tuple[LearnerPhase, ...]:
    """In turns every wait adds up; overlapped, only those of the slower side do."""
    return OWN_WAITS if mode == "alternate" or learner <= collector else ()
