"""The sections of a configuration as frozen dataclasses: defaults, meanings and limits of every key.

Those of the algorithms are in `algorithms.py`. No torch, no hydra: this loads in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from offpolicy.config.algorithms import (
    EVALUATION,
    EVALUATION_BEFORE_THE_END,
    REPLAY,
    REPLAY_CURVES,
    ROLLOUT_CURVES,
    SAC,
    TD3,
    AlgoConfig,
    AlgorithmInfo,
    PolicyKind,
)
from offpolicy.config.parsing import option
from offpolicy.machine import LONGEST_WAIT_S

# Plug-ins import these from here.
__all__ = ["REPLAY_CURVES", "ROLLOUT_CURVES", "SAC", "TD3", "AlgoConfig", "AlgorithmInfo", "PolicyKind"]

RUNNER_DEFAULT_MODE = {"single_gpu": "alternate", "double_buffer": "overlap", "multi_gpu": "overlap", "appo": "free"}
MODE_RUNNERS = ("single_gpu", "double_buffer")  # runners that can try the modes: collect.mode=auto
RANK_RUNNERS = ("multi_gpu", "appo")  # runners that may have several learner ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """The topology."""

    name: str = option("single_gpu", "topology", choices=("single_gpu", "double_buffer", "multi_gpu", "appo"))
    world_size: int = option(1, "multi_gpu, appo: learner ranks on this host", ge=1, le=64)
    backend: str = option(
        "auto",
        "several ranks: what moves the numbers; auto: nccl where each rank has its own GPU, else gloo",
        choices=("auto", "gloo", "nccl"),
    )
    interface: str | None = option(None, "several ranks: their network interface; null: loopback, one host only")
    timeout_s: float = option(
        300.0,
        "how long a rank, or any remote collector at all, may be waited for; more than an evaluation",
        gt=0.0,
        le=LONGEST_WAIT_S,
    )
    start_timeout_s: float = option(
        120.0, "limit of a process's start, in seconds; multiplied by the load per core, at most by 8", gt=0.0
    )
    ray: str = option(
        "local",
        "HOST:PORT of the Ray cluster of collect.remote_hosts; local: a cluster of this machine alone, for this run",
        needs="collect.remote_hosts!=0",
    )
    max_restarts: int = option(
        4,
        "times in ten minutes that all processes begin again, from the newest checkpoint, after a signal killed one;"
        " one more ends the run, exit 70",
        ge=0, le=1_000_000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The environment."""

    id: str = option("Pendulum-v1", "Gymnasium id, also module:EnvId-v0")
    batch: str | None = option(
        None, "module:factory of a batch of environments, called with num_envs and env.kwargs; in place of env.id"
    )
    kwargs: dict[str, Any] = option({}, "keyword arguments of gymnasium.make, or of env.batch; free keys")
    num_envs: int = option(1, "environments stepped together by one collector", ge=1, le=65536)
    vectorization: str = option(
        "auto",
        "how they are stepped: sync, one after another; async, in processes; vector, by the id's own vector; mujoco,"
        " all in one call of MuJoCo; auto: mujoco for 4 or more of Gymnasium's MuJoCo v5 tasks, vector where an id of"
        " another package has one, else sync",
        choices=("auto", "sync", "async", "vector", "mujoco"),
    )  # fmt: skip
    final_obs: str = option(
        "required",
        "what a batch without the final observations of episodes may do: nothing (required), or learn with that bias at"
        " the time limit (missing)",
        choices=("required", "missing"),
    )
    action_bounds: tuple[float, ...] | None = option(
        None, "[low,high] of every action, or of each in turn, [low,high,low,high,...]; null: those of the environment"
    )
    wrappers: tuple[str, ...] = option(
        (), "module:function of wrappers, each called with the environment before it; the first is the innermost"
    )
    success: str = option(
        "last",
        "step of an episode whose success in info counts: its last one, or any of them",
        choices=("last", "any"),
    )
    measure: str | None = option(
        None, "number of info at an episode's end that `offpolicy eval` reports beside the return, such as net_rotation"
    )
    step_timeout_s: float = option(
        60.0,
        "an environment silent for longer than this ends the run with exit 70: at once if async, else 8 s later",
        gt=0.0,
    )
    on_error: str = option(
        "raise",
        "an environment that raises: raise (ends the run) or restart (the environments of its collector are made again,"
        " as often as runner.max_restarts allows)",
        choices=("raise", "restart"),
    )  # fmt: skip
    max_bad_rows: int | None = option(
        None,
        "transitions with NaN or Inf that a collector drops, and resets their environments; one more: exit 65; null:"
        " total_timesteps // 10,000 with env.batch or env.vectorization=vector, else 0",
        ge=0,
    )

    @property
    def name(self) -> str:
        """What the run is called by: the batch, or the id."""
        return self.batch or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The replay ring and the source of batches."""

    capacity: int = option(1_000_000, "rows kept, over all collectors of a host", ge=1)
    source: str = option(
        "auto",
        "direct: sampled on the learner's thread; prefetch: packed ahead into slots; resident: sampled from a copy on"
        " the learner's device; auto: the runner's choice",
        choices=("auto", "direct", "prefetch", "resident"),
    )
    demos: str | None = option(
        None, "demonstrations mixed into every batch: an .npz (`offpolicy record`), minari:<id>, or a Minari directory"
    )
    demo_share: float = option(
        0.25, "share of every batch that is demonstrations", gt=0.0, lt=1.0, needs="replay.demos!=null"
    )
    device_share: float = option(
        0.5, "share of the device's free memory that the copy may take", gt=0.0, le=1.0,
        needs="replay.source=auto,resident",
    )  # fmt: skip
    slots: int = option(2, "batches packed or in use at once", ge=1, le=16, needs="replay.source=auto,prefetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """APPO: the rollouts and their shared ring."""

    length: int = option(128, "vector steps of one rollout", ge=1, le=65536)
    slots: int = option(1, "rollouts a collector may have finished before the learner takes one", ge=1, le=64)
    when_full: str = option(
        "block", "no slot free: block (the collector waits) or drop (its rollout is thrown away)",
        choices=("block", "drop"),
    )  # fmt: skip
    max_lag: int = option(64, "rollouts whose weights are more versions old than this are not learnt from", ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """The interleaving of collecting and learning."""

    mode: str | None = option(None, "null: the runner's default", choices=("alternate", "overlap", "free", "auto"))
    process: str = option(
        "auto",
        "where environments are stepped: own, in processes of collectors; learner, in the learner's process, in turns"
        " with its updates; auto: learner for a batch on a GPU, else own",
        choices=("auto", "own", "learner"),
    )
    num_collectors: int = option(
        1, "collectors, each with env.num_envs environments; of each remote host, if there are any", ge=1, le=256
    )
    remote_hosts: int = option(
        0, "hosts of a Ray cluster that collect, in place of the learner's host; 0: that host collects", ge=0, le=256
    )
    band: int = option(
        1000, "env steps by which either side may be ahead of what algo.utd calls for", ge=1,
        needs=f"{REPLAY} collect.mode=free",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation of the deterministic policy on fresh seeded environments."""

    every: int = option(5000, "env steps between evaluations; 0: only at the end", ge=0, needs=EVALUATION)
    episodes: int = option(10, "episodes of one evaluation; 0: never evaluate", ge=0)
    num_envs: int | None = option(
        None,
        "environments side by side; null: 1 of a batch or of an id that is not Gymnasium's own, which may be able to"
        " exist only once, else eval.episodes, 16 at most (128 with env.vectorization=mujoco)",
        ge=1, needs=EVALUATION,
    )  # fmt: skip
    beside: str = option(
        "auto", "true: in another process, beside training; false: by rank 0; auto: beside where a core is free",
        choices=("auto", "true", "false"), needs=EVALUATION,
    )  # fmt: skip
    video: bool = option(
        False, "film the first episode of each evaluation, in another process: videos/*.gif", needs=EVALUATION
    )
    video_mb: int = option(
        100, "MB that the videos of a run may take; the oldest are removed", ge=1,
        needs=f"{EVALUATION} eval.video=true",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConfig:
    """Ends a run before its budget is spent, by what its evaluations say."""

    reward: float | None = option(
        None, "stop once an evaluation's mean return is at least this; null: never", gt=-1e300, lt=1e300,
        needs=EVALUATION_BEFORE_THE_END,
    )  # fmt: skip
    patience: int = option(
        0, "stop after this many evaluations in a row without a better mean return; 0: never", ge=0,
        needs=EVALUATION_BEFORE_THE_END,
    )  # fmt: skip

    @property
    def is_set(self) -> bool:
        """True if anything but the budget can end the run."""
        return self.reward is not None or self.patience > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """The content and interval of checkpoints. One is always saved at the end."""

    every: int = option(50_000, "env steps between checkpoints; 0: not by env steps", ge=0)
    every_min: float = option(1.0, "minutes between checkpoints besides; 0: not by time", ge=0.0)
    replay: bool = option(True, "save the replay rows too: needed for a bitwise resume")
    keep: int = option(2, "checkpoints kept", ge=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The destinations of the records."""

    every_s: float = option(2.0, "seconds between records", gt=0.0)
    ranks: str = option(
        "spread", "learner ranks in the records; all: each phase of each rank", choices=("spread", "all")
    )
    panel: str = option(
        "auto",
        "terminal panel; auto: only when stdout is a terminal; full: as auto, with every row and metric",
        choices=("auto", "on", "off", "full"),
    )
    tensorboard: bool | Literal["full"] = option(
        True, "write TensorBoard events: what its charts show; full: every key of the records"
    )
    wandb: str = option("disabled", "Weights & Biases mode", choices=("disabled", "offline", "online"))
    wandb_project: str = option("offpolicy", "Weights & Biases project", needs="log.wandb!=disabled")
    sinks: tuple[str, ...] = option(
        (), "further destinations, of plug-ins (offpolicy.sinks); their options: sinks.<name>"
    )
    unilab_keys: bool = option(False, "write every value also under the name that UniLab gives it, for its dashboards")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingConfig:
    """The time account."""

    enabled: bool = option(True, "keep the account; false: no clock is read in collector and learner")
    trace: bool = option(
        False, "write down every phase of every process: trace.json, for trace viewers", needs="timing.enabled=true"
    )
    trace_mb: int = option(
        200, "MB that trace.json may have; of a longer run it holds the end", ge=1, needs="timing.trace=true"
    )
    profile_at: int = option(
        0, "iteration after which torch.profiler is attached; 0: never", ge=0, needs="timing.trace=true"
    )
    profile_iterations: int = option(10, "iterations that torch.profiler watches", ge=1, needs="timing.profile_at!=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsConfig:
    """CPU threads of torch."""

    collector: int | Literal["auto"] = option(
        "auto", "threads of one collector; auto: 1; all cores for a batch of environments if the learner waits", ge=1
    )
    learner: int | Literal["auto"] = option(
        "auto", "threads of the learner; auto: the fastest number, tried while it trains on a CPU", ge=1
    )
