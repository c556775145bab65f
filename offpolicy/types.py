"""The data that crosses module borders, and the legend of tensor shapes.

Shape legend: B batch rows (of rollouts: all environments), U updates of one iteration, N environments, T time steps,
O observation, A action, C critics, W columns of a packed replay row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Json: TypeAlias = Any  # Any: a value as JSON and YAML have it: of a configuration, a record or a summary

OBS, PRIVILEGED, HISTORY = "obs", "privileged", "proprio_hist"  # HORA's groups, by their keys in a Dict observation
MIN_FRAMES = 25  # frames of history from which one is left after the convolutions of HORA's student
# The fields of `SpaceSpec` that a policy is made for. `obs_dtype` is not: it says how a replay stores observations.
POLICY_SPACES = (
    "obs_dim", "obs_keys", "obs_shapes", "box_shape",
    "action_dim", "action_shape", "num_actions", "nvec", "action_low", "action_high",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """The spaces of an environment, as networks and replay need them; plain numbers, so they travel as JSON."""

    obs_dim: int
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    obs_keys: tuple[str, ...] = ()  # the parts of a Dict observation in the order in which they are flattened
    obs_shapes: tuple[tuple[int, ...], ...] = ()  # of those parts
    num_actions: int = 0  # of a Discrete space, else 0
    max_episode_steps: int | None = None
    nvec: tuple[int, ...] = ()  # actions of each choice of a MultiDiscrete space, else nothing
    obs_dtype: str = "float32"  # as the replay stores them: uint8 where all parts are of bytes
    box_shape: tuple[int, ...] = ()  # of a Box observation of a higher rank than 1, which is flattened; else nothing
    action_shape: tuple[int, ...] | None = None  # as the environment takes an action; None: the run did not record it
    resets_in_step: bool = False  # the step that ends an episode begins the next one, too: no row is one of autoreset
    draws: bool | None = None  # the environment makes pictures (render mode rgb_array); None: the run did not record it
    coarse: tuple[str, ...] = ()  # numbers of the observation whose changes float32 cannot hold
    saturates: bool = False  # actions at half of env.action_bounds do what those at the bounds do

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpaceSpec:
        """The inverse of `dataclasses.asdict` after a trip through JSON."""
        return cls(**{name: _as_tuples(value) for name, value in data.items()})

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of actions of each discrete choice [A]; empty for a Box."""
        return (self.num_actions,) if self.num_actions else self.nvec

    @property
    def action_space(self) -> str:
        """The kind of action space: Box, Discrete or MultiDiscrete."""
        return "Discrete" if self.num_actions else "MultiDiscrete" if self.nvec else "Box"

    def differences(self, now: SpaceSpec) -> list[str]:
        """Returns what of `POLICY_SPACES` is another one in `now`, in words. A shape not recorded here is no other."""
        is_known = {"box_shape": bool(self.box_shape), "action_shape": self.action_shape is not None}
        known = [name for name in POLICY_SPACES if is_known.get(name, True)]
        both = ((name, getattr(self, name), getattr(now, name)) for name in known)
        return [f"{name} was {before}, is {after}" for name, before, after in both if before != after]

    def columns(self, key: str) -> slice:
        """The columns of the part `key` of a Dict observation in the flattened one. Raises `ValueError`."""
        index = self.obs_keys.index(key)
        start = sum(math.prod(shape) for shape in self.obs_shapes[:index])
        return slice(start, start + math.prod(self.obs_shapes[index]))

    def actor_group(self, actor_input: str) -> str | None:
        """The part of a Dict observation that `algo.actor_input` means; None: the actor reads all parts."""
        if actor_input == "history" and actor_input not in self.obs_keys:
            return HISTORY
        return None if actor_input == "all" else actor_input

    def shape_of(self, key: str) -> tuple[int, ...]:
        """The shape of the part `key` of a Dict observation. Raises `ValueError`."""
        return self.obs_shapes[self.obs_keys.index(key)]


def _as_tuples(value: Any) -> Any:  # Any: lists of lists of numbers, or plain values
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


class StepOutcome(NamedTuple):
    """One vector step. Rows where `is_valid` is False are autoreset rows: never stored, counted or normalised."""

    next_obs: Float32  # [N, O] the true successor; the final observation on rows that end an episode
    reward: Float64  # [N] raw, as the environment gave it
    terminated: Bool  # [N] the MDP ended: do not bootstrap
    truncated: Bool  # [N] the clock ended: bootstrap
    is_valid: Bool  # [N] False on the row after an episode's end where that begins the next one (NEXT_STEP)
    success: Float32  # [N] 1 or 0 at an episode's end if the environment says so, else NaN
    measure: Float32  # [N] what `env.measure` names, at an episode's end, else NaN
    reset_obs: Float32 | None = None  # [N, O] to act on next, where episodes have begun in this very step
    log: Mapping[str, float] = {}  # numbers of the step, which become metrics `env/<name>`

    @property
    def obs_to_act_on(self) -> Float32:
        """The observations [N, O] that come after it."""
        return self.next_obs if self.reset_obs is None else self.reset_obs


