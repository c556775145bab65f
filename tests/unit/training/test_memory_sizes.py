"""What is decided before a process starts: memory, threads, what may change at a resume."""

from __future__ import annotations

import os

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.launch import preflight
from offpolicy.replay.rate_limiter import first_learning_step
from offpolicy.training import memory_sizes
from offpolicy.training.memory_sizes import (
    available_memory,
    check_memory,
    check_share,
    replay_nbytes,
    rollout_layout,
    transport_name,
    transport_nbytes,
)
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


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


def test_learning_never_starts_before_the_first_n_step_row_exists() -> None:
    cfg = config(algo={"learning_starts": 2, "n_step": 5}, env={"num_envs": 4})
    assert first_learning_step(cfg, num_hosts=1) == 20
    assert first_learning_step(cfg, num_hosts=2) == 40  # every ring of every host needs its first row


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
