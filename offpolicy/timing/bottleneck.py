"""The verdict: which side bounds the run, in which phase, why, and what to change.

A side's own time is its wall minus its wait for the other side. The side with more own time bounds the run, in
every collection mode: overlapped, the other one waits for it; in turns, it has the longer turn. Where that side could
have run and was not given a core, the machine bounds the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.rates import Rates, predict_steps_per_sec

BALANCED_RATIO = 0.95  # the lesser own time, relative to the greater, from which on neither side is to blame
WORTHWHILE_GAIN = 1.05  # a change of mode is advised from this predicted speed-up on
CONTENDED = 0.25  # the share of the time that the slower side waits for a core, from which on that is to blame
MOSTLY = 0.5  # the share of a phase that a part of it has, from which on the part is to blame
STEADY_WINDOWS = 3  # for so many a new verdict must hold before it is shown
LEARNER, COLLECTOR, BALANCED, CONTENTION, WARMING_UP = "learner", "collector", "balanced", "contention", "warming up"
SETTING = re.compile(r"(?P<key>[a-z_]+(\.[a-z_]+)*)=(?P<value>\w+)\b")  # at the start of an advice
RESETS, LAUNCHES, DESCHEDULED = "resets", "launch-bound", "descheduled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verdict` is learner, collector, balanced, contention or warming up; `phase` is '' while warming up.

    `detail` says what of the phase it is, where that is known.
    """

    verdict: str
    phase: str
    reason: str
    advice: tuple[str, ...]
    share: float = 0.0  # of `phase`, or of what `detail` names, in its side's wall, 0 to 1
    detail: str = ""

    @property
    def label(self) -> str:
        """The verdict in a few characters, such as `learner(train 94%)` or `collector(env_step: resets 60%)`."""
        what = f"{self.phase}: {self.detail}" if self.detail else self.phase
        return f"{self.verdict}({what} {self.share:.0%})" if self.phase else self.verdict


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """What is known of a window besides its phases. Shares are 0 to 1; None where nothing says."""

    straggler: int | None = None  # the rank that the judged learner waits for
    learner_advice: Mapping[str, tuple[str, ...]] | None = None  # by phase; None: that for a replay
    learner_descheduled: float = 0.0  # of the time: it could have run, and others had the core
    collector_descheduled: float = 0.0
    resets: float = 0.0  # of env_step: what steps with a reset took longer than those without
    launch_bound: float = 0.0  # of the iterations: the device was done as soon as it had been given everything


SELDOM = "runner.sync=parameters: exchange every runner.sync_every iterations, not at every update"
LEARNER_ADVICE: Mapping[str, tuple[str, ...]] = {
    LearnerPhase.TRAIN: (
        "threads.learner: give the update more CPU threads",
        "device=cuda: for wide networks or large batches",
        "lower algo.utd, algo.batch_size or algo.hidden_dims: less work per env step",
    ),
    LearnerPhase.REPLAY_BATCH_WAIT: (
        "replay.source=resident: with CUDA and runner=single_gpu or multi_gpu, sample on the device",
        "raise replay.slots: more batches packed ahead",
        "lower algo.batch_size or algo.utd: batches are asked for faster than packed",
    ),
    LearnerPhase.REPLAY_SAMPLE: ("lower algo.batch_size or algo.utd: gathering rows takes longer than learning",),
    LearnerPhase.H2D: ("device=cpu: small batches can cost more to copy than to learn", "lower algo.batch_size"),
    LearnerPhase.RANK_BARRIER: (SELDOM, "lower runner.world_size: ranks wait for the slowest one"),
    LearnerPhase.PARAM_SYNC: (SELDOM, "lower runner.world_size: the exchange costs more than it saves"),
    LearnerPhase.SYNC_COORDINATION: ("raise env.num_envs: fewer handshakes per env step", "collect.mode=free"),
    LearnerPhase.WEIGHT_PUBLISH: ("raise env.num_envs: more updates between two publications",),
    LearnerPhase.EVALUATION: ("raise eval.every", "lower eval.episodes"),
    LearnerPhase.CHECKPOINT: ("raise checkpoint.every", "checkpoint.replay=false: resume without the replay rows"),
    LearnerPhase.LOG: ("raise log.every_s",),
    LearnerPhase.OTHER: ("threads.learner: time outside every phase grows when the cores are oversubscribed",),
}
# Where every transition is used once: no UTD, no batch size, no packing.
ROLLOUT_ADVICE: Mapping[str, tuple[str, ...]] = {
    **LEARNER_ADVICE,
    LearnerPhase.TRAIN: (
        "threads.learner: give the update more CPU threads",
        "device=cuda: for wide networks or large batches",
        "lower algo.epochs, algo.num_minibatches or algo.hidden_dims: less work per env step",
    ),
    LearnerPhase.REPLAY_BATCH_WAIT: (),
    LearnerPhase.CHECKPOINT: ("raise checkpoint.every",),
    LearnerPhase.REPLAY_SAMPLE: ("lower env.num_envs or rollout.length: copying rollouts takes longer than learning",),
    LearnerPhase.H2D: ("device=cpu: small batches can cost more to copy than to learn",),
    LearnerPhase.SYNC_COORDINATION: ("raise rollout.length: fewer handshakes per env step",),
    LearnerPhase.WEIGHT_PUBLISH: ("raise rollout.length: more updates between two publications",),
}
COLLECTOR_ADVICE: Mapping[str, tuple[str, ...]] = {
    CollectorPhase.ENV_STEP: (
        "env.vectorization=async instead of sync: step the environments in processes of their own",
        "raise env.num_envs: more transitions per vector step",
    ),
    CollectorPhase.ACTION_SELECT: (
        "raise env.num_envs: one forward pass serves them all",
        "threads.collector: give inference more CPU threads",
    ),
    CollectorPhase.WEIGHT_APPLY: ("raise env.num_envs: more transitions per weight version",),
    CollectorPhase.REPLAY_WRITE: ("raise env.num_envs: more rows per write",),
    CollectorPhase.OTHER: ("raise env.num_envs: fewer rounds of the collector's loop per env step",),
}


