"""The shared memory of a host: what the supervisor allocates is what its processes attach to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.training.run_memory import RunMemory, replay_rings, rollout_ring, wake_event_names
from offpolicy.types import SpaceSpec
from tests.unit.training.conftest import MakeRank

SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"replay": {"capacity": 512}, "algo": {"batch_size": 8, "learning_starts": 8}}


def memory(*, has_evaluator: bool = False, **tree: Any) -> RunMemory:
    return RunMemory(RunConfig.from_mapping(tree), SPEC, 1, has_evaluator=has_evaluator)


def test_every_collector_has_a_ring_a_report_and_episodes() -> None:
    blocks = memory(**SMALL, collect={"num_collectors": 2}).blocks
    expected = {f"{kind}-{index}" for kind in ("replay", "collector_report", "episodes") for index in (0, 1)}
    assert set(blocks) == expected | {"control", "weights", "learner_report"}


def test_only_a_host_with_an_evaluator_has_its_blocks_and_wake_event() -> None:
    with_evaluator = memory(has_evaluator=True, **SMALL)
    assert {"evaluation", "evaluator_report"} <= set(with_evaluator.blocks)
    assert set(with_evaluator.wake_events) - set(memory(**SMALL).wake_events) == {"evaluator_wake"}


def test_every_waiting_thread_has_a_wake_event() -> None:
    cfg = RunConfig.from_mapping({"runner": {"name": "multi_gpu", "world_size": 2}, "collect": {"num_collectors": 2}})
    names = wake_event_names(cfg, has_evaluator=False)
    expected = {f"{role}_wake-{index}" for role in ("learner", "packer", "collector") for index in (0, 1)}
    assert set(names) == expected


def test_a_child_sees_the_rows_that_a_collector_writes(make_rank: MakeRank) -> None:
    owner, rank = memory(**SMALL), make_rank(**SMALL)
    rank.child.block = lambda name: owner.blocks[name].buffer  # type: ignore[method-assign]  # a fake child
    (ring,) = replay_rings(rank.child, rank.job)
    rows = np.arange(2 * ring.width, dtype=np.float32).reshape(2, -1)
    ring.append(rows)
    np.testing.assert_array_equal(owner.rings[0].read_range(0, 2), rows)


def test_a_run_on_rollouts_has_no_replay(make_rank: MakeRank) -> None:
    tree: dict[str, Any] = {"algo": {"name": "appo"}, "runner": {"name": "appo"}, "rollout": {"length": 8}}
    owner, rank = memory(**tree), make_rank(**tree)
    rank.child.block = lambda name: owner.blocks[name].buffer  # type: ignore[method-assign]  # a fake child
    assert (owner.rings, replay_rings(rank.child, rank.job)) == ([], [])
    rollout_ring(rank.child, rank.job, 0)


@pytest.mark.parametrize("name", ["control", "weights", "learner_report"])
def test_descriptors_are_passed_by_name(name: str) -> None:
    owner = memory(**SMALL)
    assert owner.fds[name] == owner.blocks[name].fd
    assert owner.fds["learner_wake-0"] == owner.wake_events["learner_wake-0"].fd
