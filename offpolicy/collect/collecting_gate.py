"""The gate of a learner whose own process collects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from offpolicy.collect.collector import Collector
from offpolicy.processes.control_page import CollectorWord, RankWord
from offpolicy.processes.handshake import POLL_S, LearnerGate
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import CollectorPhase, LearnerPhase


class CollectingGate(LearnerGate):
    """The gate of a learner whose own thread collects: to wait for the collector is to let it work.

    The time is `collect` on the learner's clock. The collector's clock divides it; in between that is `learner_wait`.
    """

    ledger: Ledger  # the learner's
    on_device: AbstractContextManager[None]  # times what the device is given inside it
    collector: Collector  # set once the learner has networks

    def wait_for(self, env_steps: int) -> None:
        """Collects until the collector has done its part of that many, or until the run is stopping."""
        with self.ledger.phase(LearnerPhase.COLLECT), self.on_device:
            super().wait_for(env_steps)

    def _block_until(self, is_true: Callable[[], bool]) -> None:
        with self.collector.ledger.phase(CollectorPhase.OTHER):
            while not is_true():
                self._own[RankWord.PROGRESS] += 1
                try:
                    has_worked = self.collector.take_turn()
                except BaseException:
                    self.collector.words[CollectorWord.IS_GONE] = 1  # a checkpoint is saved without it
                    self.collector.words[CollectorWord.IS_INSIDE] = 0
                    raise
                if not has_worked:
                    self._wake_event.wait(POLL_S)  # for the evaluator, or a stop
