"""Evaluation of a policy on newly made, seeded environments."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from offpolicy.collect.policy import BadEpisodeError, random_actions, require_sound
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.make import with_time_limit
from offpolicy.envs.vector import make_vector, takes_a_seed_each
from offpolicy.envs.vectorization import has_single, is_batch, is_own
from offpolicy.errors import EnvFailure
from offpolicy.nets.policy import Policy
from offpolicy.seeding import env_seed, generator
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import Episodes, Float32, Float64, SpaceSpec

# Most environments side by side: those that are stepped in one call cost little more when they are many.
MAX_EVAL_ENVS = {"sync": 16, "mujoco": 128}
Actor = Callable[[Float32], Float32]  # observations [N, O] to actions [N, A]


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode. L is its length, in its arrays 0 where its steps were not asked for."""

    index: int  # number in the evaluation, each of which begins with the same seeds
    ep_return: float  # raw, undiscounted
    length: int
    success: float  # 1 or 0 if the environment says so, else NaN
    measure: float  # value of `env.measure`, else NaN
    terminated: bool
    truncated: bool
    obs: Float32  # [L + 1, O] flattened, the final one included
    action: Float32  # [L, A] in [-1, 1], or the numbers of discrete ones
    reward: Float64  # [L] raw


@dataclass(frozen=True, slots=True)
class EpisodeCallbacks:
    """Functions that are called while episodes run."""

    # At every vector step, and as each environment is made or, with `sync`, reset or stepped.
    should_stop: Callable[[], bool] = lambda: False
    on_spaces: Callable[[SpaceSpec], object] = lambda spec: None  # before the first reset, with the environments' own
    on_end: Callable[[Episode], object] = lambda episode: None  # at the end of each episode
    keeps_steps: bool = False  # True: the episodes have their steps
    # Gets what closes environments that have failed: it may hang, and why they failed would never be known.
    close_failed: Callable[[Callable[[], object]], object] = lambda close: close()
    ledger: Ledger = field(default_factory=NullLedger)


def deterministic_actor(policy: Policy) -> Actor:
    """Returns the policy's deterministic actions as a function of arrays.

    The function raises `NumericsError` where an action is NaN or Inf and its observation is sound.
    """
    device = next(policy.parameters()).device

    def act(obs: Float32) -> Float32:
        with torch.inference_mode():
            action: Float32 = policy.act(torch.from_numpy(obs).to(device)).cpu().numpy()
        require_sound(action, obs)
        return action

    return act


def random_actor(spec: SpaceSpec, seed: int) -> Actor:
    """Returns uniformly random actions, from [-1, 1] or from the numbers of discrete ones."""
    rng = generator(seed, "random_policy")
    return lambda obs: random_actions(spec, rng, len(obs))


def run_episodes(  # noqa: PLR0913  # the options of an evaluation
    act: Actor,
    env: EnvConfig,
    *,
    episodes: int,
    seed: int,
    num_envs: int | None = None,
    callbacks: EpisodeCallbacks | None = None,
) -> Episodes:
    """Runs `episodes` complete episodes, each with its own seed, `num_envs` at once; fewer if stopped.

    `num_envs` is `eval.num_envs`. Raises `EnvFailure`, `BadEpisodeError`, and what `act` raises.
    """
    callbacks = callbacks or EpisodeCallbacks()
    with callbacks.ledger.phase(EvaluatorPhase.ENV_RESET):
        vector = _make_vector(with_time_limit(env), episodes, num_envs, callbacks.should_stop)
    with contextlib.ExitStack() as closing:
        closing.callback(vector.close)
        callbacks.on_spaces(vector.spec)
        try:
            found = step_episodes(act, vector, episodes, env_seed(seed, "evaluation"), callbacks)
        except EnvFailure:
            closing.pop_all()
            callbacks.close_failed(vector.close)
            raise
    return Episodes(*found[np.isfinite(found[:, 1])].T)  # those that have a length


