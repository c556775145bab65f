"""Evaluation of a policy on fresh, seeded environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from offpolicy.collect.post import Episode, Interval
from offpolicy.collect.tracks import Tracks
from offpolicy.config.schema import EnvConfig
from offpolicy.envs.vector import make_vector
from offpolicy.nets.policy import Policy
from offpolicy.seeding import env_seed, generator
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.timing.ledger import NullLedger, TimeAccount
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import Bool, Episodes, EvalResult, Float32, Float64, SpaceSpec, StepOutcome

# Environments side by side: those that are stepped in one call cost little more when they are many.
MAX_EVAL_ENVS = {"sync": 16, "mujoco": 128}
Actor = Callable[[Float32], Float32]  # observations [N, O] to actions [N, A]


class Vector(Protocol):
    """What an evaluation needs of the environments, `VectorAdapter` or another."""

    num_envs: int
    begins_singly: bool

    def reset(self, seed: int, first: int = 0) -> Float32: ...

    def begin(self, seed: int, numbers: list[int], where: Bool) -> Float32: ...

    def step(self, action: Float32) -> StepOutcome: ...


def never() -> bool:
    """Do not stop."""
    return False


@dataclass(frozen=True, slots=True)
class Watch:
    """Who follows an evaluation while it goes on."""

    should_stop: Callable[[], bool] = never  # asked at every vector step; also as each environment is made or reset
    on_end: Callable[[Episode, Interval], None] | None = None  # called at the end of each episode, with when it was
    on_pause: Callable[[Interval], None] | None = None  # called when the ends of one vector step have been told
    env_steps: int = 0  # what the episodes are told to be of
    policy_version: int = 0
    ledger: TimeAccount = field(default_factory=NullLedger)
    clock: Clock = field(default_factory=MonotonicClock)


def evaluate(policy: Policy, env: EnvConfig, *, episodes: int, seed: int, watch: Watch) -> EvalResult | None:
    """Mean and standard deviation of the raw returns of `episodes` complete episodes of the deterministic policy.

    Told to stop, there is no result.
    """
    found = run_episodes(acting(policy), env, episodes=episodes, seed=seed, watch=watch)
    if len(found.ep_return) < episodes:
        return None
    returns, lengths = found.ep_return, found.length
    means = float(returns.mean()), float(returns.std()), float(lengths.mean())
    return EvalResult(watch.env_steps, *means, episodes, watch.policy_version)


def acting(policy: Policy) -> Actor:
    """A policy as its deterministic actions, of arrays."""
    device = next(policy.parameters()).device

    def act(obs: Float32) -> Float32:
        with torch.inference_mode():
            action: Float32 = policy.act(torch.from_numpy(obs).to(device)).cpu().numpy()
        return action

    return act


def random_actions(spec: SpaceSpec, seed: int) -> Actor:
    """Actions drawn uniformly, whatever is observed: from [-1, 1], or from the numbers of discrete ones."""
    rng = generator(seed, "random_policy")
    if spec.num_actions:
        return lambda obs: rng.integers(spec.num_actions, size=(len(obs), 1)).astype(np.float32)
    return lambda obs: rng.uniform(-1.0, 1.0, (len(obs), spec.action_dim)).astype(np.float32)


def run_episodes(act: Actor, env: EnvConfig, *, episodes: int, seed: int, watch: Watch | None = None) -> Episodes:
    """`episodes` complete episodes, each begun with a seed of its own; fewer when told to stop."""
    watch = watch or Watch()
    vectorization = "mujoco" if env.vectorization == "mujoco" else "sync"
    num_envs = min(episodes, MAX_EVAL_ENVS[vectorization])
    with watch.ledger.phase(EvaluatorPhase.ENV_RESET):
        vector = make_vector(dataclasses.replace(env, vectorization=vectorization), num_envs, watch.should_stop)
    try:
        found = play(act, vector, episodes=episodes, seed=env_seed(seed, "evaluation"), watch=watch)
    finally:
        vector.close()
    return Episodes(*found[np.isfinite(found[:, 1])].T)  # those that have a length


def play(act: Actor, vector: Vector, *, episodes: int, seed: int, watch: Watch) -> Float64:
    """Return, length and measure of every episode [E, 3]; NaN for one that was not finished.

    Environment i plays the episodes i, i + N, i + 2N ...: which ones are played, and in which environment, does not
    depend on who is first to finish, which would favour short ones. It begins the next one at once; where the
    environments can only be reset together, once all have finished (`begins_singly`).
    """
    phase, num_envs = watch.ledger.phase, vector.num_envs
    found = np.full((episodes, 3), np.nan)
    number = np.arange(num_envs)  # [N] of the episode that each environment plays
    is_playing = number < episodes
    with phase(EvaluatorPhase.ENV_RESET):
        obs = vector.reset(seed)
    tracks = Tracks(obs, watch.clock.now_ns(), keeps_steps=watch.on_end is not None)
    while is_playing.any() and not watch.should_stop():
        with phase(EvaluatorPhase.ACTION_SELECT):
            action = act(obs)
        with phase(EvaluatorPhase.ENV_STEP):
            outcome = vector.step(action)
        obs = outcome.next_obs
        tracks.add(action, outcome, is_playing)
        ends = (outcome.terminated | outcome.truncated) & is_playing
        for env in np.flatnonzero(ends).tolist():
            found[number[env]] = tracks.result(env)
        _hand_over(watch, tracks, ends, number)
        is_playing &= ~ends
        begins = _begins(number, ends, is_playing, episodes, begins_singly=vector.begins_singly)
        if begins.any() and not watch.should_stop():  # a slow environment is not reset once more for nothing
            number = np.where(begins, number + num_envs, number)
            is_playing |= begins
            with phase(EvaluatorPhase.ENV_RESET):
                obs = _begin(vector, seed, number, begins)
            tracks.begin(begins, obs, watch.clock.now_ns())
        watch.ledger.close()
    return found


def _begins(number: NDArray[np.int64], ends: Bool, is_playing: Bool, episodes: int, *, begins_singly: bool) -> Bool:
    """Where the next episode begins now [N]."""
    may_begin = ends if begins_singly else np.full(len(ends), not is_playing.any())
    begins: Bool = may_begin & (number + len(number) < episodes)
    return begins


def _begin(vector: Vector, seed: int, number: NDArray[np.int64], begins: Bool) -> Float32:
    """Begin the episodes `number` [N] where they begin; where that cannot be told apart, everywhere."""
    if vector.begins_singly:
        return vector.begin(seed, number.tolist(), begins)
    return vector.reset(seed, int(number[0]))


def _hand_over(watch: Watch, tracks: Tracks, ends: Bool, number: NDArray[np.int64]) -> None:
    """Tell of the episodes `number` [N] where one has ended [N]; no other one goes on meanwhile."""
    if watch.on_end is None or not ends.any():
        return
    ended_ns = watch.clock.now_ns()  # of all of them: who is told of later has not played on
    for env in np.flatnonzero(ends).tolist():
        episode = tracks.episode(env, int(number[env]), watch.env_steps, watch.policy_version)
        with watch.ledger.phase(EvaluatorPhase.POST_BACKPRESSURE):
            watch.on_end(episode, Interval(tracks.started_ns[env], ended_ns))
    if watch.on_pause is not None:
        watch.on_pause(Interval(ended_ns, watch.clock.now_ns()))
