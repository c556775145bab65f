"""The races, and what every contender does in them: read back from its own objects after a repeat, and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

UPDATES_SLACK = 0.05  # fraction by which the updates of a run may differ from those asked for
# Updates by which those of every run may differ, one at either end of its learning: the random steps end within a
# vector step, and the last vector step may have no update yet.
FEWEST_SLACK = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """SAC or TD3 on HalfCheetah-v5 with one gradient update per vector step of all environments."""

    algo: str
    num_envs: int
    env_id: str = "HalfCheetah-v5"
    batch_size: int = 256
    hidden_dims: tuple[int, ...] = (256, 256)  # of the actor and of each of two critics
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    learning_starts: int = 1000  # env steps
    capacity: int = 1_000_000  # rows of the replay
    policy_delay: int = 1  # critic updates per actor update

    @classmethod
    def of(cls, algo: str, num_envs: int = 1) -> Settings:
        """Returns the settings of an algorithm; TD3 delays its actor as its paper does."""
        return cls(algo, num_envs, policy_delay=2 if algo == "td3" else 1)

    @property
    def utd(self) -> float:
        """Gradient updates per env step."""
        return 1.0 / self.num_envs

    def to_mapping(self) -> dict[str, Any]:
        """Returns the settings as JSON data."""
        return asdict(self) | {"hidden_dims": list(self.hidden_dims)}


class Workload(NamedTuple):
    """A race."""

    title: str
    settings: Settings


WORKLOADS: Mapping[str, Workload] = {
    "sac-1": Workload("SAC, one environment, one update per env step", Settings.of("sac")),
    "td3-1": Workload("TD3, one environment, one update per env step", Settings.of("td3")),
    "sac-16": Workload("SAC, 16 environments, one update per vector step", Settings.of("sac", 16)),
    "sac-64": Workload("SAC, 64 environments, one update per vector step", Settings.of("sac", 64)),
}


class UnequalSettings(ValueError):
    """A contender did other work than the others."""


def check_equal(wanted: Settings, found: Mapping[str, Any], env_steps: int, updates: int) -> None:
    """Raises `UnequalSettings` that names every setting that a contender had otherwise, and a wrong number of updates.

    `found` must hold every setting: what a contender does not report is not equal.
    """
    problems = [
        f"{name}: got {found.get(name)!r}, allowed {value!r}"
        for name, value in wanted.to_mapping().items()
        if found.get(name) != value
    ]
    due = (env_steps - wanted.learning_starts) * wanted.utd
    slack = max(UPDATES_SLACK * due, FEWEST_SLACK)
    if abs(updates - due) > slack:
        problems.append(f"updates: got {updates}, allowed {due:.0f} +- {slack:.0f} after {env_steps} env steps")
    if problems:
        raise UnequalSettings("unequal settings: " + "; ".join(problems))