DETAIL_ADVICE: Mapping[str, tuple[str, ...]] = {
    RESETS: (
        "env.vectorization=async instead of sync: the other environments step while one is reset",
        "raise env.num_envs: more transitions beside each reset",
        "raise the time limit of the episodes, if the task allows it",
    ),
    LAUNCHES: (
        "raise algo.batch_size: a kernel costs the same launch for more rows",
        "raise algo.hidden_dims only if the task needs it: the device has room",
        "device=cpu: networks this small can be faster without launches",
    ),
    DESCHEDULED: (
        "free the cores: other programs have them",
        "lower threads.learner, threads.collector or collect.num_collectors: more threads run than there are cores",
    ),
}


def judge(
    learner_ns: Mapping[str, int],
    collector_ns: Mapping[str, int],
    rates: Rates,
    mode: str,
    known: WindowEvidence = WindowEvidence(),  # noqa: B008  # frozen
) -> Verdict:
    """The verdict on one window: nanoseconds per phase of each side (collectors summed), rates, collection mode."""
    learner_wall, collector_wall = sum(learner_ns.values()), sum(collector_ns.values())
    if learner_wall <= 0 or collector_wall <= 0:
        return Verdict(WARMING_UP, "", "no update has been timed yet", ())
    learner = 1.0 - learner_ns.get(LearnerPhase.COLLECTOR_WAIT, 0) / learner_wall
    collector = 1.0 - collector_ns.get(CollectorPhase.LEARNER_WAIT, 0) / collector_wall
    is_learner = learner >= collector
    if is_learner:
        phase, share = _largest(learner_ns, LearnerPhase.COLLECTOR_WAIT, learner_wall)
        advice = (known.learner_advice or LEARNER_ADVICE).get(phase, ())
    else:
        phase, share = _largest(collector_ns, CollectorPhase.LEARNER_WAIT, collector_wall)
        advice = COLLECTOR_ADVICE.get(phase, ())
    side = LEARNER if is_learner else COLLECTOR
    late_rank = known.straggler if phase == LearnerPhase.RANK_BARRIER else None
    is_balanced = min(learner, collector) >= BALANCED_RATIO * max(learner, collector)
    verdict = Verdict(
        BALANCED if is_balanced else side,
        phase,
        f"{_busy(learner, collector, mode)}; {side} {phase} takes {share:.0%}{_late(late_rank)}{_capacities(rates)}",
        _mode_advice(rates, mode) + _late_advice(late_rank) + advice,
        share,
    )
    return _detailed(verdict, side, known)


