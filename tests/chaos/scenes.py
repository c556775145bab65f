"""The runs that chaos is let loose on: every runner and algorithm, small enough for a life of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TINY = (
    "env.id=tests.chaos.chain_env:Chain-v0", "total_timesteps=900", "checkpoint.every=200",
    "algo.hidden_dims=[16,16]", "eval.episodes=1", "eval.every=300", "eval.beside=false", "env.step_timeout_s=5",
    "threads.learner=1", "log.tensorboard=false", "log.every_s=0.2", "device=cpu",
)  # fmt: skip
REPLAY = ("algo.learning_starts=100", "algo.batch_size=24", "replay.capacity=100000")
ROLLOUTS = ("algo.epochs=2", "algo.num_minibatches=2", "env.num_envs=2", "rollout.length=10", "runner=appo")
HAND = (
    *("algo=hora", "env=hand_rotation", "algo.encoder_dims=[8]", "algo.latent_dim=3", "env.kwargs.num_threads=1"),
    *("env.num_envs=4", "rollout.length=8", "algo.num_minibatches=2", "algo.epochs=1", "eval.episodes=0"),
    "eval.every=0",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A configuration. `has_rows`: its replay rows can be checked; `is_bitwise`: its end is one and the same."""

    name: str
    words: tuple[str, ...]
    has_rows: bool = True
    is_bitwise: bool = False

    @property
    def total(self) -> int:
        """Its budget in env steps."""
        return int(self.words_by_key()["total_timesteps"])

    def words_by_key(self) -> dict[str, str]:
        """The overrides; those of the scene come after those of TINY."""
        return dict(word.split("=", 1) for word in (*self.base, *self.words))

    @property
    def base(self) -> tuple[str, ...]:
        """What it has in common with the others."""
        return tuple(word for word in TINY if not (word.startswith("env.id=") and "env=hand_rotation" in self.words))

    def command(self, run_dir: str) -> list[str]:
        """The words of `offpolicy` that start it, and that continue it."""
        return ["train", *(f"{key}={value}" for key, value in self.words_by_key().items()), f"run_dir={run_dir}"]


def replay(name: str, *words: str, **facts: Any) -> Scene:
    """A scene of SAC or TD3."""
    return Scene(name, (*REPLAY, *words), **facts)


SCENES = (
    replay("sac", "collect.mode=alternate", is_bitwise=True),
    replay("sac-wrap", "collect.mode=alternate", "replay.capacity=300", "env.num_envs=2", is_bitwise=True),
    replay("sac-async", "env.vectorization=async", "env.num_envs=2"),
    replay("sac-free", "collect.mode=free", "collect.num_collectors=2", "log.tensorboard=true"),
    replay("sac-beside", "collect.mode=overlap", "eval.beside=true"),
    replay("sac-buffer", "runner=double_buffer", "replay.source=prefetch"),
    replay("td3", "algo=td3", "collect.mode=alternate", "collect.num_collectors=2", is_bitwise=True),
    replay("td3-overlap", "algo=td3", "collect.mode=overlap", "timing.trace=true", "timing.trace_mb=1"),
    replay("td3-once", "algo=td3", "collect.mode=free", "runner.max_restarts=1"),
    replay("sac-never", "runner.max_restarts=0", is_bitwise=True),
    replay("td3-resident", "algo=td3", "replay.source=resident"),
    replay("sac-ranks", "runner=multi_gpu", "runner.world_size=2", "runner.timeout_s=15"),
    replay("td3-ranks-3", "algo=td3", "runner=multi_gpu", "runner.world_size=3", "runner.timeout_s=15"),
    Scene("appo", ("algo=appo", *ROLLOUTS, "collect.mode=alternate"), has_rows=False, is_bitwise=True),
    Scene("appo-free", ("algo=appo", *ROLLOUTS, "collect.mode=free", "rollout.slots=2"), has_rows=False),
    Scene(
        "appo-ranks",
        ("algo=appo", *ROLLOUTS, "runner.world_size=2", "collect.num_collectors=2", "runner.timeout_s=15"),
        has_rows=False,
    ),
    Scene("hora", (*HAND, "collect.mode=alternate"), has_rows=False, is_bitwise=True),
)
