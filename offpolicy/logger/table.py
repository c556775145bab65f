"""THE table of metrics: every key that a record may hold, with its meaning.

Panel, TensorBoard layout, documentation and tests are generated from it. `python -m offpolicy.logger.table` writes
the documentation page to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from offpolicy.errors import OffPolicyError
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase


class MetricClass(StrEnum):
    """How values of a kind may be combined."""

    EXCLUSIVE = "exclusive"  # disjoint phases of one clock: they sum to its wall
    NESTED = "nested"  # sums or parts of exclusive phases: never add them to those
    BACKGROUND = "background"  # beside the phases, in another lane or process: never add
    RATE = "rate"  # from cumulative counters over the window
    CURVE = "curve"  # a learning curve
    COUNTER = "counter"  # a level or a cumulative count at the end of the window


@dataclass(frozen=True, slots=True)
class Metric:
    """One key. `reduction` says how the values of ranks or collectors become one; `row` is its name in the panel."""

    key: str
    kind: MetricClass
    unit: str
    window: str
    reduction: str
    help: str
    row: str | None = None


class UnknownMetricError(OffPolicyError):
    """A record holds a key that the table does not know."""


LEARNER_ROWS: Mapping[LearnerPhase, tuple[str, str]] = {
    LearnerPhase.COLLECTOR_WAIT: (
        "Collector Wait",
        "Blocked because the collector has not produced the rows or rollout this iteration needs. No barrier, no"
        " packing, no copy, no logging, no handshake.",
    ),
    LearnerPhase.REPLAY_BATCH_WAIT: (
        "Replay Batch Wait",
        "The rows exist; blocked because the prefetched batch is not packed or not on the device yet. About 0 on a"
        " prefetch hit.",
    ),
    LearnerPhase.REPLAY_SAMPLE: ("Replay Sample", "Drawing indices and gathering rows on this thread."),
    LearnerPhase.H2D: (
        "H2D Copy",
        "Host-to-device copy that this thread waited for: the exposed part. The hidden part is in the device lane.",
    ),
    LearnerPhase.RANK_BARRIER: ("Rank Barrier", "Waiting for other ranks to arrive at a collective."),
    LearnerPhase.SYNC_COORDINATION: (
        "Sync Coordination",
        "The handshake of lockstep collection itself: sending and taking tokens.",
    ),
    LearnerPhase.TRAIN: (
        "Train",
        "Forward, backward, optimiser, target update; ends when its device work has ended if the next phase would"
        " have to wait for it anyway. No collective inside.",
    ),
    LearnerPhase.PARAM_SYNC: (
        "Param Sync",
        "Exchanging gradients or parameters between ranks, after all have arrived.",
    ),
    LearnerPhase.WEIGHT_PUBLISH: ("Weight Publish", "Handing the actor's weights to the collectors."),
    LearnerPhase.EVALUATION: ("Evaluation", "Evaluating the policy on the learner's thread."),
    LearnerPhase.CHECKPOINT: ("Checkpoint", "Saving a checkpoint on the learner's thread."),
    LearnerPhase.LOG: ("Log", "Preparing and sending the learner's counters."),
    LearnerPhase.OTHER: ("Other", "The residual, never clamped. More than 2 % of Iter Wall is a defect."),
}
COLLECTOR_ROWS: Mapping[CollectorPhase, tuple[str, str]] = {
    CollectorPhase.WEIGHT_APPLY: ("Weight Apply", "Taking over newly published weights."),
    CollectorPhase.ACTION_SELECT: ("Action Select", "Choosing actions: policy inference or random draws."),
    CollectorPhase.ENV_STEP: ("Env Step", "Stepping the environments."),
    CollectorPhase.REPLAY_WRITE: ("Replay Write", "Writing the transitions into the replay ring."),
    CollectorPhase.LEARNER_WAIT: (
        "Learner Wait",
        "Idleness caused by the learner: lockstep, the UTD limiter, a full rollout ring.",
    ),
    CollectorPhase.OTHER: ("Other", "The residual, never clamped."),
}
PACKER_ROWS: Mapping[PackerPhase, str] = {
    PackerPhase.REQUEST_WAIT: "Nothing is asked for: the learner is the slower one.",
    PackerPhase.ROWS_WAIT: "Waiting for the newest rows, where replay.newest demands them.",
    PackerPhase.SLOT_WAIT: "Waiting for the device, which still reads the slot.",
    PackerPhase.PACK: "Drawing indices and gathering rows.",
    PackerPhase.COPY: "Handing the slot to the device.",
    PackerPhase.OTHER: "The residual, never clamped.",
}
RANK_STATISTICS: Mapping[str, str] = {"min": "the least of all ranks", "mean": "the mean", "max": "the most"}
RANK_0 = "rank 0"
SUM_COLLECTORS = "sum over collectors"
MEAN_COLLECTORS = "mean over collectors"
WEIGHTED = "mean over ranks, by count"
ALL_RANKS = "over all ranks"
ALL_HOSTS = " With several hosts: the env steps of this one times their number."
SUPERVISOR = "supervisor"
INTERVAL = "log interval"
END = "end of interval"


def learner_key(phase: str) -> str:
    """Key of a learner phase."""
    return f"timing/learner_{phase}_ms"


def collector_key(phase: str) -> str:
    """Key of a collector phase."""
    return f"timing/collector_{phase}_ms"


ROLLOUT_KEY = "timing/collector_rollout_ms"


def rank_key(phase: str, statistic: str) -> str:
    """Key of a statistic (`min`, `mean`, `max`) of a learner phase over all ranks."""
    return f"rank/{phase}_{statistic}_ms"


def prefetch_key(phase: str) -> str:
    """Key of a phase of the packer."""
    return f"prefetch/{phase}_ms"


def _learner_phases() -> Iterable[Metric]:
    for phase, (row, text) in LEARNER_ROWS.items():
        yield Metric(learner_key(phase), MetricClass.EXCLUSIVE, "ms/iteration", INTERVAL, RANK_0, text, row)


def _collector_phases() -> Iterable[Metric]:
    for phase, (row, text) in COLLECTOR_ROWS.items():
        key = collector_key(phase)
        yield Metric(key, MetricClass.EXCLUSIVE, "ms/vector step", INTERVAL, MEAN_COLLECTORS, text, row)


def _ranks() -> Iterable[Metric]:
    kind = MetricClass.BACKGROUND
    yield Metric("rank/num", kind, "ranks", INTERVAL, "count", "Ranks with an iteration in the interval.", "ranks")
    yield Metric(
        "rank/straggler",
        kind,
        "rank",
        INTERVAL,
        "argmin over ranks",
        "The rank that the others wait for: the one with the least Rank Barrier; of equals the lowest.",
        "straggler rank",
    )
    for phase, (row, _) in LEARNER_ROWS.items():
        for statistic, words in RANK_STATISTICS.items():
            key, reduction = rank_key(phase, statistic), f"{statistic} over ranks"
            yield Metric(key, kind, "ms/iteration", INTERVAL, reduction, f"{row}: {words}.")


def _prefetch() -> Iterable[Metric]:
    for phase, words in PACKER_ROWS.items():
        yield Metric(prefetch_key(phase), MetricClass.BACKGROUND, "ms/packed batch", INTERVAL, RANK_0, words)


def _perf() -> Iterable[Metric]:
    nested, rate, background = MetricClass.NESTED, MetricClass.RATE, MetricClass.BACKGROUND
    yield Metric(
        "perf/iter_ms",
        nested,
        "ms/iteration",
        INTERVAL,
        RANK_0,
        "Boundary to boundary of the learner's loop: the sum of all learner phases.",
        "Iter Wall",
    )
    yield Metric(
        "perf/collector_cycle_ms",
        nested,
        "ms/vector step",
        INTERVAL,
        MEAN_COLLECTORS,
        "One round of the collector's loop: the sum of all collector phases.",
        "Cycle",
    )
    yield Metric(
        ROLLOUT_KEY,
        nested,
        "ms/rollout",
        INTERVAL,
        MEAN_COLLECTORS,
        "APPO: wall of one rollout, its waits among it; 0 where there are none.",
        "Rollout",
    )
    yield Metric(
        "perf/learner_pipeline_ms",
        nested,
        "ms/iteration",
        INTERVAL,
        RANK_0,
        "h2d + train + param_sync + weight_publish, for comparison with UniLab.",
    )
    yield Metric(
        "perf/steps_per_sec",
        rate,
        "env steps/s",
        INTERVAL,
        SUM_COLLECTORS,
        "thru: env steps by wall. In the warm-up on the supervisor's clock, then on the collectors' own." + ALL_HOSTS,
        "thru",
    )
    yield Metric("perf/updates_per_sec", rate, "updates/s", INTERVAL, RANK_0, "Gradient updates by wall.", "upd/s")
    yield Metric(
        "perf/collector_capacity",
        rate,
        "env steps/s",
        INTERVAL,
        SUM_COLLECTORS,
        "I: env steps by the collector's active time, which is every phase but learner_wait." + ALL_HOSTS,
        "I",
    )
    yield Metric(
        "perf/learner_capacity",
        rate,
        "env steps/s",
        INTERVAL,
        RANK_0,
        "T: env steps the learner could absorb, 1 / (active seconds per update x UTD). Active excludes the waits"
        " (collector_wait, replay_batch_wait, rank_barrier, sync_coordination), evaluation and checkpoint.",
        "T",
    )
    yield Metric(
        "perf/predicted_steps_per_sec",
        rate,
        "env steps/s",
        INTERVAL,
        "none",
        "What I and T predict for thru: 1 / (1/I + 1/T) in alternate mode, min(I, T) in overlap and free mode.",
        "pred",
    )
    yield Metric(
        "perf/utd",
        rate,
        "updates/env step",
        INTERVAL,
        "none",
        "Updates per env step, achieved after warm-up." + ALL_HOSTS,
        "utd",
    )
    yield Metric(
        "perf/update_debt",
        MetricClass.COUNTER,
        "updates",
        END,
        SUPERVISOR,
        "Updates owed: env steps since the start of learning x UTD, minus updates done.",
        "debt",
    )
    yield Metric(
        "perf/policy_lag",
        rate,
        "versions",
        INTERVAL,
        MEAN_COLLECTORS,
        "How many published weight versions the acting policy was behind, per vector step of the policy. APPO: how many"
        " versions older than the learner's the weights were, per rollout learnt from; 31 and more count as 31.",
        "lag",
    )
    yield Metric(
        "perf/policy_lag_p95",
        rate,
        "versions",
        INTERVAL,
        ALL_RANKS,
        "APPO: 95 % of the rollouts learnt from were at most this old.",
        "lag p95",
    )
    yield Metric(
        "perf/rollouts_dropped",
        MetricClass.COUNTER,
        "rollouts",
        INTERVAL,
        SUM_COLLECTORS,
        "APPO: rollouts thrown away because no slot was free (rollout.when_full=drop).",
    )
    yield Metric(
        "perf/rollouts_too_old",
        MetricClass.COUNTER,
        "rollouts",
        INTERVAL,
        ALL_RANKS,
        "APPO: rollouts left out because their weights were more than rollout.max_lag versions old.",
    )
    yield Metric(
        "perf/flops_per_sec",
        rate,
        "FLOP/s",
        INTERVAL,
        RANK_0,
        "Floating-point operations of the networks per active second of a learner, from the sizes of their layers.",
    )
    yield Metric("perf/sample_age", rate, "env steps", INTERVAL, WEIGHTED, "Age of the replay rows used.", "age")
    yield Metric(
        "perf/bottleneck",
        rate,
        "text",
        INTERVAL,
        "none",
        "Which side bounds the run and its largest phase with its share, such as learner(train 94%).",
        "bottleneck",
    )
    yield Metric("perf/bottleneck_reason", rate, "text", INTERVAL, "none", "The verdict in one sentence.")
    yield Metric("perf/bottleneck_advice", rate, "text", INTERVAL, "none", "What to change, joined by '; '.")
    yield Metric(
        "cpu/learner_pct",
        background,
        "%",
        INTERVAL,
        RANK_0,
        "CPU time of the learner's process by wall; 100 is one core. Low while busy: descheduled.",
        "cpu",
    )
    yield Metric(
        "cpu/collector_pct",
        background,
        "%",
        INTERVAL,
        MEAN_COLLECTORS,
        "CPU time of the collector's process by wall; 100 is one core.",
        "cpu",
    )


def _learning() -> Iterable[Metric]:
    curve, counter = MetricClass.CURVE, MetricClass.COUNTER
    last = "last 100 episodes"
    yield Metric("rollout/ep_rew_mean", curve, "return", last, SUPERVISOR, "Mean raw return of training.", "Return")
    yield Metric("rollout/ep_len_mean", curve, "steps", last, SUPERVISOR, "Mean length of episodes.", "Ep Length")
    yield Metric(
        "rollout/success_rate",
        curve,
        "fraction",
        last,
        SUPERVISOR,
        "Share of successes, over the episodes for which the environment tells.",
        "Success",
    )
    yield Metric("rollout/episodes", counter, "episodes", END, SUPERVISOR, "Episodes of this process.", "Episodes")
    last = "last evaluation"
    yield Metric("eval/mean_reward", curve, "return", last, RANK_0, "Mean raw return of the evaluation.", "Eval")
    yield Metric("eval/std_reward", curve, "return", last, RANK_0, "Its standard deviation over episodes.")
    yield Metric("eval/mean_ep_length", curve, "steps", last, RANK_0, "Mean length of its episodes.")
    yield Metric("eval/env_steps", counter, "env steps", last, RANK_0, "When the policy was evaluated.")
    yield Metric("replay/rows", counter, "rows", END, SUPERVISOR, "Rows in the replay ring.", "Replay Rows")
    yield Metric("replay/fill", counter, "fraction", END, SUPERVISOR, "Rows by capacity.", "Replay Fill")
    for name, unit, text, row in TRAIN_METRICS:
        is_count = name == "n_updates"
        kind, window, reduction = (counter, END, RANK_0) if is_count else (curve, INTERVAL, WEIGHTED)
        yield Metric(f"train/{name}", kind, unit, window, reduction, text, row)


TRAIN_METRICS: tuple[tuple[str, str, str, str | None], ...] = (
    ("actor_loss", "loss", "Loss of the actor.", "Actor Loss"),
    ("critic_loss", "loss", "Loss of the critics, in their own units.", "Critic Loss"),
    ("alpha_loss", "loss", "SAC: loss of the temperature.", "Alpha Loss"),
    ("ent_coef", "nats^-1", "SAC: temperature alpha.", "Ent Coef"),
    ("entropy", "nats", "SAC, APPO, HORA: entropy of the policy, -E[log pi].", "Entropy"),
    ("q_mean", "return", "Mean value of the critics on the batch.", "Q"),
    ("target_q_mean", "return", "Mean of the targets of the critics.", "Target Q"),
    ("approx_kl", "nats", "APPO, HORA: KL(old, new) of the policy, from the start of the iteration on.", "KL"),
    ("clip_fraction", "fraction", "APPO, HORA: share of the ratios outside 1 +- algo.clip.", "Clipped"),
    (
        "rho_clip_fraction",
        "fraction",
        "APPO, HORA: share of the importance ratios that V-trace cut at algo.rho_clip: how stale the rollouts were.",
        "Rho Clipped",
    ),
    (
        "explained_variance",
        "fraction",
        "APPO, HORA: share of the variance of its targets that the critic knew.",
        "Expl Var",
    ),
    ("value_mean", "return", "APPO, HORA: mean value of the observations of the rollouts.", "Value"),
    ("learning_rate", "1", "APPO, HORA: the step size of the iteration.", "LR"),
    ("latent_loss", "1", "HORA, adapt: mean squared error of the inferred latent, before each step.", "Latent Loss"),
    (
        "latent_explained",
        "fraction",
        "HORA, adapt: share of the latent's variance that the history gave, before learning from the rollouts.",
        "Latent R2",
    ),
    ("n_updates", "updates", "Gradient updates done.", "Updates"),
)


def _axis() -> Iterable[Metric]:
    counter = MetricClass.COUNTER
    yield Metric("env_steps", counter, "env steps", END, SUPERVISOR, "The x axis of everything.")
    yield Metric("iteration", counter, "iterations", END, RANK_0, "Iterations of the learner.")
    yield Metric("wall_s", counter, "s", END, SUPERVISOR, "Wall time since the process of the run started.")
    yield Metric("time/total_timesteps", counter, "env steps", END, SUPERVISOR, "Env steps done (as env_steps).")
    yield Metric("time/elapsed_s", counter, "s", END, SUPERVISOR, "As wall_s.", "elapsed")
    yield Metric("time/eta_s", counter, "s", END, SUPERVISOR, "Time left at the mean rate after warm-up.", "ETA")


def _all_metrics() -> Iterable[Metric]:
    yield from _axis()
    yield from _learner_phases()
    yield from _collector_phases()
    yield from _perf()
    yield from _learning()
    yield from _prefetch()
    yield from _ranks()


METRICS: Mapping[str, Metric] = {metric.key: metric for metric in _all_metrics()}

# Old name -> new name. None of our own yet; the others are the learner and collector keys of UniLab's generations.
ALIASES: Mapping[str, str] = {
    "timing/learner_wait_ms": "timing/learner_collector_wait_ms",
    "timing/learner_weight_sync_ms": "timing/learner_weight_publish_ms",
    "timing/learner_collector_release_ms": "timing/learner_sync_coordination_ms",
    "timing/learner_incremental_h2d_ms": "timing/learner_h2d_ms",
    "timing/learner_replay_stage_ms": "timing/learner_h2d_ms",
    "timing/collector_env_step_total_ms": "timing/collector_env_step_ms",
    "timing/collector_weight_sync_ms": "timing/collector_weight_apply_ms",
    "timing/collector_policy_infer_ms": "timing/collector_action_select_ms",
    "timing/collector_mlp_infer_ms": "timing/collector_action_select_ms",
    "timing/collector_replay_ms": "timing/collector_replay_write_ms",
    "timing/collector_sync_coordination_ms": "timing/collector_learner_wait_ms",
    "timing/collector_sync_idle_ms": "timing/collector_learner_wait_ms",
}


def current_name(key: str) -> str:
    """The name that `key`, possibly of an older generation, has today."""
    return ALIASES.get(key, key)


def require_known(keys: Iterable[str]) -> None:
    """Raise `UnknownMetricError` naming the keys that are not in the table."""
    unknown = sorted(set(keys) - METRICS.keys())
    if unknown:
        raise UnknownMetricError(f"metrics not in offpolicy/logger/table.py: {', '.join(unknown)}")


SECTIONS = (
    ("Axis and time", ("env_steps", "iteration", "wall_s", "time/")),
    ("Learner phases", ("timing/learner_",)),
    ("Collector phases", ("timing/collector_",)),
    ("Rates", ("perf/", "cpu/")),
    ("Learning curves", ("rollout/", "eval/", "train/")),
    ("Replay", ("replay/",)),
    ("Prefetching", ("prefetch/",)),
    ("Ranks", ("rank/",)),
)
INTRODUCTION = """\
# Metrics

