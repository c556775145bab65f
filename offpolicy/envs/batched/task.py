"""What a task is for N simulations at once: first states, observations, rewards and terminations.

Each subclass is one of Gymnasium's v5 classes, formula by formula and in the same order of operations, so that every
number comes out with the same bits. Parameters have the names and defaults of Gymnasium's constructor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array, Simulations
from offpolicy.types import Bool

Params = Mapping[str, Any]  # Any: the keyword arguments of Gymnasium's constructor, defaults included
Info = dict[str, NDArray[Any]]


class State(NamedTuple):
    """Positions and velocities of one simulation."""

    qpos: Array  # [nq]
    qvel: Array  # [nv]


class Outcome(NamedTuple):
    """One step of N environments."""

    reward: Array  # [N]
    terminated: Bool  # [N]
    info: Info  # [N] each: what only a step reports, such as the parts of the reward


class Task:
    """N environments of one task, without their random numbers and time limits."""

    has_contact_forces: ClassVar[bool] = False  # the task reads `cfrc_ext`

    def __init__(self, sims: Simulations, start: State, dt: float, params: Params) -> None:
        """`start` is what a reset adds its noise to; `dt` is the time of one action, in s."""
        self.sims, self.first, self.dt, self.params = sims, start, dt, params
        self.never: Bool = np.zeros(sims.num_envs, np.bool_)  # [N] terminations of a task that has none

    def draw(self, rng: np.random.Generator) -> State:
        """Returns the first state of an episode, noise included."""
        scale = self.params["reset_noise_scale"]
        qpos = self.first.qpos + rng.uniform(-scale, scale, len(self.first.qpos))
        return State(qpos, self.first.qvel + self.velocity_noise(rng, scale))

    def velocity_noise(self, rng: np.random.Generator, scale: float) -> Array:
        """Returns the noise of the first velocities [nv]: uniform here, normal in some tasks."""
        return rng.uniform(-scale, scale, len(self.first.qvel))

    def position(self) -> Array:
        """Returns the place whose change is the velocity of the reward, in m [N, 0 to 2]."""
        return np.zeros((self.sims.num_envs, 0))

    def observe(self) -> Array:
        """Returns the observations [N, O]."""
        raise NotImplementedError

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        """Returns rewards and terminations of a step. action: [N, A]; moved: change of `position` [N, ...]."""
        raise NotImplementedError

    def state_info(self) -> Info:
        """Returns what a reset and a step report alike, [N] each."""
        return {}


def squares(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Returns the sum of the squares of each environment's numbers [N, ...]. -> [N], in the same dtype."""
    total: NDArray[np.floating[Any]] = np.square(values).reshape(len(values), -1).sum(axis=1)
    return total


def length(vectors: Array) -> Array:
    """Returns the Euclidean length of vectors [N, 3]. -> [N]; by the dot product of `np.linalg.norm`, to the bit."""
    lengths: Array = np.sqrt(np.vecdot(vectors, vectors))
    return lengths


def is_between(values: Array, bounds: tuple[float, float]) -> Bool:
    """True where a value is inside an open interval. [N]."""
    low, high = bounds
    inside: Bool = (low < values) & (values < high)
    return inside
