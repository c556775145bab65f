"""Whether an exported policy decides as the run's own: on random observations and on those that the policy visits."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from offpolicy.collect.evaluation import Actor, EpisodeCallbacks, run_episodes
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.spaces import Codec, action_map
from offpolicy.export.env_policy import ACTION, PROBABILITY, DiscreteActor, EnvPolicy, Part
from offpolicy.export.formats import Array, Runner
from offpolicy.nets.policy import Policy
from offpolicy.seeding import generator
from offpolicy.types import Float32, Float64

ROWS = 10_000  # observations of each kind
LIMIT = 1e-5  # difference that is always allowed, in units of half of an action's range; of discrete actions: chance
ROUNDINGS = 4.0  # of the policy itself that a difference may be, where that is more
MOST = 1e-2  # that any difference may be
SPREAD = 3.0  # of random observations, in standard deviations of the visited ones


@dataclass(frozen=True, slots=True)
class Parity:
    """The largest differences between an exported policy and the run's own."""

    random: float
    visited: float
    rows: int  # of each kind
    random_limit: float = LIMIT
    visited_limit: float = LIMIT

    @property
    def is_fine(self) -> bool:
        """True if no difference is above its limit; NaN is."""
        return self.random <= self.random_limit and self.visited <= self.visited_limit

    def to_json(self) -> dict[str, float | int]:
        """Returns plain data; a difference that is not finite becomes the largest float."""
        return {name: min(value, sys.float_info.max) for name, value in asdict(self).items()}


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
    found = run(inputs_of(module.parts, obs))
    with torch.inference_mode():
        decided = policy.act(torch.from_numpy(obs)).numpy()
    if codec.spec.choices:
        worst = _of_choices(found, module, codec, obs, decided)
    else:
        worst = _of_box(found[ACTION].reshape(len(obs), -1), action_map(codec)(decided), codec)
    return worst if np.isfinite(worst) else np.inf


def limit_of(codec: Codec, policy: Policy, obs: Float32) -> float:
    """Returns the largest `difference` on observations [N, O] that may be rounding.

    Sums of hundreds of large observations are known to fewer digits than `LIMIT`: how many, the distance of the policy
    from itself in float64 says. No policy is allowed more than `MOST`: what float32 determines less is not the same.
    """
    rows = torch.from_numpy(obs)
    try:
        with torch.inference_mode():
            own = _decision(codec, policy, rows)
            exact = _decision(codec, copy.deepcopy(policy).double(), rows.double())
    except RuntimeError:  # an encoder of a plug-in that knows only float32
        return LIMIT
    rounding = float((own.double() - exact).abs().max())
    return min(MOST, max(LIMIT, ROUNDINGS * rounding)) if np.isfinite(rounding) else LIMIT


def _decision(codec: Codec, policy: Policy, rows: Tensor) -> Tensor:
    """Returns actions [N, A] of [-1, 1], or the probabilities [N, K] of discrete ones."""
    if not codec.spec.choices:
        return policy.act(rows)
    assert isinstance(policy.actor, DiscreteActor)
    return policy.actor.distribution(policy.normalize(rows))[0].exp()


def _of_box(got: Array, own: Array, codec: Codec) -> float:
    """Returns the largest difference of actions [N, A] in the environment's dtype."""
    whole = np.asarray(codec.spec.action_high) - np.asarray(codec.spec.action_low)
    half = np.where(whole > 0.0, whole / 2.0, 1.0)  # [A]
    unit = np.spacing(np.abs(own)).astype(np.float64) / half  # [N, A]
    far = np.abs(got.astype(np.float64) - own.astype(np.float64)) / half
    is_rounding = (far <= unit) & (unit > LIMIT)
    return float(np.where(is_rounding, 0.0, far).max())


def inputs_of(parts: tuple[Part, ...], obs: Float32) -> dict[str, Array]:
    """Returns flattened observations [N, O] as the inputs by name, each [N, shape of the part]."""
    return {
        part.name: np.ascontiguousarray(obs[:, part.start : part.start + part.size].reshape(-1, *part.shape))
        for part in parts
    }


def _of_choices(found: Mapping[str, Array], module: EnvPolicy, codec: Codec, obs: Float32, decided: Float32) -> float:
    with torch.inference_mode():
        parts = inputs_of(module.parts, obs).values()
        own: Float64 = module(*map(torch.from_numpy, parts))[1].double().numpy()
    first = np.asarray(codec.spec.action_low, np.int64)
    chosen = found[ACTION].reshape(len(obs), -1) - first
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
