"""The verdict: which side bounds the run, in which phase, why, and what to change.

A side's own time is its wall minus its wait for the other side. The side with more own time bounds the run, in
every collection mode: overlapped, the other one waits for it; in turns, it has the longer turn. Where that side could
have run and was not given a core, the machine bounds the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from offpolicy.model.rates import Rates
from offpolicy.timing.phases import COLLECTORS_TURN, CollectorPhase, LearnerPhase
from offpolicy.types import Lateness

BALANCED_RATIO = 0.95  # lowest ratio of the lesser own time to the greater at which neither side is the bottleneck
WORTHWHILE_GAIN = 1.05  # lowest predicted speed-up for which a change of mode is advised
CONTENDED = 0.25  # lowest share of the time without a core at which contention is the bottleneck of the slower side
MOSTLY = 0.5  # lowest share of a phase at which one part of it is named as its detail
IDLE_CORE = 0.5  # fewest idle cores, on average, at which another thread or process is advised
MOST_ADVICE = 3  # changes that a verdict suggests at most
STEADY_WINDOWS = 3  # consecutive windows in which a new cause must hold before it is shown

Phase = LearnerPhase | CollectorPhase


class Bottleneck(StrEnum):
    """The verdicts on a run: the side or the cause that bounds it."""

    LEARNER = "learner"
    COLLECTOR = "collector"
    LINK = "link"  # between the learner's host and those of remote collectors
    BALANCED = "balanced"
    CONTENTION = "contention"
    WARMING_UP = "warming up"
    UNKNOWN = "unknown"  # timing is off


class Detail(StrEnum):
    """What takes most of a phase."""

    RESETS = "resets"
    LAUNCH_BOUND = "launch-bound"
    DESCHEDULED = "descheduled"
    TRANSFER = "transfer"
    OVERHEAD = "overhead"


class Cause(NamedTuple):
    """What a verdict names, without its numbers."""

    bottleneck: Bottleneck
    phase: Phase | None
    detail: Detail | None = None


IsAllowed = Callable[[str, str | bool | float], bool]  # True if a run's configuration takes `key=value`


@dataclass(frozen=True, slots=True)
class Advice:
    """A change to try: any, or one that sets `key=value`, or one that multiplies the number under `key` by `factor`."""

    text: str
    key: str | None = None
    value: str | int | None = None
    needs_core: bool = False  # it brings nothing where no core is idle
    factor: float | None = None

    def for_config(
        self,
        config: Mapping[str, Any],  # Any: nested configuration values
        is_allowed: IsAllowed,
    ) -> Advice | None:
        """Returns the advice with the words to type, such as `env.num_envs=8`, where the configuration has a number.

        None where it is followed already, where the number cannot move (0 is off, 1 is the least), and where
        `is_allowed` refuses the new value.
        """
        if self.key is None:
            return self
        now: Any = config
        for name in self.key.split("."):
            now = now.get(name) if isinstance(now, Mapping) else None
        if self.factor is None:
            is_open = now != self.value and (self.value is None or is_allowed(self.key, self.value))
            return self if is_open else None
        if isinstance(now, bool) or not isinstance(now, int | float):
            return self
        new = now * self.factor if isinstance(now, float) else int(now * self.factor) or now
        if new == now or not is_allowed(self.key, new):
            return None
        return replace(self, text=f"{self.key}={new}: {self.text.partition(': ')[2]}, now {now}", factor=None)


def _raise(key: str, effect: str) -> Advice:
    return Advice(f"raise {key}: {effect}", key, factor=2)


def _lower(key: str, effect: str) -> Advice:
    return Advice(f"lower {key}: {effect}", key, factor=0.5)


def _setting(key: str, value: str | bool, effect: str = "", *, needs_core: bool = False) -> Advice:
    return Advice(f"{key}={str(value).lower()}{effect}", key, value, needs_core)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bottleneck, its phase (None while that is not known), the reason, and changes to try."""

    bottleneck: Bottleneck
    phase: Phase | None
    reason: str
    advice: tuple[Advice, ...] = ()
    share: float = 0.0  # share that `phase`, or what `detail` names, has in its side's wall, 0 to 1
    detail: Detail | None = None

    @property
    def cause(self) -> Cause:
        """What it names."""
        return Cause(self.bottleneck, self.phase, self.detail)

    @property
    def label(self) -> str:
        """The verdict in a few characters, such as `learner(train 94%)` or `collector(env_step: resets 60%)`."""
        if self.bottleneck is Bottleneck.LINK:
            return f"link({self.detail} {self.share:.0%})"
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.bottleneck}({self.phase}{detail} {self.share:.0%})" if self.phase else str(self.bottleneck)

    def for_run(
        self,
        config: Mapping[str, Any],  # Any: nested configuration values
        *,
        has_gpu: bool,
        is_allowed: IsAllowed = lambda key, value: True,
        steps_per_sec: float | None = None,
    ) -> Verdict:
        """The verdict with the first advice that the run can take.

        That is no GPU where there is none, no processes for a single environment or for those that threads step, no
        environments that step one after another, no change of what hardly decides how often it saves, and what
        `Advice.for_config` leaves.
        """
        env = config.get("env", {})
        is_single, is_one_by_one = env.get("num_envs") == 1, env.get("vectorization") == "sync"
        needs_no_workers = is_single or env.get("vectorization", "sync") not in ("sync", "async")
        left_out = {*(() if has_gpu else ("cuda", "resident")), *(("async",) if needs_no_workers else ())}
        useless = (*(MORE_ENVS if is_one_by_one else ()), *(() if is_one_by_one and is_single else (SEVERAL,)))
        saves = config.get("checkpoint", {})
        every, every_s = saves.get("every", 0), 60.0 * saves.get("every_min", 0.0)
        is_by_clock = not every or (steps_per_sec is not None and every > steps_per_sec * every_s)
        seldom = "checkpoint.every" if every_s and is_by_clock else "checkpoint.every_min"
        possible = [
            taken for advice in self.advice
            if advice.value not in left_out and advice.key != seldom and advice not in useless
            and (taken := advice.for_config(config, is_allowed)) is not None
        ]  # fmt: skip
        # Both of these are the same.
        if PACK_BESIDE in possible:
            packs_in_thread = config.get("replay", {}).get("source") == PACK_IN_THREAD.value
            possible = [each for each in possible if each != (PACK_BESIDE if packs_in_thread else PACK_IN_THREAD)]
        return replace(self, advice=tuple(possible[:MOST_ADVICE]))


