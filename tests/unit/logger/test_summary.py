from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from offpolicy.errors import ConfigError
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import RunResult, build_summary, write_summary
from offpolicy.runs import known_summary, read_summary
from offpolicy.timing.phases import CoreClass
from offpolicy.types import (
    NO_ACCOUNT,
    NO_COUNTERS,
    Account,
    CoreTotals,
    EvalResult,
    EvaluatorTotals,
    LateTotals,
    LearnerTotals,
    Snapshot,
)
from tests.unit.logger.conftest import evaluated
from tests.unit.logger.test_end_screen import printed

HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=2000)
RESULT = RunResult(status="completed", exit_code=0, reason="2,000 env steps done")


def summary_of(
    snapshot: Snapshot, baseline: Snapshot = NO_COUNTERS, num_hosts: int = 1, flops: float = 0.0, **result: Any
) -> dict[str, Any]:
    header = dataclasses.replace(HEADER, num_hosts=num_hosts, flops_per_update=flops)
    return build_summary(snapshot, header, dataclasses.replace(RESULT, **result), baseline=baseline)


@pytest.mark.promise("summary")
def test_the_summary_has_exactly_the_documented_keys(make_snapshot: Any, evaluation: EvalResult) -> None:
    summary = summary_of(make_snapshot(1000), last_eval=evaluation)
    assert list(summary) == [
        "status", "exit_code", "reason", "env_steps", "from_env_step", "not_learnt_from", "updates", "restarts",
        "learner_restarts", "wall_s", "warmup_s", "eval", "rollout", "timing", "learning", "pipeline", "cores", "rates",
        "bottleneck", "mode", "threads", "kernels", "products", "versions", "hardware",
    ]  # fmt: skip
    assert summary["eval"] == {"mean_reward": -150.25, "std_reward": 80.5, "episodes": 10}
    assert list(summary["timing"]) == ["learner", "collector"]
    assert list(summary["timing"]["learner"]) == ["wall_s", "phases_s", "other_s", "spread_ms"]
    assert list(summary["rates"]) == [
        "steps_per_sec", "collector_capacity", "learner_capacity", "predicted_steps_per_sec", "prediction_error",
        "utd", "samples_per_sec", "flops_per_sec",
    ]  # fmt: skip
    assert list(summary["bottleneck"]) == ["verdict", "phase", "reason", "advice"]
    assert list(summary["versions"]) == ["offpolicy", "torch", "gymnasium", "mujoco"]
    assert list(summary["hardware"]) == ["cpu", "cores", "gpu"]


@pytest.mark.promise("account-closes")
def test_the_account_closes_over_the_whole_life_of_the_process(make_snapshot: Any) -> None:
    for account in summary_of(make_snapshot(1000))["timing"].values():
        nanoseconds = [round(seconds * 1e9) for seconds in (*account["phases_s"].values(), account["other_s"])]
        assert sum(nanoseconds) == round(account["wall_s"] * 1e9) == 8_600_000_000
        assert account["phases_s"]["warmup"] == 2.0


@pytest.mark.promise("learner-phases", "collector-phases")
def test_the_phases_are_the_frozen_ones_and_the_warmup(make_snapshot: Any) -> None:
    timing = summary_of(make_snapshot(1000))["timing"]
    assert list(timing["learner"]["phases_s"]) == [
        "collector_wait", "replay_batch_wait", "replay_sample", "h2d", "rank_barrier", "sync_coordination", "train",
        "param_sync", "weight_publish", "collect", "evaluation", "checkpoint", "log", "warmup",
    ]  # fmt: skip
    assert list(timing["collector"]["phases_s"]) == [
        "weight_apply", "action_select", "env_step", "replay_write", "handshake", "learner_wait", "link_wait",
        "snapshot", "warmup",
    ]  # fmt: skip
    assert timing["learner"]["phases_s"]["train"] == 6.1


@pytest.mark.promise("collector-phases", "lanes-apart")
def test_several_collectors_and_ranks_are_listed_not_summed(make_snapshot: Any) -> None:
    snapshot = waiting(make_snapshot(1000), 3_000_000_000, 100_000_000)
    timing = summary_of(dataclasses.replace(snapshot, collectors=snapshot.collectors * 2))["timing"]
    assert timing["collectors"] == [timing["collector"], timing["collector"]]
    assert timing["collector"]["wall_s"] == 8.6
    assert [rank["phases_s"]["rank_barrier"] for rank in timing["learners"]] == [3.0, 0.1]
    assert timing["learner"] == timing["learners"][0]


