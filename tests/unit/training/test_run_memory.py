"""The shared memory of a host: its size, and that processes attach to what the supervisor allocates."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import CollectorWord, HostWord
from offpolicy.replay.rate_limiter import first_learning_step
from offpolicy.training import run_memory
from offpolicy.training.run_memory import RunMemory, check_memory, check_share, replay_nbytes
from offpolicy.types import SpaceSpec
from tests.fakes import refused

LARGE_SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"replay": {"capacity": 512}, "algo": {"batch_size": 8, "learning_starts": 8}}


def memory(*, has_evaluator: bool = False, **tree: Any) -> RunMemory:
    return RunMemory(RunConfig.from_mapping(tree), SPEC, 1, has_evaluator=has_evaluator)


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_the_replay_is_never_larger_than_the_run_can_fill() -> None:
    small = config(total_timesteps=5000)
    assert replay_nbytes(small, LARGE_SPEC) == 128 + 5083 * 4 * (17 + 6 + 3)


def test_a_device_copy_of_the_replay_has_a_stated_share() -> None:
    cfg = config(replay={"capacity": 4000, "device_share": 0.25})
    nbytes = replay_nbytes(cfg, LARGE_SPEC)
    check_share(cfg, LARGE_SPEC, "cuda:0", 4 * nbytes)
    with pytest.raises(
        ConfigError, match=r"replay\.source: resident needs .* on cuda:0, allowed replay\.device_share=0\.25"
    ):
        check_share(cfg, LARGE_SPEC, "cuda:0", 4 * nbytes, copies=2)


def test_a_replay_that_does_not_fit_is_refused_with_both_sizes() -> None:
    cfg = config(total_timesteps=10**12, replay={"capacity": 10**11})
    with pytest.raises(ConfigError, match=r"^replay\.capacity: got 9837\.09 GiB of replay.* \d+\.\d\d GiB available"):
        check_memory(cfg, LARGE_SPEC)
    with pytest.raises(ConfigError, match=r"got 19674\.\d\d GiB of replay"):
        check_memory(cfg, LARGE_SPEC, is_of_tensors=True)
    check_memory(config(total_timesteps=10**7, replay={"capacity": 10_000}), LARGE_SPEC)


def test_the_object_store_of_a_cluster_that_the_run_starts_must_fit_beside_the_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_memory, "memory", lambda: (int(replay_nbytes(config(), LARGE_SPEC) / 0.9) + 2**20, 0))
    monkeypatch.setattr(run_memory, "gives_memory_back", lambda: True)
    for remote in ({}, {"collect": {"remote_hosts": 1}, "runner": {"ray": "h:1"}}):
        check_memory(config(**remote), LARGE_SPEC)
    with pytest.raises(ConfigError, match="GiB of replay beside 200 MiB of Ray's object store, allowed 90 %"):
        check_memory(config(collect={"remote_hosts": 1}), LARGE_SPEC)


def appo(**tree: object) -> RunConfig:
    return config(algo={"name": "appo"}, runner={"name": "appo"}, **tree)


def test_rollouts_that_do_not_fit_are_refused_with_the_key_to_lower() -> None:
    with pytest.raises(ConfigError, match=r"^rollout\.length: got .* GiB of rollouts.*; lower rollout\.length"):
        check_memory(appo(rollout={"length": 65536}, total_timesteps=10**6), replace(LARGE_SPEC, obs_dim=10**8))
    check_memory(appo(rollout={"length": 8}), LARGE_SPEC)


def test_learning_from_rollouts_starts_with_one_of_every_collector() -> None:
    cfg = appo(rollout={"length": 16}, env={"num_envs": 4}, collect={"num_collectors": 2})
    assert [first_learning_step(cfg, num_hosts) for num_hosts in (1, 2)] == [128, 256]


def test_learning_never_starts_before_the_first_n_step_row_exists() -> None:
    cfg = config(algo={"learning_starts": 2, "n_step": 5}, env={"num_envs": 4})
    assert first_learning_step(cfg, num_hosts=1) == 20
    assert first_learning_step(cfg, num_hosts=2) == 40  # every ring of every host needs its first row


@pytest.mark.promise("summary")
def test_refused_memory_leaves_the_counts_for_the_summary() -> None:
    shared = memory(**SMALL)
    words = shared.control.collectors[0]
    words[CollectorWord.ENV_STEPS] = 500
    words[CollectorWord.RESTARTS] = 3
    with refused("memory.allocate:ENOMEM"), pytest.raises(OSError, match="Cannot allocate memory"):
        shared.clear()
    assert (shared.control.env_steps, words[CollectorWord.RESTARTS]) == (500, 3)
    assert shared.rings[0].committed in (0, 1)  # and every block can be read


def test_cleared_memory_is_as_it_was_at_first() -> None:
    shared = memory(**SMALL)
    shared.rings[0].append(np.ones((3, shared.rings[0].width), np.float32))
    shared.control.host[HostWord.STOP] = 2
    words = shared.control.collectors[0]
    words[CollectorWord.HAS_BEGUN] = 1
    words[CollectorWord.RESTARTS] = 3
    shared.clear()
    assert (shared.rings[0].committed, shared.control.host[HostWord.STOP]) == (0, 0)
    assert words[CollectorWord.HAS_BEGUN] == 0
    assert words[CollectorWord.RESTARTS] == 3  # of the run: they never fall


@pytest.mark.promise("no-orphan")
def test_memory_that_is_closed_leaves_no_descriptor() -> None:
    """A program may start many runs, one after the other."""

    def run() -> None:
        with closing(memory(**SMALL, has_evaluator=True)) as held:
            held.control.collectors[0][CollectorWord.ENV_STEPS] = 7
        assert held.control.collectors[0][CollectorWord.ENV_STEPS] == 0, "the memory is given back at once"

    run()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    run()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
