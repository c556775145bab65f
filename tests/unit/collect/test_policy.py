"""The collector's policy: uniform until learning starts, then the newest published weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_policy
from offpolicy.collect.policy import CollectorPolicy, RepeatedNoise
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.schedules import Ramp
from offpolicy.config.schema import RunConfig
from offpolicy.errors import NumericsError
from offpolicy.nets.normalizer import block_moments
from offpolicy.nets.policy import flat_size, flatten_into
from offpolicy.processes.mailbox import Mailbox
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 2, (-1.0, -1.0), (1.0, 1.0))
ALGO = AlgoConfig(name="td3", hidden_dims=(8,), exploration_noise=0.0, learning_starts=100)


def make(
    seed: int = 0, algo: AlgoConfig = ALGO, spec: SpaceSpec = SPEC, number: int = 0, num_collectors: int = 1
) -> tuple[CollectorPolicy, Mailbox]:
    torch.manual_seed(1)
    policy = make_policy(algo, spec)
    nbytes = 4 * flat_size(policy)
    mailbox = Mailbox(memoryview(bytearray(Mailbox.nbytes(nbytes))), nbytes)
    cfg = replace(RunConfig(), algo=algo, seed=seed)
    return CollectorPolicy(policy, mailbox, cfg, spec, number=number, num_collectors=num_collectors), mailbox


@pytest.mark.promise("warm-up")
def test_actions_are_uniform_in_the_whole_range_until_learning_starts() -> None:
    policy, _ = make()
    actions = np.concatenate([policy.act(np.zeros((50, 3), np.float32), env_steps).action for env_steps in range(100)])
    assert np.abs(actions).max() <= 1.0
    assert np.abs(actions.mean(axis=0)).max() < 0.05
    assert np.abs(actions.var(axis=0) - 1 / 3).max() < 0.02
    assert policy.is_random(99)
    assert not policy.is_random(100)


def test_the_newest_weights_are_acted_with_from_the_next_refresh_on() -> None:
    policy, mailbox = make()
    obs = np.ones((1, 3), np.float32)
    before = policy.act(obs, 100).action
    torch.manual_seed(2)
    newer = make_policy(ALGO, SPEC)
    flat = np.zeros(flat_size(newer), np.float32)
    flatten_into(newer, flat)
    mailbox.publish(flat)
    assert np.array_equal(policy.act(obs, 100).action, before)
    policy.refresh()
    choice = policy.act(obs, 100)
    assert (policy.version, choice.version) == (1, 1)
    assert np.array_equal(choice.action, newer.act(torch.from_numpy(obs)).numpy())


def test_statistics_are_taken_with_the_weights() -> None:
    algo = replace(ALGO, normalize_obs=True)
    policy, mailbox = make(algo=algo)
    newer = make_policy(algo, SPEC)
    assert newer.normalizer is not None
    newer.normalizer.absorb(block_moments(3.0 + torch.randn(50, 3)))
    flat = np.zeros(flat_size(newer), np.float32)
    flatten_into(newer, flat)
    mailbox.publish(flat)
    policy.refresh()
    for rows in (2, 64):
        obs = np.ones((rows, 3), np.float32)
        expected = newer.act(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(policy.act(obs, 100).action, expected, rtol=0.0, atol=1e-6)


def test_the_streams_are_functions_of_the_seed() -> None:
    obs = np.zeros((1, 3), np.float32)
    assert np.array_equal(make(5)[0].act(obs, 0).action, make(5)[0].act(obs, 0).action)
    assert not np.array_equal(make(5)[0].act(obs, 0).action, make(6)[0].act(obs, 0).action)


def test_every_collector_has_other_streams() -> None:
    obs = np.zeros((1, 3), np.float32)
    first, second = (make(5, number=number, num_collectors=2)[0] for number in (0, 1))
    assert not np.array_equal(first.act(obs, 0).action, second.act(obs, 0).action)
    assert not torch.equal(first.policy_rng.get_state(), second.policy_rng.get_state())


def test_an_on_policy_actor_returns_the_log_probability_of_every_action() -> None:
    policy, _ = make(algo=AlgoConfig(name="appo", hidden_dims=(8,)))
    choice = policy.act(np.zeros((4, 3), np.float32), 100)
    assert choice.log_prob is not None
    assert (choice.action.shape, choice.log_prob.shape, choice.version) == ((4, 2), (4,), 0)


def test_scheduled_noise_is_dated_by_the_steps_of_all_collectors() -> None:
    ramp = Ramp(start=0.4, end=0.0, over=100)
    policy, _ = make(algo=AlgoConfig(name="td3", learning_starts=60, exploration_noise=ramp), num_collectors=3)
    obs = np.zeros((4000, 3), np.float32)
    quiet = policy.act(obs, 60).action
    for own_steps, noise in ((20, 0.4), (40, 0.16), (60, 0.0)):  # the ramp begins at 60 of all
        assert (policy.act(obs, own_steps).action - quiet).std() == pytest.approx(noise, rel=0.05)


def test_flashsacs_noise_is_repeated_where_it_is_asked_for() -> None:
    """The same observation has the same action for as long as an environment holds its noise, and only then."""
    algo = AlgoConfig(name="flashsac", actor_width=8, learning_starts=100)
    obs = np.ones((4, 3), np.float32)
    held, fresh = (make(algo=replace(algo, noise_repeat=longest))[0] for longest in (16, 1))
    assert fresh.repeated_noise is None
    repeats = {}
    for policy in (held, fresh):
        actions = [policy.act(obs, 100).action for _ in range(200)]
        repeats[policy] = np.mean(
            [(one == other).all(axis=1) for one, other in zip(actions, actions[1:], strict=False)]
        )
        assert np.unique(np.concatenate(actions), axis=0).shape[0] > 100
    assert repeats[fresh] == 0.0
    assert 0.4 < repeats[held] < 0.7  # the mean of n is 2.13


ONE_CHOICE = SpaceSpec(3, 1, (0.0,), (2.0,), num_actions=3)
TWO_CHOICES = SpaceSpec(3, 2, (0.0, 5.0), (2.0, 6.0), nvec=(3, 2))


@pytest.mark.parametrize(
    ("name", "spec"),
    [("sac", SPEC), ("td3", SPEC), ("appo", SPEC), ("sac", ONE_CHOICE), ("appo", ONE_CHOICE), ("appo", TWO_CHOICES)],
)
def test_an_action_of_nan_for_a_sound_observation_is_the_policys(name: str, spec: SpaceSpec) -> None:
    """The environment was blamed for what it makes of it; torch draws no number from NaN, and raised."""
    algo = AlgoConfig(name=name, hidden_dims=(4,), learning_starts=100)
    policy, mailbox = make(algo=algo, spec=spec)
    mailbox.publish(np.full(flat_size(make_policy(algo, spec)), np.nan, np.float32))
    policy.refresh()
    obs = np.zeros((2, spec.obs_dim), np.float32)
    with pytest.raises(NumericsError, match=r"environment 0 after 190 env .* at most 0, is not: .* Lower algo.act"):
        policy.act(obs, 190)
    for acting in (policy, make(algo=algo, spec=spec)[0]):
        for odd in (np.nan, 3e38):  # the environment's own: the row is refused when it is written
            acting.act(np.full_like(obs, odd), 190)


def runs_of(noise: np.ndarray) -> list[int]:
    """How many steps in a row each draw [T] was held, without the last one."""
    starts = np.flatnonzero(np.diff(noise)) + 1
    return np.diff(np.concatenate(([0], starts))).tolist()


def test_draws_are_held_as_often_as_the_law_says() -> None:
    longest = 16
    noise, generator = RepeatedNoise(longest, 1), torch.Generator().manual_seed(1)
    drawn = np.stack([noise.draw(20, generator)[:, 0].numpy().copy() for _ in range(4000)])
    held = np.concatenate([runs_of(column) for column in drawn.T])
    chances = 1.0 / np.arange(1, longest + 1) ** 2
    shares = np.bincount(held, minlength=longest + 1)[1:] / len(held)
    assert len(shares) == longest
    np.testing.assert_allclose(shares, chances / chances.sum(), atol=0.01)
    fresh = drawn[0]
    assert len(np.unique(fresh)) == 20  # each environment has its own
