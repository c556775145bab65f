"""Evaluation: complete episodes, a fixed quota per environment, raw returns, fresh seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_policy
from offpolicy.collect.evaluation import (
    MAX_EVAL_ENVS,
    Episode,
    EpisodeCallbacks,
    deterministic_actor,
    random_actor,
    run_episodes,
    step_episodes,
)
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import NumericsError
from offpolicy.nets.policy import Policy
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import SpaceSpec, StepOutcome
from tests.fakes import FakeClock

POINT_MASS = EnvConfig(id="offpolicy.envs.toy:PointMass-v0")
BATCH = {"mode": "SAME_STEP", "truncate_at": 2}
COUNTER = EnvConfig(id="tests.toys:Counter-v0", kwargs={"truncate_at": 7})


def make(obs_dim: int, action_dim: int) -> Policy:
    spec = SpaceSpec(obs_dim, action_dim, (-1.0,) * action_dim, (1.0,) * action_dim)
    torch.manual_seed(0)
    return make_policy(AlgoConfig(hidden_dims=(8,)), spec).eval()


class Scripted:
    """Environments whose episode number i lasts `lengths[i]` steps, reward 1 per step: short ones finish more often."""

    def __init__(self, lengths: Sequence[int], num_envs: int) -> None:
        self.lengths, self.num_envs = np.asarray(lengths), num_envs
        self.number = np.arange(num_envs)
        self.t = np.zeros(num_envs, np.int64)
        self.was_done = np.zeros(num_envs, np.bool_)
        self.num_steps, self.can_reset_some = 0, True
        self.begun: list[int] = []

    def reset(self, seed: int) -> np.ndarray:
        self.number = np.arange(self.num_envs)
        self.begun += self.number.tolist()
        self.t[:], self.was_done[:] = 0, False
        return self.obs()

    def reset_some(self, seed: int, numbers: list[int], where: np.ndarray) -> np.ndarray:
        self.number = np.where(where, numbers, self.number)
        self.begun += self.number[where].tolist()
        self.t[where], self.was_done[where] = 0, False
        return self.obs()

    def obs(self) -> np.ndarray:
        return self.number.astype(np.float32)[:, None]

    def step(self, action: np.ndarray) -> StepOutcome:
        self.num_steps += 1
        is_valid = ~self.was_done
        self.t = np.where(is_valid, self.t + 1, 0)
        self.was_done = (self.t >= self.lengths[self.number % len(self.lengths)]) & is_valid
        zeros, success = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.float32)
        reward = np.where(is_valid, 1.0, 100.0)  # a reset row's reward must not be counted
        return StepOutcome(self.obs(), reward, self.was_done, zeros, is_valid, success, success)


def stay(obs: np.ndarray) -> np.ndarray:
    return np.zeros((len(obs), 1), np.float32)


@pytest.mark.parametrize(
    ("env", "num_envs", "expected"),
    [
        (POINT_MASS, None, 5),  # of this package
        (EnvConfig(id="Pendulum-v1"), None, 5),
        (EnvConfig(id="tests.toys:Counter-v0", kwargs={"truncate_at": 2}), None, 1),
        (EnvConfig(id="tests.toys:Counter-v0", kwargs={"truncate_at": 2}), 3, 3),
        (EnvConfig(batch="tests.unit.envs.test_batch:gymnasium_twin", kwargs=BATCH), None, 1),
    ],
)
def test_foreign_environments_are_evaluated_one_by_one_unless_more_are_asked_for(
    env: EnvConfig, num_envs: int | None, expected: int
) -> None:
    seen = list[int]()

    def act(obs: np.ndarray) -> np.ndarray:
        seen.append(len(obs))
        return np.zeros((len(obs), 2 if env is POINT_MASS else 1), np.float32)

    found = run_episodes(act, env, episodes=5, seed=1, num_envs=num_envs)
    assert (max(seen), len(found.length)) == (expected, 5)


def test_every_environment_contributes_its_episodes_however_long_they_are() -> None:
    vector = Scripted([1, 5, 2, 3, 1], 2)
    found = step_episodes(stay, vector, 5, 0, EpisodeCallbacks())
    assert found[:, 0].tolist() == [1.0, 5.0, 2.0, 3.0, 1.0]  # by number, not by who is first
    assert found[:, 1].tolist() == [1.0, 5.0, 2.0, 3.0, 1.0]


def test_episodes_begin_alike_however_many_run_side_by_side_and_whoever_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    act = deterministic_actor(make(4, 2))
    together = run_episodes(act, POINT_MASS, episodes=5, seed=3)
    monkeypatch.setitem(MAX_EVAL_ENVS, "sync", 2)
    in_waves = run_episodes(act, POINT_MASS, episodes=5, seed=3)
    assert np.array_equal(together.ep_return, in_waves.ep_return)
    firsts: list[list[np.ndarray]] = [[], []]
    for scale, seen in zip((0.0, 0.9), firsts, strict=True):

        def other(obs: np.ndarray, scale: float = scale, seen: list[np.ndarray] = seen) -> np.ndarray:
            seen.append(obs)
            return np.full((len(obs), 2), scale, np.float32)

        run_episodes(other, POINT_MASS, episodes=2, seed=3)
    assert np.array_equal(firsts[0][0], firsts[1][0])


def test_no_environment_gets_an_action_of_nan_in_an_evaluation_either() -> None:
    policy = make(4, 2)
    for parameter in policy.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(NumericsError, match="environment 0 without exploration is NaN .* the networks have diverged"):
        run_episodes(deterministic_actor(policy), POINT_MASS, episodes=2, seed=3)


def test_a_vector_that_takes_one_seed_begins_the_episodes_that_single_environments_begin() -> None:
    """Or policies of two runs would be compared on unrelated episodes. Gymnasium's own CartPole takes one seed."""

    def returns(vectorization: str, episodes: int) -> list[float]:
        cfg = EnvConfig(id="CartPole-v1", vectorization=vectorization)
        act = lambda obs: (obs[:, 2:3] > 0.0).astype(np.float32)  # noqa: E731  # pushes to the side of the lean
        return run_episodes(act, cfg, episodes=episodes, seed=1).ep_return.tolist()

    assert returns("mujoco", 6) == returns("sync", 6)
    assert returns("mujoco", 3) == returns("mujoco", 6)[:3]