def _make_vector(env: EnvConfig, episodes: int, num_envs: int | None, should_stop: Callable[[], bool]) -> VectorAdapter:
    """Returns the environments of an evaluation, in one call where they are trained so.

    A vector that takes one seed would begin other episodes than single environments: those are taken where there are.
    """
    if not is_batch(env) or (has_single(env) and not takes_a_seed_each(env)):
        env = dataclasses.replace(env, vectorization="sync")
    most = MAX_EVAL_ENVS["mujoco" if is_batch(env) else "sync"] if is_own(env) else 1
    return make_vector(env, min(episodes, num_envs or most), should_stop)


def step_episodes(act: Actor, vector: VectorAdapter, episodes: int, seed: int, callbacks: EpisodeCallbacks) -> Float64:
    """Returns return, length and measure of every episode [E, 3]; NaN for one that was not finished.

    Environment i runs the episodes i, i + N, i + 2N ..., one after another: which ones are run, and in which
    environment, does not depend on which finishes first; that would favour short ones. Raises `BadEpisodeError`.
    """
    phase, num_envs = callbacks.ledger.phase, vector.num_envs
    found = np.full((episodes, 3), np.nan)
    number = np.arange(num_envs)  # [N] episode of each environment
    is_running = number < episodes
    ep_return, length = np.zeros(num_envs), np.zeros(num_envs, np.int64)
    steps: list[list[tuple[Float32, Float32, float]]] = [[] for _ in range(num_envs)]  # obs, action, reward
    with phase(EvaluatorPhase.ENV_RESET):
        obs = vector.reset(seed)
    while is_running.any() and not callbacks.should_stop():
        if len(bad := np.flatnonzero(is_running & ~np.isfinite(obs).all(axis=1))):
            raise BadEpisodeError.of("an observation", int(number[bad[0]]), int(length[bad[0]]))
        with phase(EvaluatorPhase.ACTION_SELECT):
            # Zeros for NaN and Inf of environments whose last episode is over.
            action = act(np.where(np.isfinite(obs), obs, np.float32(0.0)))
        with phase(EvaluatorPhase.ENV_STEP):
            outcome = vector.step(action)
        is_counted = is_running & outcome.is_valid  # a row that begins an episode is no step of it
        ep_return += np.where(is_counted, outcome.reward, 0.0)
        length += is_counted
        if callbacks.keeps_steps:
            for env in np.flatnonzero(is_counted).tolist():
                steps[env].append((obs[env], action[env], float(outcome.reward[env])))
        obs = outcome.next_obs
        if len(bad := np.flatnonzero(is_running & ~np.isfinite(outcome.reward))):
            raise BadEpisodeError.of("a reward", int(number[bad[0]]), int(length[bad[0]]))
        is_over = (outcome.terminated | outcome.truncated) & is_running
        for env in np.flatnonzero(is_over).tolist():
            episode = Episode(
                index=int(number[env]),
                ep_return=float(ep_return[env]),
                length=int(length[env]),
                success=float(outcome.success[env]),
                measure=float(outcome.measure[env]),
                terminated=bool(outcome.terminated[env]),
                truncated=bool(outcome.truncated[env]),
                obs=np.array([*(before for before, _, _ in steps[env]), obs[env]], np.float32),
                action=np.array([action for _, action, _ in steps[env]], np.float32),
                reward=np.array([reward for _, _, reward in steps[env]], np.float64),
            )
            found[episode.index] = episode.ep_return, episode.length, episode.measure
            callbacks.on_end(episode)
            ep_return[env], length[env], steps[env] = 0.0, 0, []
        obs = outcome.obs_to_act_on
        is_running &= ~is_over
        begins = is_over & (number + num_envs < episodes)
        if begins.any() and not callbacks.should_stop():  # a stop does not wait for the reset of a slow environment
            number = np.where(begins, number + num_envs, number)
            is_running |= begins
            if vector.can_reset_some:  # else the next episodes of the vector count, whatever their seeds are
                with phase(EvaluatorPhase.ENV_RESET):
                    obs = vector.reset_some(seed, number.tolist(), begins)
        callbacks.ledger.close()
    return found
