"""Threads, and the core of an evaluator process, by the cores at hand."""

from __future__ import annotations

import os
from typing import Any

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.launch.resources import plan_host
from offpolicy.training.worker import HostPlan

ONE_THREAD = {"threads": {"learner": 1}}


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_threads_can_be_set_and_leave_room_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert plan_host(config(collect={"mode": "overlap"}), HostInfo()) == HostPlan(False, 7, 1)
    assert plan_host(config(), HostInfo()) == HostPlan(False, 8, 1)  # they take turns
    assert plan_host(config(threads={"learner": 3, "collector": 2}, eval={"beside": "false"}), HostInfo()) == HostPlan(
        False, 3, 2, 2
    )
    ranks = config(
        runner={"name": "multi_gpu", "world_size": 2}, collect={"num_collectors": 2}, eval={"beside": "false"}
    )
    assert plan_host(ranks, HostInfo()) == HostPlan(False, 3, 1)


BATCH = {"id": "Ant-v5", "num_envs": 8, "vectorization": "mujoco"}


def test_a_batch_has_all_cores_where_the_learner_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    batches: list[tuple[dict[str, Any], int]] = [
        ({"env": BATCH}, 8),  # the learner waits meanwhile
        ({"env": BATCH, "eval": {"beside": "true"}}, 7),
        ({"env": BATCH, "collect": {"num_collectors": 3}}, 2),
        ({"env": BATCH, "threads": {"collector": 3}}, 3),
        ({"env": BATCH, "collect": {"mode": "overlap"}}, 1),
        ({"env": {**BATCH, "vectorization": "sync"}}, 1),
    ]
    for overrides, num_threads in batches:
        plan = plan_host(config(**overrides), HostInfo())
        assert (plan.env_threads, plan.collector_threads) == (num_threads, 3 if "threads" in overrides else 1)


def test_an_evaluator_takes_only_a_spare_core_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    four_workers = {**ONE_THREAD, "env": {"num_envs": 4, "vectorization": "async"}}
    machines: list[tuple[int, dict[str, Any], bool]] = [
        (8, {}, False),  # the learner's threads are all the cores
        (9, {}, False),
        (10, {}, True),  # eight are enough for a learner
        (24, {"threads": {"learner": 23}}, False),  # unless it was given more
        (2, ONE_THREAD, False),
        (3, ONE_THREAD, True),
        (6, four_workers, False),
        (7, four_workers, True),
        (8, {**ONE_THREAD, "eval": {"every": 0}}, False),
        (8, {"eval": {"beside": "false"}}, False),
        (1, {"eval": {"beside": "true"}}, True),
        (8, {"runner": {"name": "multi_gpu", "world_size": 2}, "collect": {"mode": "overlap"}}, True),  # 1 + 2 * 3
    ]
    for cores, overrides, is_beside in machines:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        cfg = config(**overrides)
        assert plan_host(cfg, HostInfo()).has_evaluator == is_beside
        assert not plan_host(cfg, HostInfo(index=1, num_hosts=2)).has_evaluator
