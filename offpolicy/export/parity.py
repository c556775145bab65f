"""Whether an exported policy decides as the run's own: on random observations and on those that the policy visits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from offpolicy.collect.evaluation import Actor, EpisodeCallbacks, run_episodes
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.spaces import Codec, action_map
from offpolicy.export.env_policy import ACTION, PROBABILITY, EnvPolicy
from offpolicy.export.formats import Array, Runner
from offpolicy.nets.policy import Policy
from offpolicy.seeding import generator
from offpolicy.types import Float32, Float64

ROWS = 10_000  # observations of each kind
LIMIT = 1e-4  # difference that is allowed, in units of half of an action's range; of discrete actions: probability
SPREAD = 3.0  # of random observations, in standard deviations of the visited ones


def visited_observations(act: Actor, env: EnvConfig, *, seed: int, rows: int = ROWS) -> Float32:
    """Returns the first observations [rows, O] that the policy sees in episodes that begin like an evaluation's."""
    seen, count = list[Float32](), 0

    def watched(obs: Float32) -> Float32:
        nonlocal count
        seen.append(obs.copy())
        count += len(obs)
        return act(obs)

    # An episode has at least one step, so these are enough; most are never begun.
    run_episodes(watched, env, episodes=rows, seed=seed, callbacks=EpisodeCallbacks(should_stop=lambda: count >= rows))
    found: Float32 = np.concatenate(seen)[:rows]
    return found


def random_observations(visited: Float32, *, seed: int, rows: int = ROWS) -> Float32:
    """Returns normally distributed observations [rows, O], `SPREAD` times as wide as the visited ones."""
    rng, spread = generator(seed, "random_policy"), visited.std(axis=0, dtype=np.float64)
    spread = np.where(spread > 0.0, SPREAD * spread, 1.0)
    drawn = visited.mean(axis=0, dtype=np.float64) + spread * rng.standard_normal((rows, visited.shape[1]))
    found: Float32 = drawn.astype(np.float32)
    return found


def difference(run: Runner, module: EnvPolicy, codec: Codec, policy: Policy, obs: Float32) -> float:
    """Returns how far the exported policy is from the policy itself on observations [N, O]; infinite for NaN.

    Of a Box: the largest difference of an action, in units of half of its range. One unit in the last place is nothing
    where that is above `LIMIT`, as it is for float16. Of discrete actions: the largest difference of a probability, or,
    where another action is chosen, how much likelier the policy's own choice is.
    """
    inputs = inputs_of(module, obs)
    found = run(inputs)
    with torch.inference_mode():
        decided = policy.act(torch.from_numpy(obs)).numpy()
    if codec.spec.choices:
        worst = _of_choices(found, module, codec, inputs, decided)
    else:
        own, got = action_map(codec)(decided), found[ACTION].reshape(len(obs), -1)  # [N, A]
        whole = np.asarray(codec.spec.action_high) - np.asarray(codec.spec.action_low)
        half = np.where(whole > 0.0, whole / 2.0, 1.0)  # [A]
        unit = np.spacing(np.abs(own)).astype(np.float64) / half
        far = np.abs(got.astype(np.float64) - own.astype(np.float64)) / half
        worst = float(np.where((far <= unit) & (unit > LIMIT), 0.0, far).max())
    return worst if np.isfinite(worst) else np.inf


def inputs_of(module: EnvPolicy, obs: Float32) -> dict[str, Array]:
    """Returns flattened observations [N, O] as the inputs by name, each [N, shape of the part]."""
    return {
        name: np.ascontiguousarray(obs[:, part.start : part.stop].reshape(-1, *part.shape))
        for name, part in zip(module.input_names, module.parts, strict=True)
    }


def _of_choices(
    found: Mapping[str, Array], module: EnvPolicy, codec: Codec, inputs: Mapping[str, Array], decided: Float32
) -> float:
    with torch.inference_mode():
        own: Float64 = module(*map(torch.from_numpy, inputs.values()))[1].double().numpy()
    chosen = found[ACTION].reshape(len(own), -1) - np.asarray(codec.spec.action_low, np.int64)
    worst, begin = float(np.abs(found[PROBABILITY] - own).max()), 0
    for choice, count in enumerate(codec.spec.choices):
        probability = own[:, begin : begin + count]
        numbers = np.stack([decided[:, choice].astype(np.int64), chosen[:, choice]], axis=1)
        if (numbers < 0).any() or (numbers >= count).any():
            return np.inf
        both = np.take_along_axis(probability, numbers, axis=1)
        worst = max(worst, float(np.abs(both[:, 0] - both[:, 1]).max()))
        begin += count
    return worst