Generated by `python -m offpolicy.logger.table` from `offpolicy/logger/table.py`; do not edit.

Every key that `metrics.jsonl`, TensorBoard, W&B and the panel may hold. A key without data in the interval is absent.
Phases of one side are exclusive and sum to its wall (`perf/iter_ms`, `perf/collector_cycle_ms`); the two sides are two
clocks and are never added. `prefetch/` is a third clock, of the thread that packs batches ahead (zeros where there is
none); `rank/` says of each learner phase how it differs between ranks (with one rank: its own values).
"""


def metrics_markdown() -> str:
    """The documentation page of the table."""
    parts = [INTRODUCTION, _class_list()]
    parts += [_section(title, prefixes) for title, prefixes in SECTIONS]
    parts.append("## Old names\n\n" + _rows(("old name", "name"), ((f"`{a}`", f"`{b}`") for a, b in ALIASES.items())))
    return "\n".join(parts)


def _class_list() -> str:
    meaning = {
        MetricClass.EXCLUSIVE: "disjoint phases of one clock; they sum to its wall",
        MetricClass.NESTED: "sums of exclusive phases; never add them to those",
        MetricClass.BACKGROUND: "beside the phases; never add",
        MetricClass.RATE: "from cumulative counters over the window",
        MetricClass.CURVE: "a learning curve",
        MetricClass.COUNTER: "a level or a cumulative count",
    }
    return "".join(f"- **{kind}**: {text}\n" for kind, text in meaning.items())


def _section(title: str, prefixes: tuple[str, ...]) -> str:
    header = ("key", "class", "unit", "window", "ranks and collectors", "panel row", "meaning")
    rows = (
        (f"`{m.key}`", m.kind, m.unit, m.window, m.reduction, m.row or "", m.help)
        for m in METRICS.values()
        if m.key.startswith(prefixes)
    )
    return f"## {title}\n\n" + _rows(header, rows)


def _rows(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
