"""A hand that observes nothing: `python -m benchmarks.hand_gait [episodes] [period]`, the number to beat in hora.md.

All fingers press and sweep one way, then open and sweep back, on a clock. Physics are those that no policy trains on.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.hand.env import HandRotationVector
from offpolicy.envs.hand.rotation import ACTION_SCALE

NUM_STEPS = 400  # of one episode: 20 s
AMPLITUDE_RAD = 0.5  # of the sweep
PRESSING, OPEN = (0.17, 1.05, 0.9), (-0.25, 0.7, 0.9)  # the other joints of a finger, in rad


def pose(step: int, period: int) -> NDArray[np.float64]:
    """Returns the joint targets [16] of the gait at a step."""
    phase = (step % period) / period
    sweep = AMPLITUDE_RAD * (1.0 - 4.0 * phase if phase < 0.5 else 4.0 * phase - 3.0)
    return np.tile((sweep, *(PRESSING if phase < 0.5 else OPEN)), 4)


def measure(num_episodes: int, period: int) -> dict[str, NDArray[np.float64]]:
    """Returns net rotation in rad, length in steps and return of every episode."""
    hands = HandRotationVector(num_episodes, groups=["obs"], physics="held_out")
    hands.reset(seed=list(range(1000, 1000 + num_episodes)))
    running = np.ones(num_episodes, np.bool_)
    totals = {name: np.zeros(num_episodes) for name in ("rotation", "length", "return")}
    for step in range(NUM_STEPS):
        action = np.clip((pose(step, period) - hands._hands._ctrl) / ACTION_SCALE, -1.0, 1.0)
        _, reward, terminated, truncated, info = hands.step(action.astype(np.float32))
        totals["return"] += np.where(running, reward, 0.0)
        totals["length"] += running
        totals["rotation"] = np.where(running, info["net_rotation"], totals["rotation"])
        running &= ~(terminated | truncated)
    return totals


def main(num_episodes: int = 400, period: int = 10) -> None:
    """Prints the means with the half-width of their 95 % interval."""
    for name, values in measure(num_episodes, period).items():
        half = 1.96 * values.std() / np.sqrt(num_episodes)
        print(f"{name:>9} {values.mean():7.1f} +- {half:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
