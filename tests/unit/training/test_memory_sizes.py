"""The memory that a run needs, and whether it fits."""

from __future__ import annotations

import os

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
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


def test_the_memory_at_hand_is_a_sensible_number() -> None:
    assert 2**26 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_learning_never_starts_before_the_first_n_step_row_exists() -> None:
    cfg = config(algo={"learning_starts": 2, "n_step": 5}, env={"num_envs": 4})
    assert first_learning_step(cfg, num_hosts=1) == 20
    assert first_learning_step(cfg, num_hosts=2) == 40  # every ring of every host needs its first row
