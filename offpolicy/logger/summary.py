"""`summary.json` holds the outcome, rates and time account of a run; `end_screen.py` shows them on the terminal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from offpolicy.files import atomic_write
from offpolicy.logger.metrics import COLLECTOR_ROWS, LEARNER_ROWS
from offpolicy.logger.predictions import possible_advice, window_pipeline, window_verdict
from offpolicy.logger.record import RunHeader, flops_per_sec, samples_per_sec
from offpolicy.logger.stragglers import straggler
from offpolicy.logger.timing_keys import Window, cpu_ms_per_env_step
from offpolicy.machine import cpu_model, versions
from offpolicy.model.bottleneck import Bottleneck, Verdict
from offpolicy.model.rates import compute_rates, num_updates
from offpolicy.model.windows import NS_PER_S, Elapsed, of_iterations, spreads_of
from offpolicy.timing.phases import CollectorPhase, EvaluatorPhase, LearnerPhase
from offpolicy.types import NO_COUNTERS, Account, EvalResult, Lateness, Snapshot

WARMUP, WHOLE = "warmup", "whole"  # names in the account besides the phases
NO_CONFIG: Mapping[str, Any] = {}
Section = Mapping[str, Any]  # Any: a nested mapping of summary.json
LEARNER_NAMES = LEARNER_ROWS | {WARMUP: "Warm-up"}
COLLECTOR_NAMES = COLLECTOR_ROWS | {WARMUP: "Warm-up"}
UNTIMED = Verdict(Bottleneck.UNKNOWN, None, "timing.enabled=false: no time was measured")
UNBEGUN = Verdict(Bottleneck.WARMING_UP, None, "the run ended before its first update was timed")


class RunStatus(StrEnum):
    """How a run has ended: `status` of summary.json."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The outcome of a run, and what its counters do not hold."""

    status: str  # a `RunStatus`; another program's loop may say something else
    exit_code: int
    reason: str
    last_eval: EvalResult | None = None
    training_return: float | None = None  # mean of the last training episodes
    gpu: str | None = None
    prediction_error: float | None = None  # median of the newest, as a fraction


def build_summary(
    snapshot: Snapshot,
    header: RunHeader,
    result: RunResult,
    *,
    baseline: Snapshot = NO_COUNTERS,
    start: Snapshot = NO_COUNTERS,
    config_mapping: Mapping[str, Any] = NO_CONFIG,
) -> dict[str, Any]:  # Any: the nested mapping of summary.json
    """Returns the mapping of `summary.json` from the last snapshot.

    Rates and verdict are measured from `baseline` (`OffPolicyLogger.baseline`) to each side's last iteration; from zero
    it would be wrong after a resume. `start` is the snapshot that this start went on from. Advice that `config_mapping`
    already follows is left out.
    """
    window = Window(baseline, of_iterations(snapshot))
    rates = compute_rates(baseline, window.current, header.mode, header.num_hosts)
    pipeline, late, cores = window_pipeline(window, rates, header), straggler(window), snapshot.cores
    evaluation = result.last_eval or EvalResult(0, math.nan, math.nan, math.nan, episodes=0)
    verdict = window_verdict(window, rates, header, error=result.prediction_error, late=late)
    if verdict is None or verdict.bottleneck == Bottleneck.WARMING_UP:
        # Rank 0 alone of the ranks: a missing account of another one may be a late report, not timing switched off.
        accounts = [rank.account for rank in snapshot.learners[:1]] + [totals.account for totals in snapshot.collectors]
        verdict = UNTIMED if any(account.is_empty for account in accounts) else UNBEGUN
    verdict = possible_advice(verdict, config_mapping, has_gpu=header.has_gpu, steps_per_sec=rates.steps_per_sec)
    learnt = sum(after.samples - before.samples for before, after in Window(start, snapshot).ranks)
    return {
        "status": result.status,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "env_steps": snapshot.env_steps,
        "from_env_step": start.env_steps,  # where this start went on
        # Of those since: in rollouts that were dropped, too old, or not needed at the end. Any replay row may be drawn.
        "not_learnt_from": snapshot.env_steps - start.env_steps - learnt if header.has_rollouts else None,
        "updates": num_updates(snapshot if snapshot.learners else baseline),
        "restarts": snapshot.restarts,  # of environments
        "learner_restarts": snapshot.learner_restarts,  # of all processes
        "wall_s": snapshot.wall_s,
        "warmup_s": snapshot.learners[0].account.warmup_ns / NS_PER_S if snapshot.learners else None,
        "eval": {
            "mean_reward": evaluation.mean_reward if math.isfinite(evaluation.mean_reward) else None,
            "std_reward": evaluation.std_reward if math.isfinite(evaluation.std_reward) else None,
            "episodes": evaluation.episodes,
        },
        "rollout": {"ep_rew_mean": result.training_return},
        "timing": _timing_section(snapshot, late),
        "learning": {
            "learner_s": _seconds(window.learner),
            "collectors_s": [_seconds(clock) for clock in window.each_collector],
        },
        "pipeline": pipeline and pipeline.to_mapping(),
        # Seconds of this host's cores, which sum to the capacity. The CPU time per env step is of the window.
        "cores": {
            "wall_s": cores.wall_ns / NS_PER_S,
            "capacity": cores.capacity_ns / cores.wall_ns,
            "seconds": {row: ns / NS_PER_S for row, ns in cores.classes_ns.items()},
            "cpu_ms_per_env_step": cpu_ms_per_env_step(window, header.num_hosts),
        }
        if cores is not None and cores.wall_ns > 0
        else None,
        "rates": {
            "steps_per_sec": rates.steps_per_sec,
            "collector_capacity": rates.collector_capacity,
            "learner_capacity": rates.learner_capacity,
            "predicted_steps_per_sec": rates.predicted_steps_per_sec,
            "prediction_error": result.prediction_error,
            "utd": rates.utd,
            "samples_per_sec": samples_per_sec(window),
            "flops_per_sec": flops_per_sec(rates, header),
        },
        "bottleneck": {
            "verdict": str(verdict.bottleneck),
            "phase": str(verdict.phase or ""),
            "reason": verdict.reason,
            "advice": [advice.text for advice in verdict.advice],
        },
        "mode": header.mode,
        "threads": {"learner": header.learner_threads or None, "collector": header.collector_threads},
        "kernels": header.kernels or None,
        "products": header.products or None,
        "versions": versions(),
        "hardware": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "gpu": result.gpu},
    }


