"""`python -m benchmarks.learning.hand_gaits [gaits]`: how far a hand turns its object that observes nothing.

A gait is a movement of the fingers on a clock. Many are drawn at random and tried with the physics of training; the
best of them, in rotation and in return, then play the held-out episodes that the policies of docs/results.md play.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.results import save_policies
from benchmarks.learning.studies import HELD_OUT_EPISODES, HELD_OUT_SEED
from offpolicy.envs.hand import MAX_EPISODE_STEPS
from offpolicy.envs.hand.env import HandRotationVector
from offpolicy.envs.hand.rotation import ACTION_SCALE
from offpolicy.types import Float64

TASKS = {"rotation": "offpolicy.envs.hand:HandRotation-v1", "spin": "offpolicy.envs.hand:HandSpin-v0"}
NUM_GAITS, FINALISTS = 200, 5
SEARCH_EPISODES, SEARCH_SEED = 32, 50_000
HANDS_AT_ONCE = 640
# Where the fingers are, in parts of the gait's period: all together, in opposite pairs, or one after another.
ORDERS: Mapping[str, tuple[float, ...]] = {
    "together": (0.0, 0.0, 0.0, 0.0),
    "pairs": (0.0, 0.5, 0.0, 0.5),
    "wave": (0.0, 0.25, 0.5, 0.75),
    "back": (0.0, 0.75, 0.5, 0.25),
}
PRESSING, OPEN = np.array((0.17, 1.05, 0.9)), np.array((-0.25, 0.7, 0.9))  # a finger without its sweep, in rad


class Gait(NamedTuple):
    """Fingers that press and sweep one way, then lift and sweep back."""

    order: str
    period: int  # steps
    amplitude: float  # of the sweep, in rad
    duty: float  # part of the period in which a finger presses
    press: float  # how much further than `PRESSING` it closes, in rad
    lift: float  # how far it opens for the way back: 1 is `OPEN`

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Gait:
        """Returns one at random."""
        order, period = str(rng.choice(list(ORDERS))), int(rng.integers(6, 41))
        amplitude, duty = rng.uniform(0.15, 0.6), rng.uniform(0.4, 0.85)
        return cls(order, period, amplitude, duty, rng.uniform(-0.1, 0.3), rng.uniform(0.1, 1.0))

    def targets(self, step: int) -> Float64:
        """Returns the targets of the joints [16] at a step."""
        phase = (step / self.period + np.array(ORDERS[self.order])) % 1.0
        presses = phase < self.duty
        there, back = 1.0 - 2.0 * phase / self.duty, 2.0 * (phase - self.duty) / (1.0 - self.duty) - 1.0
        sweep = self.amplitude * np.where(presses, there, back)
        closed = PRESSING + self.press * np.array((1.0, 0.5, 0.0))
        flexed = np.where(presses[:, None], closed, closed + self.lift * (OPEN - PRESSING))
        return np.concatenate((sweep[:, None], flexed), axis=1).ravel()


class Played(NamedTuple):
    """Complete episodes of some gaits, [gaits, episodes]."""

    ep_return: Float64
    rotation: Float64  # rad


def play(gaits: Sequence[Gait], task: str, physics: str, seeds: Sequence[int]) -> Played:
    """Plays one episode of every gait from each start."""
    hands = HandRotationVector(len(gaits) * len(seeds), groups=["obs"], physics=physics, task=task, num_threads=2)
    hands.reset(seed=[*seeds] * len(gaits))
    running: NDArray[np.bool_] = np.ones(hands.num_envs, np.bool_)
    totals, turned = np.zeros(hands.num_envs), np.zeros(hands.num_envs)
    for step in range(MAX_EPISODE_STEPS):
        targets = np.repeat([gait.targets(step) for gait in gaits], len(seeds), axis=0)
        action = np.clip((targets - hands.targets) / ACTION_SCALE, -1.0, 1.0)
        _, reward, terminated, truncated, info = hands.step(action.astype(np.float32))
        totals += np.where(running, reward, 0.0)
        turned = np.where(running, info["net_rotation"], turned)
        running &= ~(terminated | truncated)
    shape = (len(gaits), len(seeds))
    return Played(totals.reshape(shape), turned.reshape(shape))


def searched(task: str, count: int) -> tuple[list[Gait], Played]:
    """Plays random gaits with the physics of training."""
    rng = np.random.default_rng(0)
    gaits = [Gait.drawn(rng) for _ in range(count)]
    seeds = range(SEARCH_SEED, SEARCH_SEED + SEARCH_EPISODES)
    at_once = HANDS_AT_ONCE // SEARCH_EPISODES
    parts = [play(gaits[first : first + at_once], task, "train", seeds) for first in range(0, count, at_once)]
    return gaits, Played(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def held_out(gaits: Sequence[Gait], found: Played, task: str) -> dict[str, dict[str, Any]]:  # Any: JSON data
    """Returns the best gaits of a search in the held-out episodes: in rotation, and in return."""
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + HELD_OUT_EPISODES)
    best = [values.mean(axis=1).argsort()[::-1][:FINALISTS] for values in (found.rotation, found.ep_return)]
    finalists = [gaits[index] for index in dict.fromkeys(np.concatenate(best))]
    each = [play([gait], task, "held_out", seeds) for gait in finalists]
    played = Played(*(np.concatenate(parts) for parts in zip(*each, strict=True)))
    means = {"rotation": played.rotation.mean(axis=1), "return": played.ep_return.mean(axis=1)}
    return {
        f"gait, {measure}": {
            "episodes": len(seeds), "mean": float(means["return"][index]),
            "std": float(played.ep_return[index].std()), "net_rotation": float(means["rotation"][index]),
            "searched": len(gaits), "gait": finalists[index]._asdict(),
        }
        for measure, values in means.items() for index in [int(values.argmax())]
    }  # fmt: skip


def main(count: int = NUM_GAITS) -> None:
    """Searches for both tasks, and writes what was found down."""
    for task, env_id in TASKS.items():
        found = held_out(*searched(task, count), task)
        save_policies(env_id, found)
        for name, one in found.items():
            text = f"return {one['mean']:.1f}, {one['net_rotation']:.2f} rad, {one['gait']}"
            print(f"{task}: best {name}: {text}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