def test_the_final_evaluation_is_in_the_account_and_not_in_rates_and_verdict(make_snapshot: Any) -> None:
    baseline, end = make_snapshot(100), make_snapshot(1000)
    without, summary = summary_of(end, baseline), summary_of(evaluated(end, 60), baseline)
    for section in ("rates", "bottleneck", "learning"):
        assert summary[section] == without[section], section
    assert summary["timing"]["learner"]["phases_s"]["evaluation"] == 60.0
    assert summary["bottleneck"]["phase"] == "train"


def waiting(snapshot: Snapshot, *waits_ns: int) -> Snapshot:
    """One rank for each of `waits_ns`, which it spent in the barrier instead of in training."""

    def learner(wait_ns: int) -> LearnerTotals:
        one = snapshot.learners[0]
        phases_ns = dict(one.account.phases_ns)
        phases_ns["rank_barrier"] += wait_ns
        phases_ns["train"] -= wait_ns
        late_ns = max(waits_ns) - wait_ns
        late = LateTotals(1000, 1000 if late_ns else 0, late_ns, late_ns)
        return dataclasses.replace(one, account=dataclasses.replace(one.account, phases_ns=phases_ns), late=late)

    return dataclasses.replace(snapshot, learners=tuple(map(learner, waits_ns)))


def test_the_end_screen_names_the_straggler(make_snapshot: Any) -> None:
    lines = printed(summary_of(waiting(make_snapshot(1000), 3_000_000_000, 100_000_000)))
    shown = "ranks       2: barrier 0.1/1.6/3.0 s (min/mean/max), rank 1 late 2.9 ms (100%)"
    assert shown in lines
    assert max(map(len, lines)) <= 80
    assert "barrier" not in "".join(printed(summary_of(make_snapshot(1000))))


def test_a_rank_without_a_report_does_not_mean_untimed(make_snapshot: Any) -> None:
    snapshot = make_snapshot(0)
    silent = dataclasses.replace(snapshot.learners[0], account=NO_ACCOUNT)
    summary = summary_of(dataclasses.replace(snapshot, learners=(snapshot.learners[0], silent)))
    assert summary["bottleneck"]["verdict"] == "warming up"
    assert summary["timing"]["learners"][1] is None


def test_with_timing_off_the_account_is_null_and_the_rates_stay(make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(1000, is_timed=False), baseline=make_snapshot(100, is_timed=False))
    assert summary["timing"] == {"learner": None, "collector": None}
    assert summary["bottleneck"]["verdict"] == "unknown"
    assert summary["rates"]["steps_per_sec"] == pytest.approx(900 / 5.94)
    assert not any("Learner" in line for line in printed(summary))  # nothing to show


@pytest.mark.promise("summary")
def test_a_crash_before_the_first_report_still_has_a_summary() -> None:
    nothing = Snapshot(0.5, 0, 0, (), (), 0, 20_000, 0.0)
    unknown = EvalResult(0, float("nan"), float("nan"), 0.0, 0)
    cause = "learner 0: no such device"
    summary = summary_of(nothing, status="failed", exit_code=2, reason=cause, last_eval=unknown)
    assert (summary["updates"], summary["warmup_s"]) == (0, None)
    assert summary["eval"] == {"mean_reward": None, "std_reward": None, "episodes": 0}
    assert summary["bottleneck"]["verdict"] == "warming up"
    json.dumps(summary, allow_nan=False)
    assert printed(summary)[0].startswith("failed after 0 env steps, 0 updates, 0:00")
    assert printed(summary)[1] == "because     learner 0: no such device"


def test_a_resumed_run_that_ends_before_its_first_report_still_has_a_summary(make_snapshot: Any) -> None:
    """What each process continues is known; no report has come."""
    continued = make_snapshot(1000)
    summary = summary_of(dataclasses.replace(continued, learners=(), collectors=()), continued, status="interrupted")
    assert (summary["env_steps"], summary["updates"]) == (continued.env_steps, continued.learners[0].updates)
    assert summary["updates"] > 0


def test_what_appo_has_collected_and_not_learnt_from_is_named(make_snapshot: Any) -> None:
    """Rows of a replay may be drawn by any later update; a rollout is learnt from once or never."""
    header, (rank,) = dataclasses.replace(HEADER, algo="appo"), make_snapshot(100).learners
    ranks = tuple(dataclasses.replace(rank, samples=samples) for samples in (300, 340))
    start = dataclasses.replace(make_snapshot(20), env_steps=200, learners=())
    snapshot = dataclasses.replace(make_snapshot(100), env_steps=1664, learners=ranks)
    summary = build_summary(snapshot, header, RESULT, start=start)
    assert (summary["env_steps"], summary["not_learnt_from"]) == (1664, 824)
    assert printed(summary)[0].startswith("completed after 1,664 env steps (824 not learnt from), 100 updates, ")
    replay = build_summary(snapshot, HEADER, RESULT, start=start)
    assert replay["not_learnt_from"] is None
    assert printed(replay)[0].startswith("completed after 1,664 env steps, 100 updates, ")