def _detailed(verdict: Verdict, side: str, known: WindowEvidence) -> Verdict:
    """What of the phase it is, where that is known; or that the side was not given a core."""
    waited = known.learner_descheduled if side == LEARNER else known.collector_descheduled
    if waited >= CONTENDED:
        told = f"the {side} could have run and was not given a core for {waited:.0%} of the time; {verdict.reason}"
        advice = DETAIL_ADVICE[DESCHEDULED] + verdict.advice
        return Verdict(CONTENTION, verdict.phase, told, advice, waited, DESCHEDULED)
    if verdict.phase == CollectorPhase.ENV_STEP and known.resets >= MOSTLY:
        told = f"{verdict.reason}, {known.resets:.0%} of it because environments are reset"
        share = verdict.share * known.resets
        return replace(verdict, reason=told, advice=DETAIL_ADVICE[RESETS], share=share, detail=RESETS)
    if verdict.phase == LearnerPhase.TRAIN and known.launch_bound >= MOSTLY:
        told = f"{verdict.reason}; in {known.launch_bound:.0%} of the iterations the device waited for launches"
        return replace(verdict, reason=told, advice=DETAIL_ADVICE[LAUNCHES], detail=LAUNCHES)
    return verdict


def without_what_is_done(verdict: Verdict, config: Mapping[str, Any]) -> Verdict:  # Any: nested configuration values
    """The verdict without the advice to set `key=value` where the configuration has it."""
    return replace(verdict, advice=tuple(line for line in verdict.advice if not _is_done(line, config)))


def _is_done(advice: str, config: Mapping[str, Any]) -> bool:
    found = SETTING.match(advice)
    if found is None:
        return False
    value: Any = config
    for name in found["key"].split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return str(value).lower() == found["value"]


class SteadyVerdict:
    """The verdict that is shown: it changes once another one has held for `STEADY_WINDOWS` windows."""

    def __init__(self) -> None:
        self._news: Verdict | None = None
        self._shown: Verdict | None = None
        self._candidate = ("", "", "")
        self._held = 0

    def settle(self, verdict: Verdict) -> Verdict:
        """What to show after a window that was judged so."""
        shown, kind = self._shown, _kind(verdict)
        self._held = self._held + 1 if kind == self._candidate else 1
        self._candidate = kind
        if shown is not None and shown.verdict != WARMING_UP and kind != _kind(shown) and self._held < STEADY_WINDOWS:
            return shown
        if shown is None or kind != _kind(shown):
            self._news = verdict
        self._shown = verdict
        return verdict

    def take_news(self) -> Verdict | None:
        """The verdict that is shown now, if it is another one than at the last call."""
        news, self._news = self._news, None
        return news


def _kind(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.verdict, verdict.phase, verdict.detail


def _largest(phases_ns: Mapping[str, int], wait: str, wall_ns: int) -> tuple[str, float]:
    """The phase with the most time besides the wait for the other side, and its share of wall."""
    phase = max((name for name in phases_ns if name != wait), key=lambda name: phases_ns[name])
    return str(phase), phases_ns[phase] / wall_ns


def _busy(learner: float, collector: float, mode: str) -> str:
    how = "in turns" if mode == "alternate" else "at the same time"
    return f"{how}, the learner is busy {learner:.0%} and the collector {collector:.0%} of the time"


def _late(rank: int | None) -> str:
    return "" if rank is None else f": rank {rank} arrives last"


def _late_advice(rank: int | None) -> tuple[str, ...]:
    """A rank that is later than the others has a cause of its own; settings only change what it costs."""
    return () if rank is None else (f"rank {rank} arrives last: free its cores or device of other work",)


def _capacities(rates: Rates) -> str:
    if not rates.collector_capacity or not rates.learner_capacity:
        return ""
    return f" (I={rates.collector_capacity:.0f}, T={rates.learner_capacity:.0f} env steps/s)"


def _mode_advice(rates: Rates, mode: str) -> tuple[str, ...]:
    """In turns both sides add up, so the first remedy is to overlap them, if the slower one leaves a gain."""
    overlapped = predict_steps_per_sec(rates.collector_capacity, rates.learner_capacity, "overlap")
    now = rates.predicted_steps_per_sec
    if mode != "alternate" or not overlapped or not now or overlapped < WORTHWHILE_GAIN * now:
        return ()
    return (f"collect.mode=overlap: up to {overlapped:.0f} instead of {now:.0f} env steps/s",)