WARMING_UP = Verdict(Bottleneck.WARMING_UP, None, "no update has been timed yet")


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """Measurements of a window besides its phases. Shares are 0 to 1, and 0 where nothing was measured."""

    longest_wait: float = 0.0  # largest share of its time that any rank waited for its collectors
    straggler: Lateness | None = None  # the rank that rank 0 waits for; None where none is late beyond chance
    learner_advice: Mapping[str, tuple[Advice, ...]] | None = None  # by phase; None: that for a replay
    learner_descheduled: float = 0.0  # share of the time in which it could have run and others had the core
    collector_descheduled: float = 0.0
    transfer: float = 0.0  # share of the bytes, in place of an empty call, in what is on its way to remote hosts
    resets: float = 0.0  # share of env_step that steps with a reset took longer than those without
    launch_bound: float = 0.0  # share of the iterations whose device work was done as soon as it had been queued
    may_try_threads: bool = True  # one learner rank, it computes on the CPU, and there is another number to try
    may_try_modes: bool = True  # its runner takes collect.mode=auto
    can_lower_collectors: bool = False  # collectors have several threads, and with the learners' more than the cores
    idle_cores: float | None = None  # mean number of them; None: not known
    overlap_gain: float = 1.0  # predicted factor of the throughput if both sides worked at the same time
    prediction_error: float = 0.0  # of such predictions before, as a fraction


