"""The verdict: which side bounds the run, in which phase, why, and what to change.

A side's own time is its wall minus its wait for the other side. The side with more own time bounds the run, in
every collection mode: overlapped, the other one waits for it; in turns, it has the longer turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.rates import Rates, predict_steps_per_sec

BALANCED_RATIO = 0.9  # the lesser own time, relative to the greater, from which on neither side is to blame
WORTHWHILE_GAIN = 1.05  # a change of mode is advised from this predicted speed-up on
WARMING_UP = "warming up"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verdict` is learner, collector, balanced or warming up; `phase` is '' while warming up."""

    verdict: str
    phase: str
    reason: str
    advice: tuple[str, ...]
    share: float = 0.0  # of `phase` in its side's wall, 0 to 1

    @property
    def label(self) -> str:
        """The verdict in a few characters, such as `learner(train 94%)`."""
        return f"{self.verdict}({self.phase} {self.share:.0%})" if self.phase else self.verdict


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


def judge(
    learner_ns: Mapping[str, int],
    collector_ns: Mapping[str, int],
    rates: Rates,
    mode: str,
    straggler: int | None = None,
    learner_advice: Mapping[str, tuple[str, ...]] = LEARNER_ADVICE,
) -> Verdict:
    """The verdict on one window: nanoseconds per phase of each side (collectors summed), rates, collection mode.

    `straggler` is the rank that the judged learner waits for, if there is one; `learner_advice` what helps a learner
    of this kind, by phase.
    """
    learner_wall, collector_wall = sum(learner_ns.values()), sum(collector_ns.values())
    if learner_wall <= 0 or collector_wall <= 0:
        return Verdict(WARMING_UP, "", "no update has been timed yet", ())
    learner = 1.0 - learner_ns.get(LearnerPhase.COLLECTOR_WAIT, 0) / learner_wall
    collector = 1.0 - collector_ns.get(CollectorPhase.LEARNER_WAIT, 0) / collector_wall
    is_learner = learner >= collector
    if is_learner:
        phase, share = _largest(learner_ns, LearnerPhase.COLLECTOR_WAIT, learner_wall)
    else:
        phase, share = _largest(collector_ns, CollectorPhase.LEARNER_WAIT, collector_wall)
    side = "learner" if is_learner else "collector"
    late_rank = straggler if phase == LearnerPhase.RANK_BARRIER else None
    is_balanced = min(learner, collector) >= BALANCED_RATIO * max(learner, collector)
    advice = (learner_advice if is_learner else COLLECTOR_ADVICE).get(phase, ())
    return Verdict(
        "balanced" if is_balanced else side,
        phase,
        f"{_busy(learner, collector, mode)}; {side} {phase} takes {share:.0%}{_late(late_rank)}{_capacities(rates)}",
        _mode_advice(rates, mode) + _late_advice(late_rank) + advice,
        share,
    )


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
