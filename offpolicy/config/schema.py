"""The configuration as frozen dataclasses: one place for defaults, ranges and cross-field rules.

`RunConfig.from_mapping` turns a plain nested mapping into a checked `RunConfig` and reports every problem at once:
unknown keys with the nearest known one, wrong types, values out of range, impossible combinations.
No torch, no hydra: this module loads in milliseconds and crosses process borders as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from offpolicy.config.parsing import build, keys_of, option, plain
from offpolicy.config.schedules import Ramp, Scheduled, value_at
from offpolicy.errors import ConfigError

RANK_RUNNERS = ("multi_gpu", "appo")  # those that may have several learner ranks

REPLAY_CURVES = ("actor_loss", "critic_loss", "alpha_loss", "ent_coef", "q_mean", "target_q_mean", "entropy")
ROLLOUT_CURVES = (
    *("actor_loss", "critic_loss", "approx_kl", "entropy", "explained_variance", "rho_clip_fraction"),
    *("clip_fraction", "value_mean", "learning_rate"),
)


class PolicyKind(StrEnum):
    """The actor of a policy, as `nets/policy.py` builds it."""

    SQUASHED_GAUSSIAN = "squashed_gaussian"
    DETERMINISTIC = "deterministic"
    STOCHASTIC = "stochastic"  # a Gaussian for a Box, a categorical for discrete actions
    TEACHER = "teacher"
    STUDENT = "student"


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """What everything but the learner needs to know of an algorithm, or of one stage of it."""

    name: str
    policy: PolicyKind
    curves: tuple[str, ...]  # the `train/` metrics that the panel shows, the most wanted first
    learns_from_rollouts: bool = False  # each transition is used in one batch of rollouts; else sampled from a replay
    stage: str | None = None  # None: the algorithm has no stages


SAC = AlgorithmInfo("sac", PolicyKind.SQUASHED_GAUSSIAN, REPLAY_CURVES)
TD3 = AlgorithmInfo("td3", PolicyKind.DETERMINISTIC, REPLAY_CURVES)
APPO = AlgorithmInfo("appo", PolicyKind.STOCHASTIC, ROLLOUT_CURVES, learns_from_rollouts=True)
HORA_TEACH = AlgorithmInfo("hora", PolicyKind.TEACHER, ROLLOUT_CURVES, learns_from_rollouts=True, stage="teach")
HORA_ADAPT = AlgorithmInfo(
    *("hora", PolicyKind.STUDENT, ("latent_loss", "latent_explained", "learning_rate")),
    learns_from_rollouts=True, stage="adapt",
)  # fmt: skip
ALGORITHMS = (SAC, TD3, APPO, HORA_TEACH, HORA_ADAPT)

# Who an option is for.
FROM_REPLAY = tuple(info for info in ALGORITHMS if not info.learns_from_rollouts)
FROM_ROLLOUTS = tuple(info for info in ALGORITHMS if info.learns_from_rollouts)
POLICY_GRADIENT = (APPO, HORA_TEACH)
HORA = (HORA_TEACH, HORA_ADAPT)


@functools.cache
def algorithm_info(name: str, stage: str = "") -> AlgorithmInfo:
    """Returns the entry of `ALGORITHMS`; `stage` matters only to an algorithm that has stages."""
    found = [info for info in ALGORITHMS if info.name == name]
    return next((info for info in found if info.stage == stage), found[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoConfig:
    """Hyper-parameters. Those that only some algorithms read are refused with the others, unless left alone."""

    name: str = option("sac", "algorithm", choices=tuple(dict.fromkeys(info.name for info in ALGORITHMS)))
    gamma: float = option(0.99, "discount factor", ge=0.0, le=1.0, only=(*FROM_REPLAY, *POLICY_GRADIENT))
    hidden_dims: tuple[int, ...] = option((256, 256), "units of the hidden layers of actor and critics", ge=1)
    activation: str = option("relu", "activation of the hidden layers", choices=("relu", "elu", "silu", "tanh"))
    normalize_obs: bool = option(False, "normalise observations with running statistics")
    max_grad_norm: float | None = option(None, "clip each loss's gradient norm to this; null: no clipping", gt=0.0)
    # SAC and TD3
    tau: float = option(0.005, "Polyak coefficient of the target networks", gt=0.0, le=1.0, only=FROM_REPLAY)
    batch_size: int = option(256, "rows per gradient update", ge=1, only=FROM_REPLAY)
    learning_starts: int = option(1000, "env steps of random actions before the first update", ge=1, only=FROM_REPLAY)
    utd: float = option(1.0, "gradient updates per environment transition", ge=0.001, le=64.0, only=FROM_REPLAY)
    actor_lr: Scheduled = option(3e-4, "Adam step size of the actor", gt=0.0, only=FROM_REPLAY)
    critic_lr: Scheduled = option(3e-4, "Adam step size of the critics", gt=0.0, only=FROM_REPLAY)
    critic_layer_norm: bool = option(False, "layer norm after each hidden layer of the critics", only=FROM_REPLAY)
    policy_delay: int = option(1, "critic updates per actor update", ge=1, only=FROM_REPLAY)
    n_step: int = option(1, "steps of reward summed before bootstrapping", ge=1, le=64, only=FROM_REPLAY)
    # SAC
    alpha_lr: Scheduled = option(3e-4, "Adam step size of the temperature", gt=0.0, only=(SAC,))
    init_alpha: float = option(
        1.0, "initial temperature (the temperature when auto_alpha is false)", gt=0.0, only=(SAC,)
    )
    auto_alpha: bool = option(True, "tune the temperature towards the target entropy", only=(SAC,))
    target_entropy: Scheduled | None = option(
        None, "target entropy in the [-1, 1] space; null: -action_dim", only=(SAC,)
    )
    # TD3
    exploration_noise: Scheduled = option(0.1, "std of the action noise, in the [-1, 1] space", ge=0.0, only=(TD3,))
    target_noise: float = option(0.2, "std of the target-policy smoothing noise", ge=0.0, only=(TD3,))
    target_noise_clip: float = option(0.5, "clip of the target-policy smoothing noise", ge=0.0, only=(TD3,))
    # APPO and HORA
    lr: Scheduled = option(3e-4, "Adam step size; one for everything that learns", gt=0.0, only=FROM_ROLLOUTS)
    lr_schedule: str = option(
        "constant", "constant; linear: to 0 at the end; kl_adaptive: holds the KL of an epoch near target_kl",
        choices=("constant", "linear", "kl_adaptive"), only=FROM_ROLLOUTS,
    )  # fmt: skip
    target_kl: float = option(0.01, "lr_schedule=kl_adaptive: KL of an epoch, in nats", gt=0.0, only=POLICY_GRADIENT)
    epochs: int = option(10, "passes over a batch of rollouts", ge=1, le=1000, only=FROM_ROLLOUTS)
    num_minibatches: int = option(8, "gradient steps of one pass", ge=1, only=FROM_ROLLOUTS)
    advantage: str = option(
        "vtrace", "vtrace: corrected for the policy's age; gae: not", choices=("vtrace", "gae"), only=POLICY_GRADIENT
    )
    gae_lambda: float = option(0.95, "lambda of V-trace and GAE", ge=0.0, le=1.0, only=POLICY_GRADIENT)
    rho_clip: float = option(1.0, "V-trace: bound of rho", gt=0.0, only=POLICY_GRADIENT)
    trace_clip: float = option(1.0, "V-trace: bound of c", gt=0.0, only=POLICY_GRADIENT)
    clip: float = option(0.2, "the ratio counts between 1 - clip and 1 + clip", gt=0.0, lt=1.0, only=POLICY_GRADIENT)
    value_coef: float = option(0.5, "weight of the critic's loss", ge=0.0, only=POLICY_GRADIENT)
    value_clip: float | None = option(
        None, "the critic gains nothing by moving further than this, in its own units; null: no bound",
        gt=0.0, only=POLICY_GRADIENT,
    )  # fmt: skip
    ent_coef: float = option(0.0, "weight of the policy's entropy", ge=0.0, only=POLICY_GRADIENT)
    bounds_coef: float = option(0.0, "weight of means beyond +-1.1", ge=0.0, only=POLICY_GRADIENT)
    normalize_advantage: bool = option(True, "advantages to mean 0 and std 1 per batch", only=POLICY_GRADIENT)
    normalize_value: bool = option(True, "the critic predicts in units of its targets' spread", only=POLICY_GRADIENT)
    init_log_std: float = option(0.0, "log std of the first policy for a Box", ge=-5, le=2, only=POLICY_GRADIENT)
    # HORA
    stage: str = option(
        "teach", "teach: with privileged information; adapt: infer it from the history", choices=("teach", "adapt"),
        only=HORA,
    )  # fmt: skip
    latent_dim: int = option(8, "numbers that the privileged information is squeezed into", ge=1, le=1024, only=HORA)
    encoder_dims: tuple[int, ...] = option((256, 128), "units of the encoder's hidden layers", ge=1, only=HORA)

    @property
    def is_adapting(self) -> bool:
        """True in HORA's second stage."""
        return self.info is HORA_ADAPT

    @property
    def info(self) -> AlgorithmInfo:
        """The entry of the algorithm and its stage in `ALGORITHMS`."""
        return algorithm_info(self.name, self.stage)

    @property
    def learns_from_rollouts(self) -> bool:
        """True if each transition is used in one batch of rollouts, rather than sampled from a replay."""
        return self.info.learns_from_rollouts

    @property
    def warmup(self) -> int:
        """Env steps before anything is learnt, where schedules begin unless they say so themselves."""
        return 0 if self.learns_from_rollouts else self.learning_starts

    def value(self, given: Scheduled, env_steps: int) -> float:
        """The number in force at an env step of the run, of one of these options."""
        return value_at(given, env_steps, self.warmup)

    @property
    def ramps(self) -> dict[str, Ramp]:
        """The options that change during the run, by name, each saying where it begins."""
        given = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        begun = {name: value for name, value in given.items() if isinstance(value, Ramp)}
        return {
            name: ramp if ramp.begin is not None else dataclasses.replace(ramp, begin=self.warmup)
            for name, ramp in begun.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """The topology."""

    name: str = option("single_gpu", "topology", choices=("single_gpu", "double_buffer", "multi_gpu", "appo"))
    world_size: int = option(1, "multi_gpu, appo: learner ranks on this host", ge=1, le=64)
    backend: str = option(
        "auto", "several ranks: what moves the numbers; auto: nccl where each rank has its own GPU, else gloo",
        choices=("auto", "gloo", "nccl"),
    )  # fmt: skip
    sync: str = option(
        "gradients", "several ranks: gradients (averaged before each step) or parameters (every sync_every iterations)",
        choices=("gradients", "parameters"),
    )  # fmt: skip
    sync_every: int = option(8, "runner.sync=parameters: iterations between two averagings", ge=1)
    interface: str | None = option(None, "several ranks: their network interface; null: loopback, one host only")
    timeout_s: float = option(
        300.0, "several ranks: how long a rank may be waited for; more than an evaluation", gt=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The environment."""

    id: str = option("Pendulum-v1", "Gymnasium id, also module:EnvId-v0")
    kwargs: dict[str, Any] = option({}, "keyword arguments of gymnasium.make; free keys")
    num_envs: int = option(1, "environments stepped together by one collector", ge=1, le=65536)
    vectorization: str = option(
        "sync", "how they are stepped: sync, one after another; async, in processes; mujoco, in one call of their own",
        choices=("sync", "async", "mujoco"),
    )  # fmt: skip
    measure: str | None = option(
        None, "number of info at an episode's end that `offpolicy eval` tells beside the return, such as net_rotation"
    )
    step_timeout_s: float = option(60.0, "an environment silent for longer than this ends the run with exit 70", gt=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The replay ring and how batches come from it."""

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
    demo_share: float = option(0.25, "share of every batch that is demonstrations", gt=0.0, lt=1.0)
    device_share: float = option(0.5, "resident: share of the device's free memory the copy may take", gt=0.0, le=1.0)
    slots: int = option(2, "prefetch: batches packed or in use at once", ge=1, le=16)
    prefetch: bool = option(True, "prefetch: pack the next batch while this one trains; false: when it is asked for")
    newest: bool = option(False, "prefetch: pack only once the newest rows are there")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """APPO: the rollouts and the shared ring that they travel in."""

    length: int = option(128, "vector steps of one rollout", ge=1, le=65536)
    slots: int = option(1, "rollouts a collector may have finished before the learner takes one", ge=1, le=64)
    when_full: str = option(
        "block", "no slot free: block (the collector waits) or drop (its rollout is thrown away)",
        choices=("block", "drop"),
    )  # fmt: skip
    max_lag: int = option(64, "rollouts whose weights are more versions old than this are not learnt from", ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """How collecting and learning are interleaved."""

    mode: str | None = option(None, "null: the runner's default", choices=("alternate", "overlap", "free"))
    num_collectors: int = option(1, "collector processes", ge=1, le=256)
    band: int = option(1000, "free mode: env steps by which either side may run ahead of the UTD", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation of the deterministic policy on fresh seeded environments."""

    every: int = option(5000, "env steps between evaluations; 0: only at the end", ge=0)
    episodes: int = option(10, "episodes of one evaluation; 0: never evaluate", ge=0)
    beside: str = option(
        "auto", "in a process of its own, beside training; false: by rank 0; auto: beside where a core is free",
        choices=("auto", "true", "false"),
    )  # fmt: skip
    hook: str | None = option(
        None, "module:function called with each finished episode (offpolicy.collect.post.Episode); null: none"
    )
    post_queue: int = option(2, "finished episodes that may wait for the hook", ge=1, le=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """What is saved and how often. A checkpoint is always saved at the end."""

    every: int = option(50_000, "env steps between checkpoints; 0: only at the end", ge=0)
    replay: bool = option(True, "save the replay rows too: needed for a bitwise resume")
    keep: int = option(2, "checkpoints kept", ge=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Where the records go."""

    every_s: float = option(2.0, "seconds between records", gt=0.0)
    panel: str = option("auto", "terminal panel; auto: only when stdout is a terminal", choices=("auto", "on", "off"))
    tensorboard: bool = option(True, "write TensorBoard events")
    wandb: str = option("disabled", "Weights & Biases mode", choices=("disabled", "offline", "online"))
    wandb_project: str = option("offpolicy", "Weights & Biases project")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingConfig:
    """The time account."""

    enabled: bool = option(True, "keep the account; false: no clock is read in collector and learner")
    trace: bool = option(False, "write down every phase of every process: trace.json, for trace viewers")
    trace_mb: int = option(200, "MB that trace.json may have; of a longer run it holds the end", ge=1)
    profile_at: int = option(0, "iteration to attach torch.profiler at, with timing.trace; 0: never", ge=0)
    profile_iterations: int = option(10, "iterations that torch.profiler watches", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsConfig:
    """CPU threads of torch; null: from the cores at hand."""

    collector: int | None = option(None, "threads of one collector; null: 1", ge=1)
    learner: int | None = option(None, "threads of the learner; null: the cores that the collectors leave idle", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything a run needs; the resolved form is written to `config.yaml` of the run directory."""

    algo: AlgoConfig = field(default_factory=AlgoConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    threads: ThreadsConfig = field(default_factory=ThreadsConfig)
    seed: int = option(1, "one seed for every stream", ge=0, lt=2**31)
    total_timesteps: int = option(20_000, "env steps to train for", ge=1)
    device: str = option("auto", "auto (cuda, else cpu), cpu, cuda or cuda:<index>")
    teacher: str | None = option(None, "stage=adapt: run directory of the teacher, a run of algo=hora")
    run_dir: str | None = option(None, "run directory; null: runs/<algo>/<env id>/<time>-s<seed>")
    resume: str = option("auto", "what to do with an existing run directory", choices=("auto", "must", "never"))

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Check a nested mapping. Raises `ConfigError` listing every problem."""
        problems: list[str] = []
        config = build(cls, raw, problems, all_keys())
        if not problems:
            problems += _impossible(config)
        if problems:
            raise ConfigError(problems)
        return config

    def to_mapping(self) -> dict[str, Any]:
        """The nested mapping of plain values that `from_mapping` accepts."""
        mapping: dict[str, Any] = plain(dataclasses.asdict(self))
        return mapping

    @property
    def collect_mode(self) -> str:
        """The collection mode, with the runner's default filled in."""
        return self.collect.mode or RUNNER_DEFAULT_MODE[self.runner.name]

    @property
    def replay_rows(self) -> int:
        """Rows of one collector's ring: its share of the capacity, but never more than the run can write."""
        num_collectors = self.collect.num_collectors
        own_steps = -(-self.total_timesteps // num_collectors)
        return min(self.replay.capacity // num_collectors, own_steps + self.env.num_envs * self.algo.n_step)


RUNNER_DEFAULT_MODE = {"single_gpu": "alternate", "double_buffer": "overlap", "multi_gpu": "overlap", "appo": "free"}


def all_keys() -> list[str]:
    """Every dotted key of the configuration."""
    return keys_of(RunConfig)


def _impossible(cfg: RunConfig) -> list[str]:
    """The rules that join several keys."""
    problems: list[str] = []
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", cfg.device):
        problems.append(f"device: got {cfg.device!r}, allowed auto, cpu, cuda or cuda:<index>")
    problems += _impossible_replay(cfg) if not cfg.algo.learns_from_rollouts else _impossible_rollouts(cfg)
    problems += _not_for(cfg.algo) + _unused_section(cfg) + _impossible_ranks(cfg) + _impossible_source(cfg)
    problems += _impossible_stage(cfg) + _impossible_ramps(cfg) + _impossible_trace(cfg.timing)
    if cfg.eval.hook is not None and not re.fullmatch(r"[\w.]+:\w+", cfg.eval.hook):
        problems.append(f"eval.hook: got {cfg.eval.hook!r}, allowed module:function, such as hooks:draw, or null")
    if not cfg.env.id:
        problems.append("env.id: got '', allowed a Gymnasium id such as Pendulum-v1 or module:EnvId-v0")
    return problems


def owners(infos: Iterable[AlgorithmInfo]) -> list[str]:
    """Returns the names of algorithms: with the stage where one of several is meant."""
    stages: dict[str, list[AlgorithmInfo]] = {}
    for info in infos:
        stages.setdefault(info.name, []).append(info)
    num_stages = Counter(info.name for info in ALGORITHMS)
    return [name if len(own) == num_stages[name] else f"{name} stage={own[0].stage}" for name, own in stages.items()]


def _not_for(algo: AlgoConfig) -> list[str]:
    """Returns the problems of other algorithms' hyper-parameters: set, they would silently do nothing."""
    name = "hora stage=adapt" if algo.is_adapting else algo.name
    return [
        f"algo.{spec.name}: got {getattr(algo, spec.name)!r}, allowed nothing with algo={name}:"
        f" it is for {', '.join(owners(spec.metadata['only']))}"
        for spec in dataclasses.fields(algo)
        if algo.info not in spec.metadata.get("only", ALGORITHMS) and getattr(algo, spec.name) != spec.default
    ]


def _unused_section(cfg: RunConfig) -> list[str]:
    """Options of the replay where there is none, or of rollouts where there are none."""
    has_rollouts = cfg.algo.learns_from_rollouts
    section, name = (cfg.replay, "replay") if has_rollouts else (cfg.rollout, "rollout")
    users = ", ".join(owners(FROM_REPLAY if has_rollouts else FROM_ROLLOUTS))
    return [
        f"{name}.{spec.name}: got {getattr(section, spec.name)!r}, allowed nothing with algo={cfg.algo.name}:"
        f" it is for {users}"
        for spec in dataclasses.fields(section)
        if getattr(section, spec.name) != spec.default
    ] + _unused_band(cfg)


def _unused_band(cfg: RunConfig) -> list[str]:
    default = CollectConfig().band
    if not cfg.algo.learns_from_rollouts or cfg.collect.band == default:
        return []
    return [f"collect.band: got {cfg.collect.band}, allowed nothing with algo={cfg.algo.name}: rollout.slots bounds it"]


def _impossible_trace(timing: TimingConfig) -> list[str]:
    problems: list[str] = []
    if timing.trace and not timing.enabled:
        problems.append("timing.trace: got true, allowed false with timing.enabled=false")
    if timing.profile_at and not timing.trace:
        problems.append(f"timing.profile_at: got {timing.profile_at}, allowed 0 without timing.trace=true")
    return problems


def _impossible_replay(cfg: RunConfig) -> list[str]:
    problems = _impossible_demos(cfg)
    for key, rows in (("learning_starts", cfg.algo.learning_starts), ("batch_size", cfg.algo.batch_size)):
        if cfg.replay.capacity < rows:
            problems.append(f"replay.capacity: got {cfg.replay.capacity}, allowed at least algo.{key}={rows}")
    step_rows = cfg.collect.num_collectors * cfg.env.num_envs * cfg.algo.n_step
    if cfg.replay.capacity < 2 * step_rows:
        problems.append(
            f"replay.capacity: got {cfg.replay.capacity}, allowed at least 2 * collect.num_collectors * env.num_envs *"
            f" algo.n_step = {2 * step_rows}: one vector step must not recycle half of a ring"
        )
    if cfg.algo.learning_starts >= cfg.total_timesteps:
        problems.append(
            f"algo.learning_starts: got {cfg.algo.learning_starts}, allowed less than"
            f" total_timesteps={cfg.total_timesteps}: no update would ever happen"
        )
    if cfg.algo.batch_size % cfg.runner.world_size:
        problems.append(
            f"algo.batch_size: got {cfg.algo.batch_size}, allowed a multiple of"
            f" runner.world_size={cfg.runner.world_size}: each rank takes an equal part of the batch"
        )
    return problems


def _impossible_demos(cfg: RunConfig) -> list[str]:
    share = cfg.replay.demo_share
    if cfg.replay.demos is None:
        default = ReplayConfig().demo_share
        is_unused = share != default
        return [f"replay.demo_share: got {share:g}, allowed nothing without replay.demos"] if is_unused else []
    return impossible_share(cfg, cfg.runner.world_size)


def impossible_share(cfg: RunConfig, num_ranks: int) -> list[str]:
    """What is wrong with the share of demonstrations in the rows that each of `num_ranks` takes of a batch."""
    share, rows = cfg.replay.demo_share, cfg.algo.batch_size // num_ranks
    if cfg.replay.demos is not None and not 0 < round(share * rows) < rows:
        return [
            f"replay.demo_share: got {share:g}, allowed a share that is at least one of the {rows} rows of a batch"
            " of one rank, and not all of them"
        ]
    return []


def _impossible_rollouts(cfg: RunConfig) -> list[str]:
    problems, ranks, collectors = list[str](), cfg.runner.world_size, cfg.collect.num_collectors
    if collectors % ranks:
        problems.append(
            f"collect.num_collectors: got {collectors}, allowed a multiple of runner.world_size={ranks}:"
            " each rank learns from collectors of its own"
        )
        return problems
    rows = cfg.rollout.length * cfg.env.num_envs * (collectors // ranks)
    if rows % cfg.algo.num_minibatches:
        problems.append(
            f"algo.num_minibatches: got {cfg.algo.num_minibatches}, allowed a divisor of the {rows} rows of a batch"
            f" (rollout.length={cfg.rollout.length} x env.num_envs={cfg.env.num_envs} x"
            f" {collectors // ranks} collectors per rank)"
        )
    if cfg.algo.trace_clip > cfg.algo.rho_clip:
        problems.append(
            f"algo.trace_clip: got {cfg.algo.trace_clip:g}, allowed at most algo.rho_clip={cfg.algo.rho_clip:g}"
        )
    if rows * ranks > cfg.total_timesteps:
        problems.append(
            f"total_timesteps: got {cfg.total_timesteps}, allowed at least {rows * ranks}, one batch of rollouts"
            f" (rollout.length={cfg.rollout.length} x env.num_envs={cfg.env.num_envs} x {collectors} collectors)"
        )
    return problems


def _impossible_ranks(cfg: RunConfig) -> list[str]:
    runner, problems = cfg.runner, list[str]()
    if cfg.algo.learns_from_rollouts != (runner.name == "appo"):
        fitting = "appo" if cfg.algo.learns_from_rollouts else "single_gpu, double_buffer or multi_gpu"
        problems.append(f"runner: got {runner.name}, allowed {fitting} with algo={cfg.algo.name}")
    if runner.world_size != 1 and runner.name not in RANK_RUNNERS:
        problems.append(
            f"runner.world_size: got {runner.world_size}, allowed 1 with runner={runner.name}; several learner ranks"
            " need runner=multi_gpu"
        )
    if runner.backend == "nccl" and cfg.device == "cpu":
        problems.append("runner.backend: got nccl, allowed auto or gloo with device=cpu: NCCL joins GPUs only")
    if runner.backend == "nccl" and runner.world_size > 1 and ":" in cfg.device:
        problems.append(
            f"runner.backend: got nccl, allowed auto or gloo with device={cfg.device}: NCCL refuses"
            f" {runner.world_size} ranks on one GPU; device=cuda gives each rank its own"
        )
    return problems


def _impossible_source(cfg: RunConfig) -> list[str]:
    source = cfg.replay.source
    if cfg.runner.name == "double_buffer" and source not in ("auto", "prefetch"):
        return [
            f"replay.source: got {source}, allowed prefetch or auto with runner=double_buffer; use runner=single_gpu"
        ]
    return []


def _impossible_ramps(cfg: RunConfig) -> list[str]:
    problems = [
        f"algo.{name}.begin: got {ramp.begin}, allowed less than total_timesteps={cfg.total_timesteps}: it would never"
        " begin"
        for name, ramp in cfg.algo.ramps.items()
        if (ramp.begin or 0) >= cfg.total_timesteps and getattr(cfg.algo, name).begin is not None
    ]
    if "lr" in cfg.algo.ramps and cfg.algo.lr_schedule != "constant":
        problems.append(
            f"algo.lr: got a schedule, allowed a number with algo.lr_schedule={cfg.algo.lr_schedule}, which is one"
        )
    return problems


def _impossible_stage(cfg: RunConfig) -> list[str]:
    problems: list[str] = []
    if cfg.algo.is_adapting and not cfg.teacher:
        problems.append("teacher: got null, allowed a run directory of algo=hora stage=teach, to begin with")
    if cfg.teacher and not cfg.algo.is_adapting:
        problems.append(f"teacher: got {cfg.teacher!r}, allowed nothing without algo=hora stage=adapt")
    if cfg.algo.is_adapting and cfg.algo.lr_schedule == "kl_adaptive":
        problems.append("algo.lr_schedule: got kl_adaptive, allowed constant or linear with stage=adapt: it has no KL")
    return problems