class Batch(NamedTuple):
    """Rows of one gradient update; every field has the leading dimension B."""

    obs: Tensor  # [B, O]
    action: Tensor  # [B, A] in [-1, 1]
    reward: Tensor  # [B] sum of gamma^i r_i over the k steps of the row
    next_obs: Tensor  # [B, O] the observation k steps later
    terminated: Tensor  # [B] 1.0 where the MDP ended
    discount: Tensor  # [B] gamma^k


class Batches(NamedTuple):
    """The batches of one learner iteration."""

    updates: tuple[Batch, ...]  # length U
    fresh_obs: Tensor | None  # [M, O] observations not seen before, for the normaliser; None when it is off
    env_steps: int = 0  # of the whole run, the same on all ranks: schedules depend on them
    fresh_returns: Tensor | None = None  # moments [4] of the discounted returns of fresh rows; None: rewards stay


class Rollouts(NamedTuple):
    """The rollouts of one learner iteration of an on-policy algorithm: B environments over T steps, time first."""

    obs: Tensor  # [T + 1, B, O] raw; row t + 1 is the true successor of row t, but where `final_obs` has it
    action: Tensor  # [T, B, A] as the policy drew it
    log_prob: Tensor  # [T, B] of the action, by the policy that acted
    reward: Tensor  # [T, B] raw
    terminated: Tensor  # [T, B] 1.0 where the MDP ended
    truncated: Tensor  # [T, B] 1.0 where the clock ended
    is_valid: Tensor  # [T, B] 1.0 for a transition, 0.0 for the autoreset row after an episode's end
    progress: float  # share of the run's env steps done so far, 0 to 1
    env_steps: int = 0  # transitions learnt from before these
    final_obs: Tensor | None = None  # [T, B, O] raw, the true successor; None where `obs` always has it


class PolicyOutput(NamedTuple):
    """What a policy decides in each of N environments."""

    action: Float32  # [N, A]
    log_prob: Float32 | None  # [N] of the action; None where the algorithm does not learn from it
    version: int  # of the weights it acted with


class MetricTotals(NamedTuple):
    """Cumulative sums and counts of the learner's metrics; a reader subtracts two of these to get a mean."""

    names: tuple[str, ...]
    sums: Float64  # [len(names)]
    counts: Float64  # [len(names)]


class Episodes(NamedTuple):
    """Complete episodes. The seed of episode i depends on neither the policy nor the number of environments."""

    ep_return: Float64  # [E] raw
    length: Float64  # [E]
    measure: Float64  # [E] what `env.measure` names; NaN where nothing is measured


class EvalResult(NamedTuple):
    """Undiscounted raw returns of complete episodes."""

    env_steps: int
    mean_reward: float
    std_reward: float
    mean_length: float
    episodes: int
    policy_version: int = 0  # of the published weights that were evaluated


class EpisodeRecord(NamedTuple):
    """One finished training episode, raw return."""

    env_steps: int  # transitions collected when it ended
    env_index: int
    ep_return: float
    ep_length: int
    terminated: bool
    truncated: bool
    success: float  # 1 or 0 if the environment says so, else NaN

    def known(self) -> dict[str, float]:
        """Returns the fields that are finite, as a line of `episodes.jsonl`: a success may be unknown."""
        return {name: value for name, value in self._asdict().items() if math.isfinite(value)}


HISTOGRAM_BINS = 449  # bins of a histogram of durations; see offpolicy/timing/histogram.py
NUM_LAGS = 32  # classes of policy lag: 0 to 30 versions, and more


class SchedulerStats(NamedTuple):
    """The kernel's statistics of the thread that an account belongs to, since the thread's start."""

    runnable_ns: int = 0  # time in which it could have run and others had the core
    preemptions: int = 0  # times that the core was taken from it


class TaggedTime(NamedTuple):
    """The iterations that were tagged, and the time of one phase in them."""

    iterations: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Cooldown:
    """The part of an account that came after its last iteration: the final evaluation, waiting to be stopped."""

    phases_ns: Mapping[str, int]
    cpu_ns: int
    scheduler: SchedulerStats


@dataclass(frozen=True, slots=True)
class Account:
    """The cumulative time of one clock since its warm-up ended, in integer nanoseconds."""

    wall_ns: int
    warmup_ns: int  # imports, construction, random collection and the learner's first iteration
    iterations: int
    phases_ns: Mapping[str, int]  # `other` among them; their sum is `wall_ns`
    cpu_ns: int  # CPU time of the process since its start
    scheduler: SchedulerStats = SchedulerStats()
    tagged: TaggedTime = TaggedTime()
    # counts [phases + 1, bins] over iterations, the last row those of whole iterations
    histogram: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    cooldown: Cooldown | None = None  # None while there are iterations

    @property
    def is_empty(self) -> bool:
        """True if no clock has run: timing is off, there is no such thread, or it has not reported."""
        return self.wall_ns + self.warmup_ns == 0


NO_ACCOUNT = Account(wall_ns=0, warmup_ns=0, iterations=0, phases_ns={}, cpu_ns=0)


