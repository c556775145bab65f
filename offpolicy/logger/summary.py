"""`summary.json`: how the run ended, what it reached, where its time went; and the table that says so at the end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from offpolicy.files import atomic_write
from offpolicy.logger.record import judge_window
from offpolicy.timing.bottleneck import Bottleneck, Verdict
from offpolicy.timing.histogram import percentiles_of
from offpolicy.timing.phases import CollectorPhase, EvaluatorPhase, LearnerPhase
from offpolicy.timing.rates import NS_PER_S, Rates, compute_rates, num_updates
from offpolicy.types import Account, EvalResult, Snapshot

WARMUP, WHOLE = "warmup", "whole"  # buckets besides the phases
PACKAGES = ("offpolicy", "torch", "gymnasium", "mujoco")
NO_CONFIG: Mapping[str, Any] = {}
CPU_INFO = Path("/proc/cpuinfo")
UNTIMED = Verdict(Bottleneck.UNKNOWN, None, "timing.enabled=false: no time was measured")
UNBEGUN = Verdict(Bottleneck.WARMING_UP, None, "the run ended before its first update was timed")


def build_summary(  # noqa: PLR0913  # keywords only, one for each fact of the file
    snapshot: Snapshot,
    *,
    status: str,
    exit_code: int,
    reason: str,
    last_eval: EvalResult | None,
    mode: str,
    baseline: Snapshot | None = None,
    num_hosts: int = 1,
    gpu: str | None = None,
    config_mapping: Mapping[str, Any] = NO_CONFIG,
) -> dict[str, Any]:  # Any: the nested mapping of summary.json
    """The mapping of `summary.json` from the last snapshot.

    Rates and verdict are measured from `baseline` (`OffPolicyLogger.baseline`); None: from zero, which is wrong
    after a resume.
    """
    rates = compute_rates(baseline, snapshot, mode, num_hosts)
    learner = snapshot.learners[0].account if snapshot.learners else None
    return {
        "status": status,
        "exit_code": exit_code,
        "reason": reason,
        "env_steps": snapshot.env_steps,
        "updates": num_updates(snapshot),
        "wall_s": snapshot.wall_s,
        "warmup_s": learner.warmup_ns / NS_PER_S if learner is not None else None,
        "eval": _eval_section(last_eval),
        "timing": _timing_section(snapshot),
        "rates": _rates_section(rates),
        "bottleneck": _bottleneck_section(
            _verdict(baseline, snapshot, rates, mode).without_followed_advice(config_mapping)
        ),
        "versions": versions(),
        "hardware": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "gpu": gpu},
    }


def _eval_section(result: EvalResult | None) -> dict[str, float | None]:
    if result is None:
        return {"mean_reward": None, "std_reward": None, "episodes": 0}
    return {
        "mean_reward": _finite(result.mean_reward),
        "std_reward": _finite(result.std_reward),
        "episodes": result.episodes,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _timing_section(snapshot: Snapshot) -> dict[str, Any]:  # Any: nested mapping
    """Rank 0 and collector 0; where there are several, also all of them in their order; and the evaluator."""
    learners = [_account_section(rank.account, tuple(LearnerPhase)) for rank in snapshot.learners]
    collectors = [_account_section(totals.account, tuple(CollectorPhase)) for totals in snapshot.collectors]
    return {
        "learner": learners[0] if learners else None,
        "collector": collectors[0] if collectors else None,
        **({"learners": learners} if len(learners) > 1 else {}),
        **({"collectors": collectors} if len(collectors) > 1 else {}),
        **_evaluator_section(snapshot),
    }


def _evaluator_section(snapshot: Snapshot) -> dict[str, Any]:  # Any: nested mapping
    """Its account, where it is a process of its own."""
    totals = snapshot.evaluator
    return {} if totals is None else {"evaluator": _account_section(totals.account, tuple(EvaluatorPhase))}


def _account_section(account: Account | None, phases: tuple[str, ...]) -> dict[str, Any] | None:  # Any: nested
    """Wall, phases and residual in seconds, warm-up included as a bucket: they sum to the wall in nanoseconds."""
    if account is None:
        return None
    buckets = {str(phase): account.phases_ns.get(phase, 0) for phase in phases if phase != LearnerPhase.OTHER}
    buckets[WARMUP] = account.warmup_ns
    wall_ns = account.wall_ns + account.warmup_ns
    return {
        "wall_s": wall_ns / NS_PER_S,
        "phases_s": {name: ns / NS_PER_S for name, ns in buckets.items()},
        "other_s": (wall_ns - sum(buckets.values())) / NS_PER_S,
        "spread_ms": _spread_section(account, (*phases, WHOLE)),
    }


def _spread_section(account: Account, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Percentiles of every phase, and of the whole, over the iterations since the warm-up; empty before them."""
    if account.histogram is None:
        return {}
    spreads = zip(names, map(percentiles_of, account.histogram), strict=True)
    return {str(name): spread._asdict() for name, spread in spreads if spread is not None}


def _rates_section(rates: Rates) -> dict[str, float | None]:
    return {
        "steps_per_sec": rates.steps_per_sec,
        "collector_capacity": rates.collector_capacity,
        "learner_capacity": rates.learner_capacity,
        "predicted_steps_per_sec": rates.predicted_steps_per_sec,
        "utd": rates.utd,
    }


def _verdict(baseline: Snapshot | None, snapshot: Snapshot, rates: Rates, mode: str) -> Verdict:
    verdict = judge_window(baseline, snapshot, rates, mode)
    if verdict is not None and verdict.bottleneck != Bottleneck.WARMING_UP:
        return verdict
    # Of the ranks only the first: another one may not have reported yet, which is not the same as timing switched off.
    accounts = [rank.account for rank in snapshot.learners[:1]] + [totals.account for totals in snapshot.collectors]
    return UNTIMED if None in accounts else UNBEGUN


def _bottleneck_section(verdict: Verdict) -> dict[str, Any]:  # Any: text and a list
    return {
        "verdict": str(verdict.bottleneck),
        "phase": str(verdict.phase or ""),
        "reason": verdict.reason,
        "advice": [advice.text for advice in verdict.advice],
    }


def versions() -> dict[str, str | None]:
    """Installed versions of what decides results; None for what is not installed."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name as the kernel knows it, or 'unknown'."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def write_summary(path: Path, mapping: Mapping[str, Any]) -> None:  # Any: nested mapping
    """Replace `path` at once and durably: a reader sees the old file or the new one. Raises OSError."""
    atomic_write(path, json.dumps(mapping, indent=2, allow_nan=False) + "\n", durable=True)
