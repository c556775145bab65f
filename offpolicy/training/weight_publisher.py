"""Publishing the actor's weights to the collectors of the host."""

from __future__ import annotations

import numpy as np

from offpolicy.nets.policy import Policy, flat_size, flat_view, flatten_into
from offpolicy.processes.control_page import RankWord
from offpolicy.timing.trace_writer import Mark
from offpolicy.training.rank_context import RankContext
from offpolicy.training.run_memory import weights_mailbox


class WeightPublisher:
    """Publishes the policy's weights, with the normaliser's statistics; only the leader of a host does."""

    def __init__(self, rank: RankContext, policy: Policy) -> None:
        self._rank, self._policy = rank, policy
        self._mailbox = weights_mailbox(rank.child, flat_size(policy))
        # The weights published last; where the actor's parameters lie in such a block, that block.
        self._view = flat_view(policy) if rank.is_leader else None
        self.flat = np.zeros(flat_size(policy), dtype=np.float32) if self._view is None else self._view
        self.version = 0  # of the weights published last

    def publish(self) -> None:
        """Makes the present weights the newest."""
        if self._rank.is_leader:
            if self._view is None:
                flatten_into(self._policy, self.flat)
            # Marked before: a collector may take them before this thread continues.
            self._rank.ledger.mark(Mark.PUBLISHED, self._mailbox.version + 1)
            self.version = self._mailbox.publish(self.flat)
            self._rank.words.set(RankWord.VERSION, self.version)