def test_how_and_how_far_the_run_ran_is_in_the_summary(make_snapshot: Any) -> None:
    header = dataclasses.replace(HEADER, learner_threads=2, collector_threads=3, kernels="fast", products="oneDNN")
    snapshot = dataclasses.replace(make_snapshot(100), wall_s=12.5, restarts=3, learner_restarts=1)
    summary = build_summary(snapshot, header, RESULT, baseline=make_snapshot(50), start=make_snapshot(20))
    assert summary["from_env_step"] == 1020  # where it began, not where it began to learn
    assert summary["threads"] == {"learner": 2, "collector": 3}
    assert (summary["kernels"], summary["products"], summary["mode"]) == ("fast", "oneDNN", "alternate")
    assert (summary["env_steps"], summary["updates"], summary["wall_s"]) == (1100, 100, 12.5)
    assert (summary["restarts"], summary["learner_restarts"]) == (3, 1)


def test_rates_are_since_the_baseline_capacities_and_the_prediction_among_them(make_snapshot: Any) -> None:
    """In alternate mode the sides take turns: 240 us for a vector step, 6450 us for an update."""
    summary = summary_of(make_snapshot(1000), make_snapshot(100), prediction_error=0.04)
    rates = {"steps_per_sec": 900 / 5.94, "utd": 1.0, "collector_capacity": 1e6 / 240, "learner_capacity": 1e6 / 6450}
    rates |= {"predicted_steps_per_sec": 1e6 / (240 + 6450), "prediction_error": 0.04}
    assert {key: summary["rates"][key] for key in rates} == pytest.approx(rates)
    assert (summary["bottleneck"]["verdict"], summary["bottleneck"]["phase"]) == ("learner", "train")
    assert summary["warmup_s"] == 2.0


def test_the_summary_file_is_replaced_whole_or_stays(tmp_path: Path, make_snapshot: Any) -> None:
    path, summary = tmp_path / "summary.json", summary_of(make_snapshot(10))
    write_summary(path, {"status": "failed"})
    write_summary(path, summary)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(path, {"wall_s": float("nan")})
    assert json.loads(path.read_text()) == summary
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_the_summary_holds_the_account_of_the_evaluator_where_there_is_one(make_snapshot: Any) -> None:
    account = Account(3000 * 10**6, 100 * 10**6, 9, {"wait_request": 2500 * 10**6, "env_step": 500 * 10**6}, 0)
    snapshot = dataclasses.replace(make_snapshot(1000), evaluator=EvaluatorTotals(account, 4, 1))
    section = summary_of(snapshot)["timing"]["evaluator"]
    assert section["wall_s"] == pytest.approx(3.1)
    assert sum(section["phases_s"].values()) + section["other_s"] == pytest.approx(section["wall_s"])
    assert "evaluator" not in summary_of(make_snapshot(1000))["timing"]


def with_cores(snapshot: Snapshot, seconds: int) -> Snapshot:
    used_s = {"learner": 9, "openmp": 4, "others": 3, "idle": 4}
    classes_ns = {str(row): used_s.get(row, 0) * seconds * 10**8 for row in CoreClass}
    return dataclasses.replace(snapshot, cores=CoreTotals(seconds * 10**9, 2 * seconds * 10**9, classes_ns))


def test_the_summary_holds_what_the_cores_did_over_the_whole_run(make_snapshot: Any) -> None:
    baseline = with_cores(make_snapshot(500), 4)
    cores = summary_of(with_cores(make_snapshot(1000), 10), baseline)["cores"]
    assert (cores["wall_s"], cores["capacity"], sum(cores["seconds"].values())) == (10.0, 2.0, 20.0)
    assert (cores["seconds"]["learner"], cores["seconds"]["collector"]) == (9.0, 0.0)
    assert cores["cpu_ms_per_env_step"] == 1300 * (10 - 4) / 500  # since the baseline, as the rates are


@pytest.mark.parametrize("content", [None, b"[1]", b'{"status": "\xff"}', b"[" * 100_000])
def test_a_summary_that_cannot_be_read_is_refused_or_empty(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read" if content else "which is written when a run ends"):
        read_summary(tmp_path)
    assert known_summary(tmp_path) == {}


def test_a_run_that_has_not_ended_is_named_in_a_command_to_copy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"or write offpolicy resume '.*/my run'$"):
        read_summary(tmp_path / "my run")
