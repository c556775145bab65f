"""What is decided before a process starts: memory, threads, what may change at a resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from offpolicy.config.run_files import write_config
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError
from offpolicy.launch import preflight
from offpolicy.nets.policy import flat_size, make_policy
from offpolicy.replay.rate_limiter import first_learning_step
from offpolicy.training import memory_sizes
from offpolicy.training.memory_sizes import (
    available_memory,
    check_memory,
    check_share,
    max_policy_nbytes,
    replay_nbytes,
    rollout_layout,
    transport_name,
    transport_nbytes,
)
from offpolicy.training.resources import has_evaluator, settle_evaluator, thread_budget
from offpolicy.training.run_memory import EVALUATOR_WAKE, wake_event_names
from offpolicy.training.worker_spec import WorkerSpec
from offpolicy.types import SpaceSpec
from runners import train

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
ONE_THREAD = {"threads": {"learner": 1}}


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_the_replay_is_never_larger_than_the_run_can_fill() -> None:
    small = config(total_timesteps=5000)
    assert replay_nbytes(small, SPEC) == 64 + 5001 * 4 * (2 * 17 + 6 + 4)


def test_collectors_share_the_capacity() -> None:
    cfg = config(replay={"capacity": 4001}, collect={"num_collectors": 2})
    assert (cfg.replay_rows, replay_nbytes(cfg, SPEC)) == (2000, 2 * (64 + 2000 * 4 * (2 * 17 + 6 + 4)))


def test_a_device_copy_of_the_replay_has_a_stated_share() -> None:
    cfg = config(replay={"capacity": 4000, "device_share": 0.25})
    nbytes = replay_nbytes(cfg, SPEC)
    check_share(cfg, SPEC, "cuda:0", 4 * nbytes)
    with pytest.raises(
        ConfigError, match=r"replay\.source: resident needs .* on cuda:0, allowed replay\.device_share=0\.25"
    ):
        check_share(cfg, SPEC, "cuda:0", 4 * nbytes, copies=2)


def test_a_replay_that_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(total_timesteps=10**7, replay={"capacity": 1_000_000})
    needed = replay_nbytes(cfg, SPEC)  # 0.16 GiB
    monkeypatch.setattr(memory_sizes, "available_memory", lambda: needed)
    with pytest.raises(ConfigError, match=r"^replay\.capacity: got 0\.16 GiB of replay.*0\.16 GiB available"):
        check_memory(cfg, SPEC)
    monkeypatch.setattr(memory_sizes, "available_memory", lambda: 2 * needed)
    check_memory(cfg, SPEC)


def appo(**tree: object) -> RunConfig:
    return config(algo={"name": "appo"}, runner={"name": "appo"}, **tree)


def test_rollouts_have_a_ring_per_collector_and_no_replay() -> None:
    cfg = appo(rollout={"length": 4, "slots": 2}, env={"num_envs": 8}, collect={"num_collectors": 3})
    layout = rollout_layout(cfg, SPEC)
    assert (layout.shape, transport_name(cfg)) == ((5, 8, 17 + 6 + 5), "rollouts")
    assert transport_nbytes(cfg, SPEC) == 3 * (64 + 3 * (4 * 5 * 8 * 28 + 24))
    assert transport_nbytes(config(total_timesteps=5000), SPEC) == 64 + 5001 * 4 * (2 * 17 + 6 + 4)


def test_rollouts_that_do_not_fit_are_refused_with_the_key_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_sizes, "available_memory", lambda: 100_000)
    with pytest.raises(ConfigError, match=r"^rollout\.length: got .* GiB of rollouts.*; lower rollout\.length"):
        check_memory(appo(rollout={"length": 1024}), SPEC)
    check_memory(appo(rollout={"length": 8}), SPEC)


def test_learning_from_rollouts_starts_with_one_of_every_collector() -> None:
    cfg = appo(rollout={"length": 16}, env={"num_envs": 4}, collect={"num_collectors": 2})
    assert [first_learning_step(cfg, num_hosts) for num_hosts in (1, 2)] == [128, 256]


def test_discrete_actions_are_for_algorithms_that_learn_from_rollouts() -> None:
    discrete = SpaceSpec(4, 1, (0.0,), (1.0,), num_actions=2)
    with pytest.raises(ConfigError, match=r"Discrete\(2\); sac needs a Box action space: algo=appo takes Discrete"):
        preflight.check_actions(config(), discrete)
    preflight.check_actions(appo(), discrete)
    preflight.check_actions(config(), SPEC)


def test_the_memory_at_hand_is_a_sensible_number() -> None:
    assert 2**26 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_weights_always_fit_into_their_mailbox(name: str, normalize: bool) -> None:
    cfg = config(algo={"name": name, "hidden_dims": [64, 48, 32], "normalize_obs": normalize})
    torch.manual_seed(0)
    assert 4 * flat_size(make_policy(cfg.algo, SPEC)) <= max_policy_nbytes(cfg, SPEC)


def test_threads_can_be_set_and_leave_room_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert thread_budget(config(collect={"mode": "overlap"})) == {"collector": 1, "learner": 7}
    assert thread_budget(config()) == {"collector": 1, "learner": 8}  # they take turns
    assert thread_budget(config(threads={"learner": 3, "collector": 2})) == {"collector": 2, "learner": 3}
    ranks = config(runner={"name": "multi_gpu", "world_size": 2}, collect={"num_collectors": 2})
    assert thread_budget(ranks) == {"collector": 1, "learner": 3}


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
    assert not has_evaluator(cfg) or overrides["eval"]["beside"] == "true"
    assert has_evaluator(settle_evaluator(cfg, HostInfo())) == is_beside
    second = HostInfo(host=1, num_hosts=2)
    assert not has_evaluator(settle_evaluator(cfg, second))


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("mode", ["alternate", "overlap", "free"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_auto_takes_no_thread_from_the_learner(
    monkeypatch: pytest.MonkeyPatch, cores: int, mode: str, ranks: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    tree: dict[str, Any] = {"runner": {"name": "multi_gpu", "world_size": ranks}, "collect": {"mode": mode}}
    settled = settle_evaluator(config(**tree), HostInfo())
    assert thread_budget(settled) == thread_budget(config(**tree, eval={"beside": "false"}))


def test_the_core_of_the_evaluator_is_not_the_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    cfg = config(eval={"beside": "true"})
    assert thread_budget(cfg) == {"collector": 1, "learner": 7}
    assert EVALUATOR_WAKE in wake_event_names(cfg)
    assert EVALUATOR_WAKE not in wake_event_names(config())


def test_learning_never_starts_before_the_first_n_step_row_exists() -> None:
    cfg = config(algo={"learning_starts": 2, "n_step": 5}, env={"num_envs": 4})
    assert first_learning_step(cfg, num_hosts=1) == 20
    assert first_learning_step(cfg, num_hosts=2) == 40  # every ring of every host needs its first row


def test_an_assignment_survives_its_trip_to_the_child() -> None:
    place = HostInfo(host=1, num_hosts=2, store_host="10.0.0.1", store_port=29400, is_store_ours=False, job="a")
    job = WorkerSpec(config(), SPEC, "/somewhere", 400, 400, place, 29400)

    class Context:
        payload = job.to_json()

    assert WorkerSpec.of(Context()) == job  # type: ignore[arg-type]


def test_what_would_make_another_experiment_cannot_change_at_a_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train.resume(tmp_path, {"algo": {"gamma": 0.9}, "seed": 2, "log": {"every_s": 1.0}, "total_timesteps": 10})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["algo.gamma", "seed"]


@pytest.mark.parametrize(
    ("overrides", "demos", "share"),
    [
        ({"demos": None}, None, 0.25),
        ({"demo_share": 0.75}, "a.npz", 0.75),
        ({"demos": "b.npz"}, "b.npz", 0.5),
    ],
)
def test_a_run_may_go_on_without_its_demonstrations_or_with_another_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overrides: dict[str, Any], demos: str | None, share: float
) -> None:
    saved, launched = config(replay={"demos": "a.npz", "demo_share": 0.5}), list[RunConfig]()
    write_config(tmp_path, saved, SPEC)
    monkeypatch.setattr(train, "launch", lambda cfg: launched.append(cfg) or 0)
    assert train.resume(tmp_path, {"replay": overrides}) == 0
    assert (launched[0].replay.demos, launched[0].replay.demo_share) == (demos, share)
    preflight.check_same(launched[0], saved)


def test_a_share_without_demonstrations_is_refused_at_a_resume_too(tmp_path: Path) -> None:
    write_config(tmp_path, config(replay={"demos": "a.npz", "demo_share": 0.5}), SPEC)
    with pytest.raises(ConfigError, match="demo_share: got 0.75, allowed nothing without"):
        train.resume(tmp_path, {"replay": {"demos": None, "demo_share": 0.75}})


@pytest.mark.parametrize(
    ("device", "world_size", "count", "key"),
    [
        ("cuda:2", 1, 2, "device"),
        ("cuda", 1, 0, "device"),
        ("cuda", 3, 2, "runner.world_size"),
        ("auto", 3, 2, "runner"),
    ],
)
def test_more_gpus_than_exist_are_refused(device: str, world_size: int, count: int, key: str) -> None:
    runner = {"name": "multi_gpu", "world_size": world_size}
    with pytest.raises(ConfigError, match=f"^{key}"):
        preflight.check_gpus(config(device=device, runner=runner, algo={"batch_size": 240}), count)


@pytest.mark.parametrize(
    ("device", "world_size", "count"), [("cuda:0", 2, 1), ("cuda", 2, 2), ("auto", 2, 0), ("cpu", 4, 1)]
)
def test_ranks_that_have_a_device_are_not_refused(device: str, world_size: int, count: int) -> None:
    runner = {"name": "multi_gpu", "world_size": world_size}
    preflight.check_gpus(config(device=device, runner=runner, algo={"batch_size": 240}), count)
