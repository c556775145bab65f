"""The algorithms: the facts about each that everything but the learner needs, and their options. No torch."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from offpolicy import plugins
from offpolicy.config.extensions import NetworkConfig
from offpolicy.config.parsing import option
from offpolicy.config.schedules import Ramp, Scheduled, value_at
from offpolicy.errors import ConfigError

REPLAY_CURVES = ("actor_loss", "critic_loss", "alpha_loss", "ent_coef", "q_mean", "target_q_mean", "entropy")
ROLLOUT_CURVES = (
    *("actor_loss", "critic_loss", "approx_kl", "entropy", "explained_variance", "rho_clip_fraction"),
    *("clip_fraction", "value_mean", "learning_rate"),
)


class PolicyKind(StrEnum):
    """The actor of a policy, as `nets/policy.py` builds it."""

    SQUASHED_GAUSSIAN = "squashed_gaussian"  # for discrete actions a softmax
    DETERMINISTIC = "deterministic"
    RESIDUAL = "residual"  # a squashed Gaussian of residual blocks with batch norm
    STOCHASTIC = "stochastic"  # a Gaussian for a Box, a categorical for discrete actions
    TEACHER = "teacher"
    STUDENT = "student"


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """The facts about an algorithm, or about one stage of it, that everything but the learner needs."""

    name: str
    policy: PolicyKind
    curves: tuple[str, ...]  # the `train/` metrics that the panel shows, the most wanted first
    learns_from_rollouts: bool = False  # each transition is used in one batch of rollouts; else sampled from a replay
    stage: str | None = None  # None: the algorithm has no stages
    action_spaces: tuple[str, ...] = ("Box",)
    # Of a plug-in, an entry point of `offpolicy.algos`:
    options: type[AlgoConfig] | None = None  # its options: a subclass, whose defaults are the algorithm's
    update_rule: str = ""  # module:Class, a `ReplayRule` or a `RolloutRule`; imported where torch is
    like: AlgorithmInfo | None = None  # the algorithm of ours whose options it reads too; None: it may read any

    @property
    def choice(self) -> str:
        """The words after `algo=` that choose it."""
        return self.name if self.stage is None else f"{self.name} stage={self.stage}"


ALL_SPACES = ("Box", "Discrete", "MultiDiscrete")
SAC = AlgorithmInfo("sac", PolicyKind.SQUASHED_GAUSSIAN, REPLAY_CURVES, action_spaces=("Box", "Discrete"))
TD3 = AlgorithmInfo("td3", PolicyKind.DETERMINISTIC, REPLAY_CURVES)
FLASHSAC = AlgorithmInfo("flashsac", PolicyKind.RESIDUAL, (*REPLAY_CURVES, "reward_scale"))
APPO = AlgorithmInfo("appo", PolicyKind.STOCHASTIC, ROLLOUT_CURVES, learns_from_rollouts=True, action_spaces=ALL_SPACES)
HORA_TEACH = AlgorithmInfo(
    *("hora", PolicyKind.TEACHER, ROLLOUT_CURVES),
    learns_from_rollouts=True, stage="teach", action_spaces=ALL_SPACES,
)  # fmt: skip
HORA_ADAPT = AlgorithmInfo(
    *("hora", PolicyKind.STUDENT, ("latent_loss", "latent_explained", "learning_rate")),
    learns_from_rollouts=True, stage="adapt", action_spaces=ALL_SPACES,
)  # fmt: skip
ALGORITHMS = (SAC, TD3, FLASHSAC, APPO, HORA_TEACH, HORA_ADAPT)

FROM_REPLAY = tuple(info for info in ALGORITHMS if not info.learns_from_rollouts)
FROM_ROLLOUTS = tuple(info for info in ALGORITHMS if info.learns_from_rollouts)


def _one_of(infos: tuple[AlgorithmInfo, ...]) -> str:
    return "algo=" + ",".join(dict.fromkeys(info.name for info in infos))


# What options need. A stage is one of HORA; other algorithms leave it at `teach`.
REPLAY, ROLLOUTS, PERCEPTRONS = _one_of(FROM_REPLAY), _one_of(FROM_ROLLOUTS), "algo!=flashsac"
SOFT, HORA, VALUES = "algo=sac,flashsac", "algo=hora", "algo.stage=teach"
POLICY_GRADIENT, ADAPTING = f"{ROLLOUTS} {VALUES}", f"{HORA} algo.stage=adapt"
EVALUATION = "eval.episodes!=0"
EVALUATION_BEFORE_THE_END = f"{EVALUATION} eval.every!=0 eval.every<total_timesteps"


def algorithms_for(action_space: str) -> str:
    """Returns the algorithms that act in `Box`, `Discrete` or `MultiDiscrete`, as they are chosen.

    HORA, which has stages, is not among them: it needs its own observation.
    """
    names = (info.name for info in ALGORITHMS if action_space in info.action_spaces and not info.stage)
    return " or ".join(f"algo={name}" for name in dict.fromkeys(names))


def algorithm_plugin(name: str, key: str = "algo") -> plugins.Plugin | None:
    """Returns the plug-in of an algorithm that is none of ours; None where there is none. Raises `ConfigError`."""
    return None if any(info.name == name for info in ALGORITHMS) else plugins.find(plugins.ALGOS, name, key)


@functools.cache
def algorithm_info(name: str, stage: str = "") -> AlgorithmInfo:
    """Returns the entry of `ALGORITHMS`; `stage` matters only to an algorithm that has stages.

    An algorithm of another trainer, whose times are logged here, has none: its curves are those of a replay.
    """
    found = [info for info in ALGORITHMS if info.name == name]
    if not found and (plugin := algorithm_plugin(name)) is not None:
        info = plugins.load(plugin, AlgorithmInfo)
        if info.name != name or info.options is None or info.options().name != name:
            raise ConfigError(f"{plugin}: it and the default of its options' name are not {name!r}")
        return info
    foreign = AlgorithmInfo(name, PolicyKind.STOCHASTIC, REPLAY_CURVES)
    return next((info for info in found if info.stage == stage), found[0] if found else foreign)


SMALL_DENOMINATOR = 10_000  # of `algo.utd` as a fraction: 1/3 is meant by 0.33333
ALIKE = 1e-4  # relative error of such a fraction, at most; else it may have the denominator below
LARGEST_DENOMINATOR = 10_000_000


def exact_utd(utd: float) -> Fraction:
    """Returns the updates per env step as the fraction that is meant."""
    ratio = Fraction(utd).limit_denominator(SMALL_DENOMINATOR)
    return ratio if abs(float(ratio) - utd) <= ALIKE * utd else Fraction(utd).limit_denominator(LARGEST_DENOMINATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoConfig:
    """Hyper-parameters."""

    name: str = option("sac", "algorithm", choices=tuple(dict.fromkeys(info.name for info in ALGORITHMS)))
    gamma: float = option(0.99, "discount factor", ge=0.0, le=1.0, needs=VALUES)
    hidden_dims: tuple[int, ...] = option(
        (256, 256), "units of the hidden layers of actor and critics", ge=1, needs=PERCEPTRONS
    )
    activation: str = option(
        "relu", "activation of the hidden layers", choices=("relu", "elu", "silu", "tanh"), needs=PERCEPTRONS
    )
    network: NetworkConfig = field(default_factory=NetworkConfig)
    actor_input: str = option(
        "all",
        "the group of a Dict observation that the actor reads, while the critics read all; all: it reads all too;"
        " history: proprio_hist",
        needs="algo!=hora",
    )
    normalize_obs: bool = option(False, "normalise observations with running statistics")
    max_grad_norm: float | None = option(
        None, "clip the gradient norm of actor and of critics to this; null: no clipping", gt=0.0
    )
    # SAC, TD3 and FlashSAC
    tau: float = option(0.005, "Polyak coefficient of the target networks", gt=0.0, le=1.0, needs=REPLAY)
    batch_size: int = option(256, "rows per gradient update", ge=1, needs=REPLAY)
    learning_starts: int = option(1000, "env steps of random actions before the first update", ge=1, needs=REPLAY)
    utd: float = option(
        1.0,
        "update-to-data ratio (UTD): gradient updates per environment transition",
        ge=0.00001,
        le=64.0,
        needs=REPLAY,
    )
    actor_lr: Scheduled = option(3e-4, "Adam step size of the actor", gt=0.0, needs=REPLAY)
    critic_lr: Scheduled = option(3e-4, "Adam step size of the critics", gt=0.0, needs=REPLAY)
    critic_layer_norm: bool = option(False, "layer norm after each hidden layer of the critics", needs="algo=sac,td3")
    policy_delay: int = option(1, "critic updates per actor update", ge=1, needs=REPLAY)
    kernels: str = option(
        "auto",
        "how an update is made: textbook, from the losses as they are written, by autograd; fast, on a CPU and for the"
        " standard networks, with gradients written down; auto: fast where that is the same update, else textbook",
        choices=("auto", "textbook", "fast"), needs="algo=sac,td3",
    )  # fmt: skip
    products: str = option(
        "auto",
        "what multiplies matrices in fast kernels: blas, of torch; onednn; auto: onednn on AMD's processors from"
        " family 26 (Zen 5) on, else blas",
        choices=("auto", "blas", "onednn"), needs="algo=sac,td3 algo.kernels!=textbook",
    )  # fmt: skip
    precision: str = option(
        "fp32",
        "fp32; bf16, on CUDA: matrix products in bfloat16 (torch.autocast), parameters and optimiser stay float32",
        choices=("fp32", "bf16"), needs=REPLAY,
    )  # fmt: skip
    compile: str = option(
        "off",
        "how an update is launched: off, kernel by kernel; graph, on CUDA: captured in the first update and launched as"
        " one",
        choices=("off", "graph"), needs=REPLAY,
    )  # fmt: skip
    n_step: int = option(1, "steps of reward summed before bootstrapping", ge=1, le=64, needs=REPLAY)
    # SAC and FlashSAC
    alpha_lr: Scheduled = option(
        3e-4, "Adam step size of the temperature", gt=0.0, needs=f"{SOFT} algo.auto_alpha=true"
    )
    init_alpha: float = option(1.0, "initial temperature; the temperature with auto_alpha=false", gt=0.0, needs=SOFT)
    auto_alpha: bool = option(True, "tune the temperature towards the target entropy", needs=SOFT)
    target_entropy: Scheduled | None = option(
        None, "target entropy in nats; null: -action_dim, of the [-1, 1] space; 0.98 log K of K discrete actions;"
        " FlashSAC: that of algo.target_sigma",
        needs=f"{SOFT} algo.auto_alpha=true",
    )  # fmt: skip
    # FlashSAC
    noise_repeat: int = option(
        1, "env steps for which a draw of exploration noise is held, at most: n of them with P(n) ~ 1/n^2",
        ge=1, le=1000, needs="algo=flashsac",
    )  # fmt: skip
    actor_width: int = option(64, "units of the residual stream of the actor", ge=1, le=16384, needs="algo=flashsac")
    critic_width: int = option(64, "units of the residual stream of each critic", ge=1, le=16384, needs="algo=flashsac")
    num_blocks: int = option(2, "residual blocks of actor and critics", ge=1, le=64, needs="algo=flashsac")
    num_bins: int = option(51, "bins of the distribution of returns", ge=2, le=4096, needs="algo=flashsac")
    value_max: float = option(5.0, "the bins lie in +- this, in scaled returns", gt=0.0, needs="algo=flashsac")
    scale_reward: bool = option(
        True, "divide rewards by the spread of the running discounted returns", needs="algo=flashsac"
    )
    target_sigma: float = option(
        0.15, "std of the Gaussian whose entropy is the target's, in the [-1, 1] space", gt=0.0,
        needs="algo=flashsac algo.auto_alpha=true algo.target_entropy=null",
    )  # fmt: skip
    # TD3
    exploration_noise: Scheduled = option(
        0.1, "std of the action noise, in the [-1, 1] space", ge=0.0, needs="algo=td3"
    )
    target_noise: float = option(0.2, "std of the target-policy smoothing noise", ge=0.0, needs="algo=td3")
    target_noise_clip: float = option(0.5, "clip of the target-policy smoothing noise", ge=0.0, needs="algo=td3")
    # APPO and HORA
    lr: Scheduled = option(3e-4, "Adam step size; one for everything that learns", gt=0.0, needs=ROLLOUTS)
    lr_schedule: str = option(
        "constant", "constant; linear: to 0 at the end; kl_adaptive: holds the KL of an epoch near target_kl",
        choices=("constant", "linear", "kl_adaptive"), needs=ROLLOUTS,
    )  # fmt: skip
    target_kl: float = option(
        0.01, "KL of an epoch, in nats", gt=0.0, needs=f"{POLICY_GRADIENT} algo.lr_schedule=kl_adaptive"
    )
    epochs: int = option(10, "passes over a batch of rollouts", ge=1, le=1000, needs=ROLLOUTS)
    num_minibatches: int = option(8, "gradient steps of one pass", ge=1, needs=ROLLOUTS)
    advantage: str = option(
        "vtrace", "vtrace: corrected for the policy's age; gae: not", choices=("vtrace", "gae"), needs=POLICY_GRADIENT
    )
    gae_lambda: float = option(0.95, "lambda of V-trace and GAE", ge=0.0, le=1.0, needs=POLICY_GRADIENT)
    rho_clip: float = option(1.0, "bound of rho", gt=0.0, needs=f"{POLICY_GRADIENT} algo.advantage=vtrace")
    trace_clip: float = option(1.0, "bound of c", gt=0.0, needs=f"{POLICY_GRADIENT} algo.advantage=vtrace")
    clip: float = option(0.2, "the ratio counts between 1 - clip and 1 + clip", gt=0.0, lt=1.0, needs=POLICY_GRADIENT)
    value_coef: float = option(0.5, "weight of the critic's loss", ge=0.0, needs=POLICY_GRADIENT)
    value_clip: float | None = option(
        None, "the critic gains nothing by moving further than this, in its own units; null: no bound",
        gt=0.0, needs=POLICY_GRADIENT,
    )  # fmt: skip
    ent_coef: float = option(0.0, "weight of the policy's entropy", ge=0.0, needs=POLICY_GRADIENT)
    bounds_coef: float = option(0.0, "weight of means beyond +-1.1", ge=0.0, needs=POLICY_GRADIENT)
    normalize_advantage: bool = option(True, "advantages to mean 0 and std 1 per batch", needs=POLICY_GRADIENT)
    normalize_value: bool = option(True, "the critic predicts in units of its targets' spread", needs=POLICY_GRADIENT)
    init_log_std: float = option(0.0, "log std of the first policy for a Box", ge=-5, le=2, needs=POLICY_GRADIENT)
    # HORA
    stage: str = option(
        "teach", "teach: with privileged information; adapt: infer it from the history", choices=("teach", "adapt"),
        needs=HORA,
    )  # fmt: skip
    latent_dim: int = option(8, "numbers that the privileged information is squeezed into", ge=1, le=1024, needs=HORA)
    encoder_dims: tuple[int, ...] = option((256, 128), "units of the encoder's hidden layers", ge=1, needs=HORA)

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
    def scales_reward(self) -> bool:
        """True if rewards are divided by the spread of the running discounted returns."""
        return self.info is FLASHSAC and self.scale_reward

    @property
    def why_not_fast(self) -> str:
        """The option with which there are no fast kernels; '' where there are, on a CPU and for a Box."""
        options = {
            f"algo={self.name}": self.info not in (SAC, TD3),
            f"algo.network={self.network.name}": self.network.name is not None,
            f"algo.activation={self.activation}": self.activation == "silu",
            "algo.critic_layer_norm=true": self.critic_layer_norm,
        }
        return next((option for option, is_set in options.items() if is_set), "")

    @property
    def warmup(self) -> int:
        """Env steps before anything is learnt; schedules begin there by default."""
        return 0 if self.learns_from_rollouts else self.learning_starts

    def value(self, given: Scheduled, env_steps: int) -> float:
        """Returns the number in force at an env step of the run, of one of these options."""
        return value_at(given, env_steps, self.warmup)

    @property
    def ramps(self) -> dict[str, Ramp]:
        """The options that change during the run, by name, each saying where it begins."""
        found = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        return {
            name: ramp if ramp.begin is not None else dataclasses.replace(ramp, begin=self.warmup)
            for name, ramp in found.items()
            if isinstance(ramp, Ramp)
        }