def _timing_section(snapshot: Snapshot, late: Lateness | None) -> dict[str, Any]:  # Any: nested mapping
    """Returns the accounts of rank 0 and collector 0; of all of them where there are several; and of the evaluator."""
    section: dict[str, Any] = {"learner": None, "collector": None}
    learners = [_account_section(rank.account, LearnerPhase) for rank in snapshot.learners]
    collectors = [_account_section(totals.account, CollectorPhase) for totals in snapshot.collectors]
    for side, accounts in (("learner", learners), ("collector", collectors)):
        section |= {side: accounts[0]} if accounts else {}
        section |= {f"{side}s": accounts} if len(accounts) > 1 else {}
    if snapshot.evaluator is not None:
        section["evaluator"] = _account_section(snapshot.evaluator.account, EvaluatorPhase)
    if len(learners) > 1:
        section["straggler"] = None if late is None else late._asdict()
    return section


def _seconds(window: Elapsed | None) -> dict[str, float] | None:
    return None if window is None else {phase: ns / NS_PER_S for phase, ns in window.phases_ns.items()}


def _account_section(account: Account, phases: Iterable[str]) -> dict[str, Any] | None:  # Any: nested
    """Returns phases, warm-up and residual in seconds, which sum to the wall, and the spread of each phase."""
    if account.is_empty:
        return None
    buckets = {str(phase): account.phases_ns.get(phase, 0) for phase in phases if phase != LearnerPhase.OTHER}
    buckets[WARMUP] = account.warmup_ns
    wall_ns = account.wall_ns + account.warmup_ns
    spreads = spreads_of(account.histogram, {**account.phases_ns, WHOLE: account.wall_ns})
    return {
        "wall_s": wall_ns / NS_PER_S,
        "phases_s": {name: ns / NS_PER_S for name, ns in buckets.items()},
        "other_s": (wall_ns - sum(buckets.values())) / NS_PER_S,
        # Percentiles over the iterations since the warm-up, of the phases that were ever opened.
        "spread_ms": {name: spread._asdict() for name, spread in spreads.items()},
    }


def write_summary(path: Path, mapping: Mapping[str, Any]) -> None:  # Any: nested mapping
    """Replaces `path` at once and durably: a reader sees the old file or the new one. Raises OSError."""
    atomic_write(path, json.dumps(mapping, indent=2, allow_nan=False) + "\n", durable=True)
