"""Publishing weights: the leader of a host does, the other ranks do not."""

from __future__ import annotations

import numpy as np
import torch

from offpolicy.nets.policy import flatten_into
from offpolicy.processes.control_page import RankWord
from offpolicy.processes.mailbox import Mailbox
from offpolicy.training.weight_publisher import WeightPublisher
from tests.unit.training.conftest import TINY, MakeRank, tiny_learner


def test_a_publication_is_a_version_that_collectors_can_read(make_rank: MakeRank) -> None:
    rank = make_rank(**TINY)
    learner = tiny_learner(rank)
    publisher = WeightPublisher(rank, learner)
    publisher.publish()
    learner.policy_changes += 1
    publisher.publish()
    assert (publisher.version, rank.words[RankWord.VERSION]) == (2, 2)
    received = np.zeros_like(publisher.flat)
    assert Mailbox(rank.child.block("weights"), received.nbytes).read(received) == 2
    np.testing.assert_array_equal(received, publisher.flat)
    assert np.abs(publisher.flat).sum() > 0


def test_what_is_published_are_the_weights_and_statistics_of_the_policy(make_rank: MakeRank) -> None:
    """With a normaliser they are written together; without one the parameters' own memory is published."""
    for normalize_obs in (False, True):
        rank = make_rank(**{**TINY, "algo": {**TINY["algo"], "normalize_obs": normalize_obs}})
        learner = tiny_learner(rank)
        policy, publisher = learner.policy, WeightPublisher(rank, learner)
        with torch.no_grad():
            next(policy.actor.parameters()).fill_(3.0)
        publisher.publish()
        received, expected = np.zeros_like(publisher.flat), np.zeros_like(publisher.flat)
        Mailbox(rank.child.block("weights"), received.nbytes).read(received)
        flatten_into(policy, expected)
        np.testing.assert_array_equal(received, expected)
        assert received[0] == 3.0


def test_a_rank_that_is_no_leader_publishes_nothing(make_rank: MakeRank) -> None:
    rank = make_rank(index=1, runner={"name": "multi_gpu", "world_size": 2}, **TINY)
    publisher = WeightPublisher(rank, tiny_learner(rank))
    publisher.publish()
    assert (publisher.version, float(np.abs(publisher.flat).sum())) == (0, 0.0)