LOWER_COLLECTORS = Advice("lower threads.collector or collect.num_collectors: they ask for more threads than the cores")
ON_CUDA = _setting("device", "cuda", ": for wide networks or large batches")
COPY_LESS = _setting("device", "cpu", ": small batches can cost more to copy than to learn")
TRY_THREADS = _setting("threads.learner", "auto", ": the fastest number of threads is found while the run trains")
PACK_BESIDE = Advice(
    "runner=double_buffer: batches are packed beside training", "runner.name", "double_buffer", needs_core=True
)
PACK_IN_THREAD = _setting("replay.source", "prefetch", ": batches are packed beside training", needs_core=True)
SAVE_SELDOM = (_raise("checkpoint.every_min", "less often"), _raise("checkpoint.every", "less often"))
LEARNER_ADVICE: Mapping[str, tuple[Advice, ...]] = {
    LearnerPhase.TRAIN: (
        TRY_THREADS,
        ON_CUDA,
        _lower("algo.batch_size", "less work per env step (a lower algo.utd or smaller networks too)"),
    ),
    LearnerPhase.REPLAY_BATCH_WAIT: (
        _setting("replay.source", "resident", ": with CUDA and runner=single_gpu or multi_gpu, sample on the device"),
        _raise("replay.slots", "more batches packed ahead"),
        Advice("lower algo.batch_size or algo.utd: batches are asked for faster than packed"),
    ),
    LearnerPhase.REPLAY_SAMPLE: (
        PACK_BESIDE,
        PACK_IN_THREAD,
        Advice("lower algo.batch_size or algo.utd: gathering rows takes longer than learning"),
    ),
    LearnerPhase.H2D: (
        PACK_BESIDE,
        PACK_IN_THREAD,
        _setting("replay.source", "resident", ": keep a copy of the rows on the device"),
        COPY_LESS,
    ),
    LearnerPhase.RANK_BARRIER: (_lower("runner.world_size", "ranks wait for the slowest one"),),
    LearnerPhase.PARAM_SYNC: (_lower("runner.world_size", "the exchange costs more than it saves"),),
    LearnerPhase.SYNC_COORDINATION: (
        _raise("env.num_envs", "fewer handshakes per env step"),
        _setting("collect.mode", "free"),
    ),
    LearnerPhase.WEIGHT_PUBLISH: (_raise("env.num_envs", "more updates between two publications"),),
    LearnerPhase.EVALUATION: (
        _setting("eval.beside", "true", ": evaluate in another process", needs_core=True),
        _raise("eval.every", "less often"),
        _lower("eval.episodes", "a shorter evaluation"),
    ),
    LearnerPhase.CHECKPOINT: (*SAVE_SELDOM, _setting("checkpoint.replay", False, ": resume without the replay rows")),
    LearnerPhase.LOG: (_raise("log.every_s", "less often"),),
    LearnerPhase.OTHER: (TRY_THREADS,),
}
# For algorithms that use every transition once: no UTD, no batch size, no packing.
ROLLOUT_ADVICE: Mapping[str, tuple[Advice, ...]] = {
    **LEARNER_ADVICE,
    LearnerPhase.TRAIN: (
        TRY_THREADS,
        ON_CUDA,
        _lower("algo.epochs", "less work per env step (a lower algo.num_minibatches or smaller networks too)"),
    ),
    LearnerPhase.REPLAY_BATCH_WAIT: (),
    LearnerPhase.CHECKPOINT: SAVE_SELDOM,
    LearnerPhase.REPLAY_SAMPLE: (
        Advice("lower env.num_envs or rollout.length: copying rollouts takes longer than learning"),
    ),
    LearnerPhase.H2D: (COPY_LESS,),
    LearnerPhase.SYNC_COORDINATION: (_raise("rollout.length", "fewer handshakes per env step"),),
    LearnerPhase.WEIGHT_PUBLISH: (_raise("rollout.length", "more updates between two publications"),),
}
# With env.vectorization=sync a vector step takes longer with each environment.
MORE_ENVS = (
    _raise("env.num_envs", "more transitions per vector step"),
    _raise("env.num_envs", "more transitions beside each reset"),
)
SEVERAL = Advice(
    "env.num_envs=4 env.vectorization=async: four environments step at the same time",
    "env.num_envs",
    4,
    needs_core=True,
)
COLLECTOR_ADVICE: Mapping[str, tuple[Advice, ...]] = {
    CollectorPhase.ENV_STEP: (
        _setting("env.vectorization", "async", " instead of sync: step environments in processes", needs_core=True),
        SEVERAL,
        MORE_ENVS[0],
    ),
    CollectorPhase.ACTION_SELECT: (
        _raise("env.num_envs", "one forward pass serves them all"),
        Advice("threads.collector: give inference more CPU threads", needs_core=True),
    ),
    CollectorPhase.WEIGHT_APPLY: (_raise("env.num_envs", "more transitions per weight version"),),
    CollectorPhase.REPLAY_WRITE: (_raise("env.num_envs", "more rows per write"),),
    CollectorPhase.HANDSHAKE: (_raise("env.num_envs", "fewer handshakes per env step"),),
    CollectorPhase.LINK_WAIT: (
        _raise("env.num_envs", "more transitions per call"),
        _setting("collect.mode", "overlap", ": one call is on its way while another one is carried out"),
    ),
    CollectorPhase.SNAPSHOT: SAVE_SELDOM,
    CollectorPhase.OTHER: (_raise("env.num_envs", "fewer rounds of the collector's loop per env step"),),
}
DETAIL_ADVICE: Mapping[str, tuple[Advice, ...]] = {
    Detail.RESETS: (
        _setting("env.vectorization", "async", " instead of sync: others step while one is reset", needs_core=True),
        SEVERAL,
        MORE_ENVS[1],
        Advice("raise the time limit of the episodes, if the task allows it"),
    ),
    Detail.LAUNCH_BOUND: (
        _raise("algo.batch_size", "a kernel costs the same launch for more rows"),
        Advice("raise algo.hidden_dims only if the task needs it: the device has room"),
        _setting("device", "cpu", ": networks this small can be faster without launches"),
    ),
    Detail.TRANSFER: (
        Advice("a faster network between the hosts, or smaller observations: the bytes of the rows take the time"),
    ),
    Detail.DESCHEDULED: (
        Advice("top: it shows what has the cores (stop other programs, or move this run)"),
        TRY_THREADS,
        LOWER_COLLECTORS,
    ),
}