@dataclass(frozen=True, slots=True)
class CoreTotals:
    """What the cores of this host did since the run started, in integer nanoseconds of CPU time."""

    wall_ns: int
    capacity_ns: int  # the cores that the run may use, times `wall_ns`
    classes_ns: Mapping[str, int]  # by `CoreClass`; their sum is `capacity_ns`


@dataclass(frozen=True, slots=True)
class SystemLoad:
    """The load of the machine at one instant, of all programs; None for what is not known."""

    memory_gib: float
    memory_total_gib: float
    gpu_pct: float | None = None  # of the run's first GPU, as all of its numbers
    vram_gib: float | None = None
    vram_total_gib: float | None = None
    gpu_watts: float | None = None


class RolloutTotals(NamedTuple):
    """Cumulative counts of the rollouts of one learner rank; the reader subtracts."""

    too_old: int  # rollouts not learnt from, because their weights were too old
    lags: Float64  # [NUM_LAGS] rollouts learnt from, by the age of their weights in versions


class LateTotals(NamedTuple):
    """Cumulative lateness of one rank: how much longer it works than the median rank, of two the faster."""

    iterations: int = 0
    late: int = 0  # iterations in which this rank was late
    late_ns: int = 0  # sum over those iterations
    capped_ns: int = 0  # the same, of each iteration a tenth of its work at most


class Lateness(NamedTuple):
    """How much longer a rank works than the median rank, over a window."""

    rank: int
    ms: float  # per iteration
    share: float  # of the iterations in which it was late, 0 to 1


class DeviceTotals(NamedTuple):
    """Cumulative device time of one learner rank, and counts; the reader subtracts."""

    train_ns: int
    h2d_ns: int  # copies that the learner waited for
    h2d_hidden_ns: int  # copies behind its work
    sample_ns: int  # drawing and gathering rows
    collect_ns: int  # stepping a batch of tensors
    iterations: int
    launch_bound: int  # iterations whose device work was done as soon as it had been queued
    dropped: int  # spans that were not timed, because too many were pending


@dataclass(frozen=True, slots=True)
class LearnerTotals:
    """Cumulative counters of one learner rank; the reader subtracts."""

    account: Account
    updates: int
    samples: int  # replay rows used
    sample_age_sum: float  # sum over `samples` of the row's age in env steps
    metrics: MetricTotals
    packer: Account = NO_ACCOUNT  # of the thread that packs batches ahead
    rollouts: RolloutTotals | None = None  # None where the algorithm learns from a replay
    device: DeviceTotals | None = None  # None without CUDA, and when timing is off
    late: LateTotals = LateTotals()
    warmup_updates: int = 0  # updates done when the account began


class LinkTotals(NamedTuple):
    """Cumulative costs of the calls of one remote collector; the reader subtracts.

    The first five are the time from a call until its reply is here, and add up to it.
    """

    queued_ns: int  # it had come, and the call before it was being carried out
    remote_busy_ns: int
    serialise_ns: int
    transfer_ns: int  # what is left of it
    overhead_ns: int  # as much as an empty call takes
    copy_ns: int  # into the memory of the learner's host
    calls: int
    bytes: int  # of replies and weights
    env_steps: int
    lag_versions: int  # sum over calls of the versions by which their weights were behind when the reply came


@dataclass(frozen=True, slots=True)
class CollectorTotals:
    """Cumulative counters of one collector; the reader subtracts."""

    account: Account
    env_steps: int  # transitions
    vector_steps: int
    policy_lag_sum: float  # sum over vector steps of (newest published version - version acted with)
    policy_steps: int  # vector steps acted by the policy (not uniformly at random)
    rollouts: int = 0  # finished rollouts, dropped ones included
    rollouts_dropped: int = 0  # rollouts dropped because no slot was free
    log: tuple[tuple[str, float, int], ...] = ()  # numbers that the environments log: name, sum, count
    link: LinkTotals | None = None  # None for a collector of the learner's host


@dataclass(frozen=True, slots=True)
class EvaluatorTotals:
    """Cumulative counters of the evaluator's process; the reader subtracts."""

    account: Account
    episodes: int  # finished episodes
    skipped: int  # requests replaced by a newer one before their evaluation started


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters of all processes at one instant; two snapshots make one record."""

    wall_s: float  # supervisor's clock since the run started
    env_steps: int
    iteration: int
    learners: tuple[LearnerTotals, ...]  # by global rank
    collectors: tuple[CollectorTotals, ...]
    replay_rows: int
    replay_capacity: int
    update_debt: float | None  # updates owed: (env_steps - start of learning) * utd - updates; None without a UTD
    evaluator: EvaluatorTotals | None = None  # None where rank 0 evaluates
    cores: CoreTotals | None = None  # of this host; None when timing is off
    system: SystemLoad | None = None  # of this host
    restarts: int = 0  # times that collectors of this host made their environments again
    learner_restarts: int = 0  # times that all processes began again after a death


NO_COUNTERS = Snapshot(0.0, 0, 0, (), (), 0, 0, None)  # the start of every counter and clock
