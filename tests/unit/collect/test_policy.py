"""The collector's policy: uniform until learning starts, then the newest published weights."""

from __future__ import annotations

import numpy as np
import torch

from offpolicy.collect.policy import CollectorPolicy
from offpolicy.config import AlgoConfig
from offpolicy.ipc.mailbox import Mailbox
from offpolicy.nets.policy import flat_size, flatten_into, make_policy
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 2, (-1.0, -1.0), (1.0, 1.0))
ALGO = AlgoConfig(name="td3", hidden_dims=(8,), exploration_noise=0.0)


def make(seed: int = 0, path: tuple[int, ...] = ()) -> tuple[CollectorPolicy, Mailbox]:
    torch.manual_seed(1)
    policy = make_policy(ALGO, SPEC)
    nbytes = 4 * flat_size(policy)
    mailbox = Mailbox(memoryview(bytearray(Mailbox.nbytes(nbytes))), nbytes)
    return CollectorPolicy(policy, mailbox, action_dim=2, warmup_steps=100, seed=seed, path=path), mailbox


def test_actions_are_uniform_in_the_whole_range_until_learning_starts() -> None:
    policy, _ = make()
    actions = np.concatenate([policy.act(np.zeros((50, 3), np.float32), env_steps) for env_steps in range(100)])
    assert np.abs(actions).max() <= 1.0
    assert np.abs(actions.mean(axis=0)).max() < 0.05
    assert np.abs(actions.var(axis=0) - 1 / 3).max() < 0.02
    assert policy.is_random(99)
    assert not policy.is_random(100)


def test_the_newest_weights_are_acted_with_from_the_next_refresh_on() -> None:
    policy, mailbox = make()
    obs = np.ones((1, 3), np.float32)
    before = policy.act(obs, 100)
    torch.manual_seed(2)
    newer = make_policy(ALGO, SPEC)
    flat = np.zeros(flat_size(newer), np.float32)
    flatten_into(newer, flat)
    mailbox.publish(flat)
    assert np.array_equal(policy.act(obs, 100), before)
    policy.refresh()
    assert policy.version == 1
    assert np.array_equal(policy.act(obs, 100), newer.act(torch.from_numpy(obs)).numpy())


def test_the_streams_are_functions_of_the_seed() -> None:
    obs = np.zeros((1, 3), np.float32)
    assert np.array_equal(make(5)[0].act(obs, 0), make(5)[0].act(obs, 0))
    assert not np.array_equal(make(5)[0].act(obs, 0), make(6)[0].act(obs, 0))


def test_every_collector_has_streams_of_its_own() -> None:
    obs = np.zeros((1, 3), np.float32)
    first, second = (make(5, path)[0] for path in ((), (1,)))
    assert not np.array_equal(first.act(obs, 0), second.act(obs, 0))
    assert not torch.equal(first.noise.get_state(), second.noise.get_state())