def test_random_actions_reach_both_ends_and_every_choice() -> None:
    obs = np.zeros((400, 3), np.float32)
    box = random_actor(SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2), seed=1)(obs)
    assert (box.shape, box.dtype) == ((400, 2), np.float32)
    assert box.min() < -0.95 < 0.95 < box.max()
    choices = random_actor(SpaceSpec(3, 1, (0.0,), (3.0,), num_actions=4), seed=1)(obs)
    assert set(choices[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_exactly_the_episodes_asked_for_are_counted() -> None:
    for episodes in (1, 5, 33):
        returns, lengths, _ = run_episodes(deterministic_actor(make(3, 1)), COUNTER, episodes=episodes, seed=0)
        assert len(returns) == episodes
        assert set(lengths) == {7.0}


def test_the_same_seed_gives_the_same_returns_and_another_seed_others() -> None:
    act = deterministic_actor(make(4, 2))
    first, again, other = (run_episodes(act, POINT_MASS, episodes=3, seed=seed).ep_return for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert set(first).isdisjoint(other)


def test_an_episode_has_its_steps_where_they_are_asked_for() -> None:
    episodes = list[Episode]()
    for keeps_steps in (True, False):
        callbacks = EpisodeCallbacks(on_end=episodes.append, keeps_steps=keeps_steps)
        run_episodes(deterministic_actor(make(3, 1)), COUNTER, episodes=1, seed=0, callbacks=callbacks)
    kept, bare = episodes
    assert (kept.index, kept.ep_return, kept.length, kept.terminated, kept.truncated) == (0, 28.0, 7, False, True)
    assert kept.obs[:, 1].tolist() == [*range(8)]
    assert (kept.reward.tolist(), kept.action.shape) == ([*range(1, 8)], (7, 1))
    assert (bare.ep_return, bare.length, len(bare.reward)) == (28.0, 7, 0)


def test_the_time_of_an_evaluation_is_in_its_phases() -> None:
    clock = FakeClock()
    ledger = Ledger(EvaluatorPhase, clock)
    ledger.end_warmup()
    vector = Scripted([3, 2], 1)
    step, reset_some = vector.step, vector.reset_some

    def slow_step(action: np.ndarray) -> StepOutcome:
        clock.advance(100)
        return step(action)

    def slow_reset(seed: int, numbers: list[int], where: np.ndarray) -> np.ndarray:
        clock.advance(7)
        return reset_some(seed, numbers, where)

    vector.step, vector.reset_some = slow_step, slow_reset  # type: ignore[method-assign]
    callbacks = EpisodeCallbacks(ledger=ledger, on_end=lambda episode: clock.advance(1000))
    step_episodes(stay, vector, 2, 0, callbacks)
    account = ledger.account()
    spent = {name: ns for name, ns in account.phases_ns.items() if ns}
    assert spent == {"env_step": 500, "env_reset": 7, "other": 2000}
    assert account.iterations == 5


def test_an_episode_that_would_never_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpolicy.envs.make.MAX_EPISODE_STEPS", 12)
    endless = dataclasses.replace(POINT_MASS, kwargs={"max_episode_steps": -1})
    found = run_episodes(lambda obs: np.zeros((len(obs), 2), np.float32), endless, episodes=3, seed=1)
    assert found.length.tolist() == [12.0, 12.0, 12.0]


class Failing(Scripted):
    """The observation of environment `where` is NaN from its step `at` on."""

    def __init__(self, lengths: Sequence[int], num_envs: int, where: int, at: int) -> None:
        super().__init__(lengths, num_envs)
        self.where, self.at = where, at

    def obs(self) -> np.ndarray:
        obs = super().obs()
        obs[self.where] = np.nan if self.num_steps >= self.at else obs[self.where]
        return obs


def watched() -> tuple[Callable[[np.ndarray], np.ndarray], list[np.ndarray]]:
    """An actor, and the observations that it has acted on."""
    seen: list[np.ndarray] = []
    return lambda obs: (seen.append(obs), stay(obs))[1], seen


@pytest.mark.parametrize(("at", "text"), [(0, "0 steps"), (3, "3 steps")])
def test_an_episode_that_goes_on_with_nan_is_an_error_and_no_policy_acts_on_it(at: int, text: str) -> None:
    act, seen = watched()
    with pytest.raises(BadEpisodeError, match=rf"episode 1 of the evaluation, after {text}$"):
        step_episodes(act, Failing([9, 9], 2, where=1, at=at), 2, 0, EpisodeCallbacks())
    assert len(seen) == at
    assert all(np.isfinite(obs).all() for obs in seen)


def test_what_is_observed_after_the_last_episode_of_an_environment_is_no_error_and_no_policy_acts_on_it() -> None:
    act, seen = watched()
    found = step_episodes(act, Failing([5, 2], 2, where=1, at=2), 2, 0, EpisodeCallbacks())
    assert found[:, 0].tolist() == [5.0, 2.0]
    assert [obs[1, 0] for obs in seen] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert seen[-1].dtype == np.float32


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_is_an_error_but_for_one_after_the_last_episode(reward: float) -> None:
    def vector(env: int) -> Scripted:
        made = Scripted([1, 3], 2)
        step = made.step

        def fail(action: np.ndarray) -> StepOutcome:
            outcome = step(action)
            outcome.reward[env] = reward if made.num_steps == 2 else outcome.reward[env]
            return outcome

        made.step = fail  # type: ignore[method-assign]
        return made

    assert step_episodes(stay, vector(0), 2, 0, EpisodeCallbacks())[:, 0].tolist() == [1.0, 3.0]
    with pytest.raises(BadEpisodeError, match="NaN or Inf in a reward .*: episode 1 of the evaluation, after 2 steps"):
        step_episodes(stay, vector(1), 2, 0, EpisodeCallbacks())
