"""Every metric with its unit, window and meaning: the rows of the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from offpolicy.logger.keys import (
    COLLECTOR_ROWS,
    DEVICE_ROWS,
    EVALUATOR_ROWS,
    LEARNER_ROWS,
    PACKER_ROWS,
    RANK_STATISTICS,
    RESET_KEY,
    ROLLOUT_KEY,
    collector_key,
    device_key,
    evaluator_key,
    learner_key,
    prefetch_key,
    rank_key,
)
from offpolicy.logger.spreads import CYCLE, ITERATION, STATISTICS, count_key, spread_key


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


RANK_0 = "rank 0"
SUM_COLLECTORS = "sum over collectors"
MEAN_COLLECTORS = "mean over collectors"
WEIGHTED = "mean over ranks, by count"
ALL_RANKS = "over all ranks"
ALL_HOSTS = " With several hosts: the env steps of this one times their number."
SUPERVISOR = "supervisor"
INTERVAL = "log interval"
END = "end of interval"


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


def _spreads() -> Iterable[Metric]:
    learner = {str(phase): row for phase, (row, _) in LEARNER_ROWS.items()} | {ITERATION: "Iter Wall"}
    collector = {str(phase): row for phase, (row, _) in COLLECTOR_ROWS.items()} | {CYCLE: "Cycle"}
    sides = (
        ("learner", learner, "iteration", RANK_0),
        ("collector", collector, "vector step", "all collectors together"),
    )
    for side, rows, unit, reduction in sides:
        text = f"How many {unit}s the percentiles are over."
        yield Metric(count_key(side), MetricClass.COUNTER, f"{unit}s", INTERVAL, reduction, text)
        for phase, row in rows.items():
            for statistic in STATISTICS:
                what = "the longest" if statistic == "max" else f"{statistic[1:]} % of the {unit}s took at most this"
                key, text = spread_key(side, phase, statistic), f"{row}: {what}; to 3 %."
                yield Metric(key, MetricClass.NESTED, f"ms/{unit}", INTERVAL, reduction, text)


def _device() -> Iterable[Metric]:
    for span, words in DEVICE_ROWS.items():
        yield Metric(device_key(span), MetricClass.BACKGROUND, "ms/iteration", INTERVAL, RANK_0, words)
    yield Metric(
        "device/busy_share",
        MetricClass.RATE,
        "fraction",
        INTERVAL,
        RANK_0,
        "train, h2d and inference of the device by the learner's wall. An upper bound: gaps between the kernels of an"
        " update are in it.",
        "busy",
    )
    yield Metric(
        "device/launch_bound",
        MetricClass.RATE,
        "fraction",
        INTERVAL,
        RANK_0,
        "Share of the iterations in which the device had caught up, to 0.1 ms, when the host had given it everything:"
        " it waited for the host to launch kernels.",
        "launch-bound",
    )
    yield Metric(
        "device/dropped",
        MetricClass.COUNTER,
        "spans",
        INTERVAL,
        RANK_0,
        "Spans that were not timed because too many were pending: the times are that much too low.",
    )


def _evaluator() -> Iterable[Metric]:
    kind, counter = MetricClass.BACKGROUND, MetricClass.COUNTER
    who = "evaluator"
    for phase, words in EVALUATOR_ROWS.items():
        yield Metric(evaluator_key(phase), kind, "ms/s", INTERVAL, who, f"{words} Of a second of its own wall.")
    yield Metric("evaluator/episodes", counter, "episodes", END, who, "Evaluation episodes of this process.")
    yield Metric(
        "evaluator/skipped",
        counter,
        "evaluations",
        END,
        who,
        "Evaluations that were due while the one before was still going on, and were replaced by a newer one.",
    )
    yield Metric(
        "evaluator/post_failures", counter, "episodes", END, who, "Episodes whose hook failed; their returns count."
    )


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
        RESET_KEY,
        nested,
        "ms/vector step",
        INTERVAL,
        MEAN_COLLECTORS,
        "The part of env_step that there would not be without resets: what vector steps in which an environment is"
        " reset take longer than the others. Absent where every vector step holds a reset.",
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
    yield Metric(
        "perf/flops_of_attainable",
        rate,
        "fraction",
        INTERVAL,
        RANK_0,
        "perf/flops_per_sec by what this machine attains on bare matrix products of the same shapes. The rest is"
        " everything else of an update, and what it takes to start it.",
    )
    yield Metric(
        "perf/collector_flops_per_sec",
        rate,
        "FLOP/s",
        INTERVAL,
        MEAN_COLLECTORS,
        "Floating-point operations of the policy per second of action_select.",
    )
    yield Metric(
        "perf/env_step_share",
        rate,
        "fraction",
        INTERVAL,
        MEAN_COLLECTORS,
        "env_step by the collector's active time: what faster environments could save.",
    )
    yield Metric("perf/sample_age", rate, "env steps", INTERVAL, WEIGHTED, "Age of the replay rows used.", "age")
    yield Metric(
        "perf/bottleneck",
        rate,
        "text",
        INTERVAL,
        "none",
        "Which side bounds the run and its largest phase with its share, such as learner(train 94%). Another one is"
        " shown from its third record on; until then the one before, with its numbers.",
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
    for side, reduction in (("learner", RANK_0), ("collector", MEAN_COLLECTORS)):
        yield Metric(
            f"cpu/{side}_descheduled_pct",
            background,
            "%",
            INTERVAL,
            reduction,
            f"Share of wall in which the {side}'s main thread could have run, and others had the core.",
        )
        yield Metric(
            f"cpu/{side}_preemptions_per_sec",
            background,
            "1/s",
            INTERVAL,
            reduction,
            f"How often the core was taken from the {side}'s main thread (involuntary context switches).",
        )
    yield Metric(
        "cpu/evaluator_pct",
        background,
        "%",
        INTERVAL,
        "evaluator",
        "CPU time of the evaluator's process by wall; 100 is one core.",
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
    yield Metric("eval/policy_version", counter, "versions", last, RANK_0, "Which published weights were evaluated.")
    yield Metric(
        "eval/overlap",
        MetricClass.RATE,
        "fraction",
        last,
        RANK_0,
        "eval.hook: how much of the shorter of the two, episodes and hook, was done during the other; 0: in turn.",
    )
    yield Metric("eval/post_failures", counter, "episodes", last, RANK_0, "eval.hook: episodes for which it failed.")
    yield Metric("replay/rows", counter, "rows", END, SUPERVISOR, "Rows in the replay ring.", "Replay Rows")
    yield Metric("replay/fill", counter, "fraction", END, SUPERVISOR, "Rows by capacity.", "Replay Fill")
    for name, unit, text, row in TRAIN_METRICS:
        is_count = name == "n_updates"
        kind, window, reduction = (counter, END, RANK_0) if is_count else (curve, INTERVAL, WEIGHTED)
        yield Metric(f"train/{name}", kind, unit, window, reduction, text, row)
    for name, unit, text in SCHEDULED_METRICS:
        yield Metric(f"train/{name}", curve, unit, END, SUPERVISOR, f"{text} in force, where it is a schedule.")


SCHEDULED_METRICS = (
    ("actor_lr", "1", "SAC, TD3: step size of the actor"),
    ("critic_lr", "1", "SAC, TD3: step size of the critics"),
    ("alpha_lr", "1", "SAC: step size of the temperature"),
    ("target_entropy", "nats", "SAC: target of the entropy"),
    ("exploration_noise", "1", "TD3: std of the action noise"),
)

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


def all_metrics() -> Iterable[Metric]:
    """Every row, in the order of the page."""
    yield from _axis()
    yield from _learner_phases()
    yield from _collector_phases()
    yield from _perf()
    yield from _learning()
    yield from _prefetch()
    yield from _device()
    yield from _ranks()
    yield from _spreads()
    yield from _evaluator()
