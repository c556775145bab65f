"""The metric table is the only source of names, its page is up to date, and the logger runs without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.algos import adaptation, appo, flashsac, sac, td3
from offpolicy.logger.metrics import (
    COMPOSITES,
    FOREIGN,
    METRICS,
    VOCABULARIES,
    MetricClass,
    UnknownMetricError,
    listed,
    require_known,
)
from offpolicy.timing.phases import CollectorPhase, CoreClass, DeviceSpan, EvaluatorPhase, LearnerPhase, PackerPhase

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = """
import sys
from dataclasses import replace
sys.modules["torch"] = None  # an import of torch now raises ImportError
from pathlib import Path
import numpy as np
from offpolicy.config.schema import RunConfig
from offpolicy.logger.logger import open_logger
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import RunResult, build_summary, write_summary
from offpolicy.config.schedules import Ramp
from offpolicy.timing.phases import CollectorPhase, CoreClass, EvaluatorPhase, LearnerPhase
from offpolicy.types import (HISTOGRAM_BINS, NUM_LAGS, Account, LateTotals, CoreTotals, TaggedTime,
    CollectorTotals, DeviceTotals, EpisodeRecord,
    EvalResult, EvaluatorTotals, LearnerTotals, LinkTotals, SchedulerStats, MetricTotals, RolloutTotals,
    Snapshot, SystemLoad)

