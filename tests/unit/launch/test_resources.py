"""Threads, and the core of an evaluator process, by the cores at hand."""

from __future__ import annotations

import os
from typing import Any

import pytest

from offpolicy.children import LONG_SPIN_ROUNDS, SPIN_ROUNDS
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.launch import resources
from offpolicy.launch.resources import env_step_factors, learner_threads, plan_host, spin_rounds, track_names
from offpolicy.training.worker import HostPlan
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
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


@pytest.mark.parametrize(
    ("tree", "num_hosts", "is_long"),
    [
        ({}, 1, True),
        ({"collect": {"mode": "overlap"}}, 1, True),
        (ONE_THREAD, 1, False),
        ({"runner": {"name": "multi_gpu", "world_size": 2}, "device": "cpu"}, 1, False),
        ({}, 2, False),
        ({"device": "cuda"}, 1, False),
        ({"collect": {"num_collectors": 2}}, 1, False),
        ({"env": {"id": "Ant-v5", "num_envs": 8, "vectorization": "mujoco"}}, 1, True),  # on all cores in its turn
        ({"env": {"num_envs": 2, "vectorization": "async"}}, 1, False),
    ],
)
def test_threads_spin_for_long_where_the_learner_can_leave_a_core_and_the_collectors_leave_one(
    monkeypatch: pytest.MonkeyPatch, tree: dict[str, Any], num_hosts: int, is_long: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(resources, "GPU_DRIVERS", ())
    cfg, host = config(**tree), HostInfo(num_hosts=num_hosts)
    assert spin_rounds(cfg, host) == (LONG_SPIN_ROUNDS if is_long else SPIN_ROUNDS)


def test_a_gpu_that_auto_would_take_keeps_the_spin_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(resources, "GPU_DRIVERS", ("/dev/null",))
    assert spin_rounds(config(), HostInfo()) == SPIN_ROUNDS


BATCH = {"id": "Ant-v5", "num_envs": 8, "vectorization": "mujoco"}


@pytest.mark.parametrize(
    ("overrides", "num_threads"),
    [
        ({"env": BATCH}, 8),  # the learner waits meanwhile
        ({"env": {**BATCH, "vectorization": "envpool"}}, 8),
        ({"env": BATCH, "eval": {"beside": "true"}}, 7),
        ({"env": BATCH, "collect": {"num_collectors": 3}}, 2),
        ({"env": BATCH, "threads": {"collector": 3}}, 3),
        ({"env": BATCH, "collect": {"mode": "overlap"}}, 1),
        ({"env": BATCH, "collect": {"mode": "auto"}}, 1),
        ({"env": {**BATCH, "vectorization": "sync"}}, 1),
    ],
)
def test_a_batch_has_all_cores_where_the_learner_waits(
    monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], num_threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    plan = plan_host(config(**overrides), HostInfo())
    assert (plan.env_threads, plan.collector_threads) == (num_threads, 3 if "threads" in overrides else 1)


@pytest.mark.parametrize(
    ("cores", "overrides", "is_beside"),
    [
        (8, {}, False),  # the learner's threads are all the cores
        (8, {"collect": {"mode": "overlap"}}, False),  # or all but the collector's
        (9, {}, False),
        (10, {}, True),  # eight are enough for a learner
        (24, {"threads": {"learner": 23}}, False),  # unless it was given more
        (2, ONE_THREAD, False),
        (3, ONE_THREAD, True),
        (3, {**ONE_THREAD, "collect": {"num_collectors": 2}}, False),
        (4, {**ONE_THREAD, "collect": {"num_collectors": 2}}, True),
        (3, {"threads": {"learner": 2}}, False),
        (4, {"threads": {"learner": 2}}, True),
        (6, {**ONE_THREAD, "env": {"num_envs": 4, "vectorization": "async"}}, False),
        (7, {**ONE_THREAD, "env": {"num_envs": 4, "vectorization": "async"}}, True),
        (8, {**ONE_THREAD, "eval": {"every": 0}}, False),
        (8, {"eval": {"episodes": 0, "beside": "true"}}, False),
        (8, {"eval": {"beside": "false"}}, False),
        (1, {"eval": {"beside": "true"}}, True),
        (3, {**ONE_THREAD, "runner": {"name": "multi_gpu", "world_size": 2}}, False),
        (4, {**ONE_THREAD, "runner": {"name": "multi_gpu", "world_size": 2}}, True),
        (8, {"runner": {"name": "multi_gpu", "world_size": 2}, "collect": {"mode": "overlap"}}, True),  # 1 + 2 * 3
    ],
)
def test_an_evaluator_takes_only_a_core_that_nobody_needs_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, overrides: dict[str, Any], is_beside: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    cfg = config(**overrides)
    assert plan_host(cfg, HostInfo()).has_evaluator == is_beside
    assert not plan_host(cfg, HostInfo(index=1, num_hosts=2)).has_evaluator


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("mode", ["alternate", "overlap", "free"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_auto_takes_no_thread_from_the_learner(
    monkeypatch: pytest.MonkeyPatch, cores: int, mode: str, ranks: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    tree: dict[str, Any] = {"runner": {"name": "multi_gpu", "world_size": ranks}, "collect": {"mode": mode}}
    plan = plan_host(config(**tree), HostInfo())
    assert plan.learner_threads == plan_host(config(**tree, eval={"beside": "false"}), HostInfo()).learner_threads


def test_the_core_of_the_evaluator_is_not_the_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert plan_host(config(eval={"beside": "true"}), HostInfo()) == HostPlan(True, 7, 1)
    assert learner_threads(config(threads={"learner": 3}), has_evaluator=True) == 3  # a fixed number stays


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ({}, ["learner-0", "collector-0"]),
        ({"runner": {"name": "double_buffer"}}, ["learner-0", "packer-0", "collector-0"]),
        ({"replay": {"source": "prefetch"}}, ["learner-0", "packer-0", "collector-0"]),
        ({"collect": {"num_collectors": 2}}, ["learner-0", "collector-0", "collector-1"]),
        (
            {"runner": {"name": "multi_gpu", "world_size": 2}},
            ["learner-0", "learner-1", "collector-0"],
        ),
    ],
)
def test_every_thread_of_a_host_has_a_track(overrides: dict[str, Any], names: list[str]) -> None:
    cfg = config(**overrides, device="cpu")
    assert track_names(cfg, has_evaluator=False) == names
    assert track_names(cfg, has_evaluator=True) == [*names, "evaluator-0"]
    hooked = config(**overrides, device="cpu", eval={"hook": "hooks:draw"})
    assert track_names(hooked, has_evaluator=True) == [*names, "evaluator-0", "hook-0"]


@pytest.mark.parametrize("driver", ["/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/nvhost-gpu", "/dev/nvgpu"])
@pytest.mark.parametrize(
    ("name", "has_driver", "has_tracks"),
    [("auto", True, True), ("auto", False, False), ("cpu", True, False), ("cuda", False, True), ("cuda:0", True, True)],
)
def test_a_device_has_tracks_where_it_may_be_whoever_made_it(
    monkeypatch: pytest.MonkeyPatch, driver: str, name: str, *, has_driver: bool, has_tracks: bool
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: has_driver and path == driver)
    tracks = {"packer-0", "device-0", "device_copies-0"}
    found = track_names(config(device=name), has_evaluator=False)
    assert tracks & set(found) == (tracks if has_tracks else set())


@pytest.mark.parametrize(
    ("overrides", "factors"),
    [
        ({"env": BATCH}, {"overlap": 1.0 / (0.1 + 0.9 / 8)}),
        ({"env": BATCH, "collect": {"mode": "overlap"}}, {"alternate": 0.1 + 0.9 / 8}),
        ({"env": BATCH, "collect": {"mode": "auto"}}, {"alternate": 0.1 + 0.9 / 8}),
        ({"env": BATCH, "threads": {"collector": 3}}, {}),  # in every mode
        ({"env": {**BATCH, "vectorization": "sync"}}, {}),
        ({"env": {**BATCH, "id": "CartPole-v1"}}, {}),  # it has threads of its own
    ],
)
def test_a_batch_costs_more_in_a_mode_in_which_it_has_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], factors: dict[str, float]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert env_step_factors(config(**overrides), has_evaluator=False) == pytest.approx(factors)