def find_bottleneck(  # noqa: PLR0913  # what a verdict is made of, each needed
    learner_ns: Mapping[str, int],
    collector_ns: Mapping[str, int],
    rates: Rates,
    mode: str,
    evidence: WindowEvidence = WindowEvidence(),  # noqa: B008  # frozen
    shown: Cause | None = None,
) -> Verdict:
    """The verdict on one window: nanoseconds per phase of each side (collectors summed), rates, collection mode.

    `shown` is the cause to name, with the numbers of this window; None: the window's own.
    """
    learner_wall, collector_wall = sum(learner_ns.values()), sum(collector_ns.values())
    if learner_wall <= 0 or collector_wall <= 0:
        return WARMING_UP
    # Where one rank waits for its collectors, the others wait for that rank.
    learner = 1.0 - max(sum(learner_ns.get(each, 0) for each in COLLECTORS_TURN) / learner_wall, evidence.longest_wait)
    collector = 1.0 - collector_ns.get(CollectorPhase.LEARNER_WAIT, 0) / collector_wall
    phase = shown.phase if shown is not None else None
    phases: type[Phase]
    if learner >= collector if phase is None else isinstance(phase, LearnerPhase):
        side, phases, spent_ns, others = Bottleneck.LEARNER, LearnerPhase, learner_ns, tuple(map(str, COLLECTORS_TURN))
        table, waited = evidence.learner_advice or LEARNER_ADVICE, evidence.learner_descheduled
    else:
        side, phases, spent_ns = Bottleneck.COLLECTOR, CollectorPhase, collector_ns
        others = (str(CollectorPhase.LEARNER_WAIT),)
        table, waited = COLLECTOR_ADVICE, evidence.collector_descheduled
    phase = phase or phases(max((name for name in spent_ns if name not in others), key=lambda name: spent_ns[name]))
    share, advice = spent_ns.get(phase, 0) / sum(spent_ns.values()), table.get(phase, ())
    how = "in turns" if mode == "alternate" else "at the same time"
    reason = f"{how}, the learner is busy {learner:.0%} and the collector {collector:.0%} of the time"
    reason += f"; {side} {phase} takes {share:.0%}"
    if phase == LearnerPhase.RANK_BARRIER and evidence.straggler is not None:
        # Settings do not make a late rank faster, they only change what it costs.
        rank, late_ms, late_share = evidence.straggler
        reason += f": rank {rank} arrives {late_ms:.1f} ms late, in {late_share:.0%} of the iterations"
        advice = (Advice(f"rank {rank} arrives late: free its cores or device of other work"), *advice)
    if rates.collector_capacity and rates.learner_capacity:
        reason += f" (I={rates.collector_capacity:.0f}, T={rates.learner_capacity:.0f} env steps/s)"
    is_balanced = min(learner, collector) >= BALANCED_RATIO * max(learner, collector)
    bottleneck = shown.bottleneck if shown is not None else Bottleneck.BALANCED if is_balanced else side
    parts = {  # the share of each detail, and the lowest one at which it is named
        Detail.DESCHEDULED: (waited, CONTENDED),
        Detail.RESETS: (evidence.resets if phase == CollectorPhase.ENV_STEP else 0.0, MOSTLY),
        Detail.LAUNCH_BOUND: (evidence.launch_bound if phase == LearnerPhase.TRAIN else 0.0, MOSTLY),
        Detail.TRANSFER: (evidence.transfer if phase == CollectorPhase.LINK_WAIT else 0.0, MOSTLY),
        Detail.OVERHEAD: (1.0 if phase == CollectorPhase.LINK_WAIT else 0.0, MOSTLY),
    }
    found = next((each for each, (part, least) in parts.items() if part >= least), None)
    detail = shown.detail if shown is not None else found
    advice = DETAIL_ADVICE.get(detail, advice) if detail is not None else advice
    if detail is Detail.DESCHEDULED:
        bottleneck, share = Bottleneck.CONTENTION, waited
        reason = f"the {side} could have run and was not given a core for {waited:.0%} of the time; {reason}"
    elif detail is Detail.RESETS:
        reason, share = f"{reason}, {evidence.resets:.0%} of it because environments are reset", share * evidence.resets
    elif detail is Detail.LAUNCH_BOUND:
        reason += f"; in {evidence.launch_bound:.0%} of the iterations the device waited for launches"
    elif detail in (Detail.TRANSFER, Detail.OVERHEAD) and bottleneck is Bottleneck.COLLECTOR:
        bottleneck = Bottleneck.LINK
    # In turns both sides add up, so the first remedy is to overlap them, if that gains more than it may be wrong and
    # cores are not lacking.
    now, gain, error = rates.predicted_steps_per_sec, evidence.overlap_gain, evidence.prediction_error
    may_overlap = mode == "alternate" and detail is not Detail.DESCHEDULED
    if may_overlap and now and gain >= max(WORTHWHILE_GAIN, 1.0 + error):
        value, unsure = "auto" if evidence.may_try_modes else "overlap", f" (+-{error:.0%})" if error else ""
        more = f": about {gain * now:.0f}{unsure} instead of {now:.0f} env steps/s"
        advice = (_setting("collect.mode", value, more), *advice)
    has_core = evidence.idle_cores is None or evidence.idle_cores >= IDLE_CORE
    left_out = [] if evidence.may_try_threads else [TRY_THREADS]
    left_out += [] if evidence.can_lower_collectors else [LOWER_COLLECTORS]
    advice = tuple(each for each in advice if each not in left_out and (has_core or not each.needs_core))
    return Verdict(bottleneck, phase, reason, advice, share, detail)


class SteadyCause:
    """The cause that is shown: it changes once another one has held for `STEADY_WINDOWS` windows."""

    def __init__(self) -> None:
        self._shown: Cause | None = None
        self._candidate: Cause | None = None
        self._num_held = 0
        self._is_steady = False  # True: another cause must hold before it is shown
        self.has_changed = False  # True if the last window changed what is shown

    def begin_learning(self) -> None:
        """Lets the next window's cause be shown at once: the one before mixes random steps with learning."""
        self._is_steady = False

    def update(self, cause: Cause) -> Cause:
        """Returns the cause to show after a window with this one."""
        self._num_held = self._num_held + 1 if cause == self._candidate else 1
        self._candidate = cause
        self.has_changed = cause != self._shown and not (self._is_steady and self._num_held < STEADY_WINDOWS)
        if self.has_changed or self._shown is None:
            self._shown = cause
        self._is_steady = self._shown.bottleneck != Bottleneck.WARMING_UP
        return self._shown
