"""Who is missing at the start of a run, and where its counters begin."""

from __future__ import annotations

from typing import Any

import numpy as np

from offpolicy.launch.hellos import Hellos
from offpolicy.training.run_memory import COLLECTOR_COUNTERS

LEARNER: dict[str, Any] = {"updates": 30, "metrics": ["train/critic_loss"], "sums": [6.0], "counts": [3]}


def collector(env_steps: int) -> dict[str, Any]:
    return {**dict.fromkeys(COLLECTOR_COUNTERS, 0), "env_steps": env_steps}


def test_the_processes_that_have_not_said_hello_are_named() -> None:
    hellos = Hellos(1, 2)
    hellos.add("collector 0", collector(0))
    assert not hellos.are_complete
    assert hellos.waiting_for == ("starting: waiting for learner 0, collector 1 to load torch and make environments")
    hellos.add("learner 0", LEARNER)
    hellos.add("evaluator 0", {})
    hellos.add("collector 1", collector(0))
    assert (hellos.are_complete, hellos.waiting_for) == (True, "starting: waiting for the first update")


def test_the_counters_begin_with_those_of_the_checkpoint_and_only_rank_0_has_its_sums() -> None:
    hellos = Hellos(1, 2)
    for name, message in (("learner 0", LEARNER), ("collector 0", collector(40)), ("collector 1", collector(42))):
        hellos.add(name, message)
    found = hellos.baseline(num_hosts=2, num_ranks=2, replay_capacity=100)
    assert (found.env_steps, found.replay_capacity, found.iteration) == (2 * 82, 100, 0)
    assert [learner.updates for learner in found.learners] == [30, 30]
    assert [learner.metrics.sums.tolist() for learner in found.learners] == [[6.0], [0.0]]
    assert [np.sum(learner.metrics.counts) for learner in found.learners] == [3, 0]
