"""The studies of `make learning-curves`, in the order in which their runs are made.

A study is one command with several seeds. Published numbers are those of other people's code: the mean over their
seeds, and the standard deviation between them unless `source` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from offpolicy.config.overrides import load_config
from offpolicy.config.parsing import flatten
from offpolicy.config.schema import RunConfig

EVALUATIONS = 20  # of a curve
CURVE_EPISODES, FINAL_EPISODES = 10, 100
FINAL_SEED = 1_000  # of the last evaluation's episodes: not those of the evaluations during the run
HELD_OUT_EPISODES, HELD_OUT_SEED = 400, 90_000  # of the hands, the same for all policies
HELD_OUT = "env.kwargs.physics=held_out"
# Of a configuration: these decide nothing that is learnt, or say where another run is.
WRITES_ONLY = ("run_dir", "resume", "log", "checkpoint", "timing", "logging", "teacher")


class Published(NamedTuple):
    """The return that somebody published after so many env steps."""

    env_steps: int
    mean: float
    std: float | None
    source: str


class Study(NamedTuple):
    """One command with several seeds."""

    key: str
    overrides: tuple[str, ...]
    env_steps: int
    seeds: int = 3
    bar: float | None = None  # that the mean over the seeds must reach
    published: tuple[Published, ...] = ()
    teacher: str | None = None  # the study whose run of the same seed teaches this one's
    is_held_out: bool = False  # its last evaluation has physics beyond those of training

    @property
    def command(self) -> str:
        """What a user types for one seed."""
        teacher = [f"teacher=<run of {self.teacher}>"] if self.teacher else []
        return " ".join(["offpolicy train", *self.overrides, *teacher, f"total_timesteps={self.env_steps}"])

    def final_evaluation(self, seed: int) -> list[str]:
        """The options of the last evaluation: episodes that no evaluation during the run has seen."""
        if self.is_held_out:
            return ["--episodes", str(HELD_OUT_EPISODES), "--seed", str(HELD_OUT_SEED), "--set", HELD_OUT]
        return ["--episodes", str(FINAL_EPISODES), "--seed", str(FINAL_SEED + seed)]

    def arguments(self, seed: int) -> list[str]:
        """The overrides of one run: one thread for each side, so that runs beside each other do not share cores."""
        return [
            *self.overrides,
            f"total_timesteps={self.env_steps}",
            f"seed={seed}",
            *("threads.learner=1", "threads.collector=1", "eval.beside=false", "log.tensorboard=false"),
            *(f"eval.every={max(1, self.env_steps // EVALUATIONS)}", f"eval.episodes={CURVE_EPISODES}"),
        ]

    def configuration(self) -> dict[str, Any]:  # Any: values of a configuration
        """The resolved values that decide what is learnt: a result of other values is one of another preset."""
        return decisive(self.resolved())

    def resolved(self, *overrides: str) -> RunConfig:
        """The configuration of the first seed, without the directories that only a run has."""
        teacher = ["teacher=unused"] if self.teacher else []
        return load_config([*self.arguments(1), *teacher, "run_dir=unused", *overrides])


def decisive(config: RunConfig) -> dict[str, Any]:  # Any: values of a configuration
    """The values of a run's configuration that decide what it learns, whatever its seed."""
    values = config.to_mapping()
    return {key: value for key, value in values.items() if key not in (*WRITES_ONLY, "seed")}


def agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if no key that both have differs, but for what a machine decides (`auto`, and what a run made of it).

    A key that only one version of the code knows had one meaning before.
    """
    first, second = flatten(one), flatten(other)
    pairs = [(first[key], second[key]) for key in first.keys() & second.keys()]
    return all(mine == its or "auto" in (mine, its) for mine, its in pairs)


SIMBA = "SAC of SimbaV2's repository, v4, 10 seeds"
TIANSHOU_SAC = "tianshou SAC, v3, 10 seeds, 10k more random steps"
TIANSHOU_PPO = "tianshou PPO, v3, 10 seeds"
FLASH = "FlashSAC at its published size, v4, 5 seeds"
FLASH_PPO = "PPO of FlashSAC's repository, v4, 5 seeds"
HAND = ("env=hand_rotation", "env.kwargs.num_threads=1")
RANDOM_10K = "algo.learning_starts=10000"  # as FlashSAC's code
HISTORY = ("algo.actor_input=history", "env.kwargs.groups=[obs,privileged,proprio_hist]")

STUDIES = (
    Study("sac-pendulum", ("algo=sac", "env=pendulum"), 20_000, 5, -180.0, (
        Published(10_000, -162.0, None, "rl-baselines3-zoo SAC, one run, training return"),
        Published(20_000, -157.0, None, "the same, 750 episodes"))),
    Study("td3-pendulum", ("algo=td3", "env=pendulum"), 20_000, 5, -190.0, (
        Published(20_000, -151.9, None, "rl-baselines3-zoo TD3, one run"),)),
    Study("sac-halfcheetah", ("experiment=halfcheetah_sac",), 100_000, 3, 6_000.0, (
        Published(100_000, 6_156.0, 738.0, SIMBA), Published(100_000, 6_515.0, 514.0, TIANSHOU_SAC))),
    Study("td3-halfcheetah", ("experiment=halfcheetah_td3",), 100_000, 3, 4_900.0, (
        Published(100_000, 5_514.0, 554.0, "TD3 paper, v1, 10 seeds"),
        Published(100_000, 5_336.0, 376.0, "tianshou TD3, v3, 10 seeds, 25k more random steps"))),
    Study("td3-inverted-pendulum", ("algo=td3", "env=inverted_pendulum"), 50_000, 5, 990.0, (
        Published(25_000, 1_000.0, 0.0, "TD3 paper, v1, 10 seeds"),)),
    Study("sac-cartpole", ("algo=sac", "env=cartpole"), 40_000, 5, 475.0),
    Study("appo-cartpole", ("algo=appo", "env=cartpole"), 100_000, 5, 490.0),
    Study("appo-cartpole-alternate", ("algo=appo", "env=cartpole", "collect.mode=alternate"), 100_000, 5, 490.0),
    Study("appo-cartpole-overlap", ("algo=appo", "env=cartpole", "collect.mode=overlap"), 100_000, 5, 490.0),
    Study("appo-inverted-pendulum", ("algo=appo", "env=inverted_pendulum"), 100_000, 5, 990.0, (
        Published(61_000, 1_000.0, 0.0, TIANSHOU_PPO),)),
    Study("appo-pendulum", ("algo=appo", "env=pendulum"), 150_000, 5, -250.0, (
        Published(100_000, -166.0, None, "rl-baselines3-zoo PPO, one run"),)),
    Study("appo-halfcheetah", ("algo=appo", "env=halfcheetah"), 300_000, 5, 2_900.0, (
        Published(300_000, 868.0, 458.0, FLASH_PPO), Published(215_000, 2_932.0, 769.0, TIANSHOU_PPO))),
    Study("hora-teacher", ("algo=hora", *HAND), 12_000_000, is_held_out=True),
    Study("hora-student", ("algo=hora", "stage=adapt", *HAND), 4_000_000, teacher="hora-teacher", is_held_out=True),
    Study("hora-blind", ("algo=appo", *HAND, "algo.actor_input=obs"), 12_000_000, is_held_out=True),
    Study("hora-history", ("algo=appo", *HAND, *HISTORY), 12_000_000, is_held_out=True),
    Study("flashsac-halfcheetah", ("experiment=halfcheetah_flashsac",), 100_000, 3, 7_966.0, (  # 1.2 times our SAC
        Published(100_000, 9_815.0, 173.0, FLASH),)),
    Study("sac-walker2d", ("algo=sac", "env=walker2d"), 100_000, 3, None, (
        Published(100_000, 1_305.0, 795.0, TIANSHOU_SAC),)),
    Study("sac-ant", ("algo=sac", "env=ant"), 100_000, 3, None, (Published(100_000, 1_020.0, 450.0, TIANSHOU_SAC),)),
    Study("flashsac-walker2d", ("algo=flashsac", "env=walker2d", RANDOM_10K), 100_000, 3, 3_000.0, (
        Published(100_000, 3_300.0, None, FLASH),)),
    Study("flashsac-ant", ("algo=flashsac", "env=ant", RANDOM_10K), 100_000, 3, 2_800.0, (
        Published(100_000, 3_200.0, None, FLASH),)),
    Study("appo-halfcheetah-1m", ("algo=appo", "env=halfcheetah"), 1_000_000, 3, None, (
        Published(1_000_000, 3_517.0, 1_046.0, FLASH_PPO), Published(1_000_000, 5_784.0, 1_244.0, TIANSHOU_PPO))),
)  # fmt: skip
BY_KEY = {study.key: study for study in STUDIES}
