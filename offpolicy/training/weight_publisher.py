"""Publishing the actor's weights to the collectors of the host."""

from __future__ import annotations

import numpy as np

from offpolicy.algos.learner import Learner
from offpolicy.nets.policy import flat_size, flat_view, flatten_into
from offpolicy.processes.control_page import RankWord
from offpolicy.timing.trace_writer import Mark
from offpolicy.training.rank import Rank
from offpolicy.training.run_memory import weights_mailbox


class WeightPublisher:
    """Publishes the policy's weights, with the normaliser's statistics; only the leader of a host does."""

    def __init__(self, rank: Rank, learner: Learner) -> None:
        policy = learner.policy
        self._rank, self._learner, self._policy = rank, learner, policy
        self._mailbox = weights_mailbox(rank.child, flat_size(policy))
        # The weights published last. Where the actor's parameters lie in such a block it is that block, and so equal to
        # what is published only until the next update.
        self._view = flat_view(policy) if rank.is_leader else None
        self.flat = np.zeros(flat_size(policy), dtype=np.float32) if self._view is None else self._view
        self.version = 0  # of the weights published last
        self._published: int | None = None  # the learner's `policy_changes` then

    def publish(self) -> None:
        """Makes the present weights the newest. Does nothing where they are: as after an update without an actor step.

        A copy of the block costs both sides: the collector reads what the learner's core has just written.
        """
        if self._rank.is_leader and self._published != self._learner.policy_changes:
            self._published = self._learner.policy_changes
            if self._view is None:
                flatten_into(self._policy, self.flat)
            # Marked before: a collector may take them before this thread continues.
            self._rank.ledger.mark(Mark.PUBLISHED, self._mailbox.version + 1)
            self.version = self._mailbox.publish(self.flat)
            self._rank.words[RankWord.VERSION] = self.version
