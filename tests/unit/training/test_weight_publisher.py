"""Publishing weights: the leader of a host does, the other ranks do not."""

from __future__ import annotations

import numpy as np

from offpolicy.processes.control_page import RankWord
from offpolicy.processes.mailbox import Mailbox
from offpolicy.training.weight_publisher import WeightPublisher
from tests.unit.training.conftest import TINY, MakeRank, tiny_learner


def test_a_publication_is_a_version_that_collectors_can_read(make_rank: MakeRank) -> None:
    rank = make_rank(**TINY)
    publisher = WeightPublisher(rank, tiny_learner(rank).policy)
    publisher.publish()
    publisher.publish()
    assert (publisher.version, rank.words.get(RankWord.VERSION)) == (2, 2)
    received = np.zeros_like(publisher.flat)
    assert Mailbox(rank.child.block("weights"), received.nbytes).read(received) == 2
    np.testing.assert_array_equal(received, publisher.flat)
    assert np.abs(publisher.flat).sum() > 0


def test_a_rank_that_is_no_leader_publishes_nothing(make_rank: MakeRank) -> None:
    rank = make_rank(index=1, runner={"name": "multi_gpu", "world_size": 2}, **TINY)
    publisher = WeightPublisher(rank, tiny_learner(rank).policy)
    publisher.publish()
    assert (publisher.version, float(np.abs(publisher.flat).sum())) == (0, 0.0)