def snapshot(k):
    def account(phases):
        phases_ns = {phase: k * 10**6 for phase in phases}
        spread = np.full((len(phases) + 1, HISTOGRAM_BINS), k)
        stats, tagged = SchedulerStats(k, k), TaggedTime(k // 10, k)
        return Account(len(phases) * k * 10**6, 10**9, k, phases_ns, k * 10**6, stats, tagged, spread)
    learner, steps = account(LearnerPhase), account(CollectorPhase)
    names = tuple(sys.argv[3].split(","))
    metrics = MetricTotals(names, np.full(len(names), 1.5 * k), np.full(len(names), float(k)))
    rollouts = RolloutTotals(k, np.full(NUM_LAGS, float(k))) if k == 30 else None
    ranks = tuple(LearnerTotals(account=learner, updates=k, samples=256 * k,
        sample_age_sum=9.0 * k, metrics=metrics, rollouts=rollouts,
        device=DeviceTotals(*[k * 10**6] * 5, iterations=k, launch_bound=0, dropped=0),
        late=LateTotals(k, k, late_ms * k * 10**6, late_ms * k * 10**6)) for late_ms in (0, 5))
    return Snapshot(1.0 + k / 5, 100 + k, k, ranks,
        (CollectorTotals(steps, 100 + k, 100 + k, 0.0, k, rollouts=k, link=LinkTotals(*[k] * 10)),), k, 1000, 0.0,
        EvaluatorTotals(account(EvaluatorPhase), k, 1),
        CoreTotals(k * 10**9, k * len(CoreClass), dict.fromkeys(CoreClass, k)),
        SystemLoad(3.0, 8.0, 45.0, 2.0, 24.0, 240.0), restarts=k // 50, learner_restarts=k // 50)

def main():
    run_dir = Path(sys.argv[1])
    cfg = RunConfig.from_mapping({"log": {"wandb": sys.argv[2], "ranks": "all"}, "total_timesteps": 2000})
    header = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=2000,
        ramps={name: Ramp(start=1.0, end=0.0, over=9) for name in
            ("actor_lr", "critic_lr", "alpha_lr", "target_entropy", "exploration_noise")})
    logger = open_logger(run_dir, cfg, header, None)
    logger.set_header(replace(header, flops_per_update=1e6, flops_per_decision=1e3, attainable_flops_per_sec=1e9,
        learner_threads=2))
    logger.status("starting")
    logger.log_episode(EpisodeRecord(50, 0, -3.0, 50, True, False, 1.0))
    logger.log_eval(EvalResult(60, -2.0, 0.5, 50.0, 3, 7))
    for k in (10, 20, 30, 40, 50):
        if k == 30:  # a replay's keys first, then those of rollouts
            logger.header = replace(logger.header, algo="appo")
        logger.log_interval(snapshot(k))
    result = RunResult(status="completed", exit_code=0, reason="done", last_eval=logger.last_eval)
    summary = build_summary(snapshot(50), header, result, baseline=logger.baseline)
    write_summary(run_dir / "summary.json", summary)
    logger.finish(summary)
    logger.close()

main()
"""


def learner_metrics() -> set[str]:
    tables = (module.METRICS for module in (adaptation, appo, flashsac, sac, td3))
    return {name for table in tables for names in table.values() for name in names}


def run_logger(run_dir: Path, wandb: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "WANDB_SILENT": "true"}
    command = [sys.executable, "-c", RUN, str(run_dir), wandb, ",".join(sorted(learner_metrics()))]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run directory that the whole logger wrote in a process where torch cannot be imported."""
    run_dir = tmp_path_factory.mktemp("run")
    return run_dir, run_logger(run_dir, "offline")


@pytest.mark.promise("learner-phases", "collector-phases")
def test_every_phase_of_the_vocabulary_has_a_key_a_row_and_a_meaning() -> None:
    phases = [f"timing/learner_{phase}_ms" for phase in LearnerPhase]
    phases += [f"timing/collector_{phase}_ms" for phase in CollectorPhase]
    assert sorted(phases) == sorted(key for key, each in METRICS.items() if each.kind is MetricClass.EXCLUSIVE)
    for key in (
        [f"prefetch/{phase}_ms" for phase in PackerPhase]
        + [f"device/{span}_ms" for span in DeviceSpan]
        + [f"evaluator/{phase}_ms" for phase in EvaluatorPhase]
        + [f"cores/{row}_ms_per_s" for row in CoreClass]
        + [f"rank/{phase}_{statistic}_ms" for phase in LearnerPhase for statistic in ("min", "mean", "max")]
    ):
        assert METRICS[key].kind is MetricClass.BACKGROUND


def test_no_metric_is_listed_twice_or_without_a_meaning() -> None:
    assert all(key == metric.key and metric.help.endswith(".") for key, metric in METRICS.items())
    assert all(metric.unit and metric.window and metric.reduction for metric in METRICS.values())


def test_every_metric_of_an_algorithm_is_in_the_table() -> None:
    assert {f"train/{name}" for name in learner_metrics()} <= METRICS.keys()


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(UnknownMetricError, match="rank/12/nap_ms, timing/learner_nap_ms"):
        require_known(["perf/utd", "rank/12/train_ms", "timing/learner_nap_ms", "rank/12/nap_ms"])


@pytest.mark.promise("metric-names")
def test_other_names_lead_to_names_of_today() -> None:
    foreign = COMPOSITES.keys() | FOREIGN.keys()
    for vocabulary in VOCABULARIES:
        assert {alias.key for alias in vocabulary.aliases.values()} <= METRICS.keys() | foreign, vocabulary.name
    assert {part for _, parts in COMPOSITES.values() for part in parts} <= METRICS.keys()


def test_an_alias_onto_the_same_name_says_what_differs() -> None:
    pairs = [(old, alias) for vocabulary in VOCABULARIES for old, alias in vocabulary.aliases.items()]
    assert [old for old, alias in pairs if old == alias.key and old in METRICS and not alias.note] == []


def test_the_whole_logger_runs_without_torch(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, done = finished
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "warning" not in done.stdout
    names = {path.name for path in run_dir.iterdir()}
    assert {"metrics.jsonl", "episodes.jsonl", "summary.json", "wandb_id", "wandb"} <= names
    assert [name for name in names if name.startswith("events.out.tfevents.")]


@pytest.mark.promise("metric-table")
def test_every_key_of_a_written_record_is_in_the_table(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    records = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 5
    found = {listed(key) for key in set().union(*records)}
    assert found | {"env/<name>"} == METRICS.keys()  # which a batch of environments has


@pytest.mark.promise("plain-line")
def test_stdout_without_a_terminal_has_one_line_per_interval(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    lines = finished[1].stdout.splitlines()
    assert lines[0] == "starting"
    assert lines[1] == "evaluation step=60 ret=-2.00 std=0.500 episodes=3"
    assert [line.split()[1] for line in lines[2:7]] == [f"step={n}/2000" for n in (110, 120, 130, 140, 150)]
    assert lines[7].startswith("completed after 150 env steps, 50 updates, 0:11")
