from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from offpolicy.errors import ConfigError
from offpolicy.logger.end_screen import end_screen
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import RunResult, build_summary, known_summary, read_summary, write_summary
from offpolicy.timing.phases import CoreClass, LearnerPhase
from offpolicy.timing.virtual_speedup import Measured
from offpolicy.types import (
    Account,
    ArrivalTotals,
    Cooldown,
    CoreTotals,
    EvalResult,
    EvaluatorTotals,
    LearnerTotals,
    SchedulerStats,
    SlowTime,
    Snapshot,
)

HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=2000)
RESULT = RunResult(status="completed", exit_code=0, reason="2,000 env steps done")


def summary_of(
    snapshot: Snapshot, baseline: Snapshot | None = None, num_hosts: int = 1, flops: float = 0.0, **result: Any
) -> dict[str, Any]:
    header = dataclasses.replace(HEADER, num_hosts=num_hosts, flops_per_update=flops)
    return build_summary(snapshot, header, dataclasses.replace(RESULT, **result), baseline=baseline)


def printed(summary: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(end_screen(summary, Path("runs/mine")))
    return capture.get().rstrip("\n").split("\n")


def test_the_summary_has_exactly_the_documented_keys(make_snapshot: Any, evaluation: EvalResult) -> None:
    summary = summary_of(make_snapshot(1000), last_eval=evaluation)
    assert list(summary) == [
        "status", "exit_code", "reason", "env_steps", "from_env_step", "updates", "restarts", "learner_restarts",
        "wall_s", "warmup_s", "eval", "rollout", "timing", "learning", "pipeline", "cores", "rates", "bottleneck",
        "mode", "threads", "compile", "products", "versions", "hardware",
    ]  # fmt: skip
    assert summary["eval"] == {"mean_reward": -150.25, "std_reward": 80.5, "episodes": 10}
    assert list(summary["timing"]) == ["learner", "collector"]
    assert list(summary["timing"]["learner"]) == ["wall_s", "phases_s", "other_s", "states", "spread_ms", "slow_ms"]
    assert list(summary["rates"]) == [
        "steps_per_sec", "collector_capacity", "learner_capacity", "predicted_steps_per_sec", "prediction_error",
        "utd", "samples_per_sec", "flops_per_sec",
    ]  # fmt: skip
    assert list(summary["bottleneck"]) == ["verdict", "phase", "reason", "advice"]
    assert list(summary["versions"]) == ["offpolicy", "torch", "gymnasium", "mujoco"]
    assert list(summary["hardware"]) == ["cpu", "cores", "gpu"]


@pytest.mark.parametrize("side", ["learner", "collector"])
def test_the_account_closes_over_the_whole_life_of_the_process(make_snapshot: Any, side: str) -> None:
    account = summary_of(make_snapshot(1000))["timing"][side]
    nanoseconds = [round(seconds * 1e9) for seconds in (*account["phases_s"].values(), account["other_s"])]
    assert sum(nanoseconds) == round(account["wall_s"] * 1e9) == 8_600_000_000
    assert account["phases_s"]["warmup"] == 2.0


def test_the_phases_are_the_frozen_ones_and_the_warmup(make_snapshot: Any) -> None:
    timing = summary_of(make_snapshot(1000))["timing"]
    assert list(timing["learner"]["phases_s"]) == [
        "collector_wait", "replay_batch_wait", "replay_sample", "h2d", "rank_barrier", "sync_coordination", "train",
        "param_sync", "weight_publish", "evaluation", "checkpoint", "log", "warmup",
    ]  # fmt: skip
    assert list(timing["collector"]["phases_s"]) == [
        "weight_apply", "action_select", "env_step", "replay_write", "handshake", "learner_wait", "post_backpressure",
        "snapshot", "warmup",
    ]  # fmt: skip
    assert timing["learner"]["phases_s"]["train"] == 6.1


def test_several_collectors_are_listed_not_summed(make_snapshot: Any) -> None:
    snapshot = make_snapshot(1000)
    timing = summary_of(dataclasses.replace(snapshot, collectors=snapshot.collectors * 2))["timing"]
    assert timing["collectors"] == [timing["collector"], timing["collector"]]
    assert timing["collector"]["wall_s"] == 8.6


def ended(snapshot: Snapshot, seconds: int) -> Snapshot:
    """The same, `seconds` later: they went into the final evaluation, for which the collector waited."""
    cooled = []
    for totals, phase in ((snapshot.learners[0], "evaluation"), (snapshot.collectors[0], "learner_wait")):
        account, extra_ns = totals.account, seconds * 10**9
        after = Cooldown({**dict.fromkeys(account.phases_ns, 0), phase: extra_ns}, extra_ns // 2, SchedulerStats(7, 9))
        later = dataclasses.replace(
            account,
            wall_ns=account.wall_ns + extra_ns,
            phases_ns={**account.phases_ns, phase: account.phases_ns[phase] + extra_ns},
            cpu_ns=account.cpu_ns + after.cpu_ns,
            scheduler=SchedulerStats(*map(sum, zip(account.scheduler, after.scheduler, strict=True))),
            cooldown=after,
        )
        cooled.append(dataclasses.replace(totals, account=later))
    return dataclasses.replace(snapshot, learners=(cooled[0],), collectors=(cooled[1],))


def test_the_final_evaluation_is_in_the_account_and_not_in_rates_and_verdict(make_snapshot: Any) -> None:
    baseline, end = make_snapshot(100), make_snapshot(1000)
    without, summary = summary_of(end, baseline), summary_of(ended(end, 60), baseline)
    for section in ("rates", "bottleneck", "learning"):
        assert summary[section] == without[section], section
    assert summary["timing"]["learner"]["phases_s"]["evaluation"] == 60.0
    assert summary["bottleneck"]["phase"] == "train"


def test_what_slow_iterations_take_longer_is_measured_against_iterations_alone(make_snapshot: Any) -> None:
    """Ten slow iterations of 20 ms of `train`, where the mean one takes 6.1 ms; the final evaluation is in none."""
    snapshot = ended(make_snapshot(1000), 60)
    account = snapshot.learners[0].account
    assert account is not None
    slow = SlowTime(10, {**dict.fromkeys(account.phases_ns, 0), "train": 10 * 20_000_000})
    learner = dataclasses.replace(snapshot.learners[0], account=dataclasses.replace(account, slow=slow))
    slow_ms = summary_of(dataclasses.replace(snapshot, learners=(learner,)))["timing"]["learner"]["slow_ms"]
    assert (slow_ms["train"], slow_ms["evaluation"]) == (pytest.approx(13.9), 0.0)


def test_the_window_of_the_rates_is_in_the_summary_phase_by_phase(make_snapshot: Any) -> None:
    learning = summary_of(ended(make_snapshot(1000), 60), make_snapshot(100))["learning"]
    assert learning["learner_s"]["train"] == pytest.approx(0.0061 * 900)
    assert sum(learning["learner_s"].values()) == pytest.approx(0.0066 * 900)
    (collector,) = learning["collectors_s"]
    assert collector["env_step"] == pytest.approx(0.0001 * 900)
    assert sum(collector.values()) == pytest.approx(0.0066 * 900)


def test_samples_and_costs_by_phase_are_of_the_run_since_the_baseline(make_snapshot: Any) -> None:
    """Before it the learner took 310 us for a sample of no rows; since then twice as long as for an update."""
    early, late = make_snapshot(500), make_snapshot(1000)
    rank = late.learners[0]
    phases_ns = {**rank.account.phases_ns, "train": 4_050_000_000, "replay_sample": 2_155_000_000 + 205_000_000}
    account = dataclasses.replace(rank.account, phases_ns=phases_ns)
    late = dataclasses.replace(late, learners=(dataclasses.replace(rank, account=account),))
    early = dataclasses.replace(early, learners=(dataclasses.replace(early.learners[0], samples=0),))
    summary = summary_of(late, early)
    assert summary["rates"]["samples_per_sec"] == pytest.approx(256 * 1000 / 3.3)
    costs, spent = summary["pipeline"]["learner_s"], summary["learning"]["learner_s"]
    assert costs["replay_sample"] / costs["train"] == pytest.approx(spent["replay_sample"] / spent["train"])
    assert spent["replay_sample"] > 2 * spent["train"]


def test_a_rank_that_was_late_before_the_baseline_alone_is_not_named(make_snapshot: Any) -> None:
    early = waiting(make_snapshot(500), 2_000_000_000, 100_000_000)
    later = waiting(make_snapshot(1000), 4_400_000_000, 2_500_000_000)
    same = [dataclasses.replace(rank, arrivals=early.learners[i].arrivals) for i, rank in enumerate(later.learners)]
    summary = summary_of(dataclasses.replace(later, learners=tuple(same)), early)
    assert summary["timing"]["straggler"] is None
    assert summary["bottleneck"]["phase"] == "rank_barrier"
    assert "arrives" not in summary["bottleneck"]["reason"]


def test_a_phase_that_never_opened_has_no_percentiles(make_snapshot: Any) -> None:
    spread = summary_of(make_snapshot(1000))["timing"]["learner"]["spread_ms"]
    assert "param_sync" not in spread
    assert spread["train"]["p50"] == pytest.approx(6.1, rel=0.03)


def waiting(snapshot: Snapshot, *waits_ns: int) -> Snapshot:
    """One rank for each of `waits_ns`, which it spent in the barrier instead of in training."""

    def learner(wait_ns: int) -> LearnerTotals:
        one = snapshot.learners[0]
        assert one.account is not None
        phases_ns = dict(one.account.phases_ns)
        phases_ns["rank_barrier"] += wait_ns
        phases_ns["train"] -= wait_ns
        late_ns = max(waits_ns) - wait_ns
        arrivals = ArrivalTotals(1000, 1000 if late_ns else 0, late_ns, late_ns)
        return dataclasses.replace(
            one, account=dataclasses.replace(one.account, phases_ns=phases_ns), arrivals=arrivals
        )

    return dataclasses.replace(snapshot, learners=tuple(map(learner, waits_ns)))


def test_several_ranks_are_listed_not_summed(make_snapshot: Any) -> None:
    timing = summary_of(waiting(make_snapshot(1000), 3_000_000_000, 100_000_000))["timing"]
    assert [rank["phases_s"]["rank_barrier"] for rank in timing["learners"]] == [3.0, 0.1]
    assert timing["learner"] == timing["learners"][0]
    assert "collectors" not in timing


def test_the_end_screen_names_the_straggler(make_snapshot: Any) -> None:
    lines = printed(summary_of(waiting(make_snapshot(1000), 3_000_000_000, 100_000_000)))
    shown = "ranks       2: barrier 0.1/1.6/3.0 s (min/mean/max), rank 1 late 2.9 ms (100%)"
    assert shown in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80
    assert "barrier" not in "".join(printed(summary_of(make_snapshot(1000))))


def test_of_equal_ranks_the_summary_names_none(make_snapshot: Any) -> None:
    summary = summary_of(waiting(make_snapshot(1000), 0, 0))
    assert summary["timing"]["straggler"] is None
    assert "barrier 0.0/0.0/0.0 s (min/mean/max), none is late" in "\n".join(printed(summary))


@pytest.mark.parametrize("account", [None, Account(0, 5, 0, {}, 0)])
def test_a_rank_without_an_account_is_not_the_straggler(make_snapshot: Any, account: Account | None) -> None:
    snapshot = waiting(make_snapshot(1000), 3_000_000_000, 0, 100_000_000)
    first, second, third = snapshot.learners
    absent = dataclasses.replace(second, account=account)
    summary = summary_of(dataclasses.replace(snapshot, learners=(first, absent, third)))
    assert "3: barrier 0.1/1.6/3.0 s (min/mean/max), rank 2 late 2.9 ms" in "\n".join(printed(summary))


def test_a_rank_without_a_report_does_not_mean_untimed(make_snapshot: Any) -> None:
    snapshot = make_snapshot(0)
    silent = dataclasses.replace(snapshot.learners[0], account=None)
    summary = summary_of(dataclasses.replace(snapshot, learners=(snapshot.learners[0], silent)))
    assert summary["bottleneck"]["verdict"] == "warming up"
    assert summary["timing"]["learners"][1] is None


def test_the_rates_are_of_all_hosts(make_snapshot: Any) -> None:
    rates = summary_of(make_snapshot(1000), baseline=make_snapshot(100), num_hosts=2)["rates"]
    assert rates["steps_per_sec"] == pytest.approx(2 * 900 / 5.94)
    assert rates["utd"] == 0.5


def test_rates_and_verdict_are_of_the_run_since_the_baseline(make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(1000), baseline=make_snapshot(100))
    assert summary["rates"]["steps_per_sec"] == pytest.approx(900 / 5.94)
    assert summary["rates"]["utd"] == 1.0
    assert (summary["bottleneck"]["verdict"], summary["bottleneck"]["phase"]) == ("learner", "train")
    assert summary["warmup_s"] == 2.0


def test_with_timing_off_the_account_is_null_and_the_rates_stay(make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(1000, is_timed=False), baseline=make_snapshot(100, is_timed=False))
    assert summary["timing"] == {"learner": None, "collector": None}
    assert summary["bottleneck"]["verdict"] == "unknown"
    assert summary["rates"]["steps_per_sec"] == pytest.approx(900 / 5.94)
    assert not any("Learner" in line for line in printed(summary))  # nothing to show


def test_a_crash_before_the_first_report_still_has_a_summary() -> None:
    nothing = Snapshot(0.5, 0, 0, (), (), 0, 20_000, 0.0)
    summary = summary_of(nothing, status="failed", exit_code=2, reason="learner 0: no such device")
    assert (summary["updates"], summary["warmup_s"]) == (0, None)
    assert summary["eval"] == {"mean_reward": None, "std_reward": None, "episodes": 0}
    assert summary["bottleneck"]["verdict"] == "warming up"
    json.dumps(summary, allow_nan=False)
    assert printed(summary)[0].startswith("failed after 0 env steps, 0 updates, 0:00")
    assert printed(summary)[1].rstrip() == "because     learner 0: no such device"


def test_a_resumed_run_that_ends_before_its_first_report_still_has_a_summary(make_snapshot: Any) -> None:
    """The hellos have told what each process continues; no report has come."""
    continued = make_snapshot(1000)
    summary = summary_of(dataclasses.replace(continued, learners=(), collectors=()), continued, status="interrupted")
    assert (summary["env_steps"], summary["updates"]) == (continued.env_steps, continued.learners[0].updates)
    assert summary["updates"] > 0


def test_a_return_that_is_not_a_number_is_null(make_snapshot: Any, evaluation: EvalResult) -> None:
    summary = summary_of(make_snapshot(10), last_eval=evaluation._replace(mean_reward=float("nan")))
    assert summary["eval"]["mean_reward"] is None


def test_a_spread_that_is_not_a_number_is_null(make_snapshot: Any, evaluation: EvalResult) -> None:
    summary = summary_of(make_snapshot(10), last_eval=evaluation._replace(std_reward=float("inf")))
    assert summary["eval"] == {"mean_reward": -150.25, "std_reward": None, "episodes": 10}


def test_how_the_run_ran_is_in_the_summary(make_snapshot: Any) -> None:
    header = dataclasses.replace(
        HEADER, learner_threads=2, collector_threads=3, update_mode="graph", update_reason="faster", products="oneDNN"
    )
    summary = build_summary(make_snapshot(10), header, RESULT)
    assert summary["threads"] == {"learner": 2, "collector": 3}
    assert summary["compile"] == {"mode": "graph", "reason": "faster"}
    assert (summary["products"], summary["mode"]) == ("oneDNN", "alternate")


def test_what_was_not_chosen_yet_is_null_or_off(make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(10))
    assert (summary["threads"]["learner"], summary["compile"]["mode"], summary["products"]) == (None, "off", None)


def test_counts_and_times_of_the_run_are_those_of_its_last_snapshot(make_snapshot: Any) -> None:
    snapshot = dataclasses.replace(make_snapshot(100), wall_s=12.5, restarts=3, learner_restarts=1)
    summary = summary_of(snapshot)
    assert (summary["env_steps"], summary["updates"], summary["wall_s"]) == (1100, 100, 12.5)
    assert (summary["restarts"], summary["learner_restarts"]) == (3, 1)


def test_capacities_and_the_prediction_are_in_the_summary(make_snapshot: Any) -> None:
    """In alternate mode the sides take turns: 240 us for a vector step, 6450 us for an update."""
    rates = summary_of(make_snapshot(1000), make_snapshot(100), prediction_error=0.04)["rates"]
    assert rates["collector_capacity"] == pytest.approx(1e6 / 240)
    assert rates["learner_capacity"] == pytest.approx(1e6 / 6450)
    assert rates["predicted_steps_per_sec"] == pytest.approx(1e6 / (240 + 6450))
    assert rates["prediction_error"] == 0.04


@pytest.mark.parametrize(
    ("config", "has_gpu", "keys"),
    [
        ({}, False, ["threads.learner=auto", "lower algo.batch_size"]),
        ({"threads": {"learner": "auto"}}, False, ["lower algo.batch_size"]),
        ({}, True, ["threads.learner=auto", "device=cuda", "lower algo.batch_size"]),
    ],
)
def test_advice_is_what_the_run_does_not_do_yet_and_its_machine_can(
    make_snapshot: Any, config: dict[str, Any], has_gpu: bool, keys: list[str]
) -> None:
    header = dataclasses.replace(HEADER, has_gpu=has_gpu)
    summary = build_summary(make_snapshot(1000), header, RESULT, baseline=make_snapshot(100), config_mapping=config)
    assert [text.partition(":")[0] for text in summary["bottleneck"]["advice"]] == keys


def test_the_hardware_is_that_of_this_process(make_snapshot: Any) -> None:
    hardware = summary_of(make_snapshot(10), gpu="Some GPU")["hardware"]
    assert hardware["cores"] == len(os.sched_getaffinity(0))
    assert hardware["cpu"]
    assert hardware["gpu"] == "Some GPU"


def test_the_summary_file_is_replaced_whole(tmp_path: Path, make_snapshot: Any) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, {"status": "failed"})
    summary = summary_of(make_snapshot(10))
    write_summary(path, summary)
    assert json.loads(path.read_text()) == summary
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_the_summary_is_on_the_disk_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("offpolicy.files.os.fsync", synced.append)
    write_summary(tmp_path / "summary.json", {"status": "completed"})
    assert len(synced) == 2  # the content, and its name


def test_a_summary_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, {"status": "completed"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(path, {"wall_s": float("nan")})
    assert json.loads(path.read_text()) == {"status": "completed"}


def test_samples_and_flops_per_second_are_in_the_summary_and_its_table(make_snapshot: Any) -> None:
    active_s = 6.45e-3  # of 6.6 ms: without collector_wait and sync_coordination
    summary = summary_of(make_snapshot(1000), baseline=make_snapshot(100), flops=active_s * 2.5e9)
    assert summary["rates"]["samples_per_sec"] == pytest.approx(256 / 6.6e-3)
    assert summary["rates"]["flops_per_sec"] == pytest.approx(2.5e9)
    (line,) = [line for line in printed(summary) if line.startswith("learning")]
    assert line.split(maxsplit=1)[1].rstrip() == "38788 samples/s  0.0025 TFLOP/s while active"


def test_without_samples_or_flops_the_table_says_nothing_of_them(make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(0))
    assert (summary["rates"]["samples_per_sec"], summary["rates"]["flops_per_sec"]) == (None, None)
    assert not any(line.startswith("learning") for line in printed(summary))


def test_a_phase_that_most_runs_never_open_has_a_row_where_it_has_time(make_snapshot: Any) -> None:
    snapshot = make_snapshot(1000)
    assert not any("Episode Hook" in line for line in printed(summary_of(snapshot)))
    snapshot.collectors[0].account.phases_ns["post_backpressure"] += 10**9
    assert any("Episode Hook" in line and " 1.0 " in line for line in printed(summary_of(snapshot)))


def test_the_summary_holds_the_account_of_the_evaluator_where_there_is_one(make_snapshot: Any) -> None:
    account = Account(3000 * 10**6, 100 * 10**6, 9, {"wait_request": 2500 * 10**6, "env_step": 500 * 10**6}, 0)
    snapshot = dataclasses.replace(make_snapshot(1000), evaluator=EvaluatorTotals(account, 4, 1, 2))
    section = summary_of(snapshot)["timing"]["evaluator"]
    assert section["wall_s"] == pytest.approx(3.1)
    assert sum(section["phases_s"].values()) + section["other_s"] == pytest.approx(section["wall_s"])
    assert "evaluator" not in summary_of(make_snapshot(1000))["timing"]


# -- cores and thread states ------------------------------------------------------------------------------------------


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


def test_the_end_screen_has_a_line_on_the_cores(make_snapshot: Any) -> None:
    lines = printed(summary_of(with_cores(make_snapshot(1000), 10)), width=120)
    (line,) = [line for line in lines if line.startswith("cores")]
    expected = "learner 0.90  openmp 0.40  others 0.30  idle 0.40  of 2; 6.50 ms of CPU per env step"
    assert line.removeprefix("cores").strip() == expected


def test_without_a_core_ledger_the_cores_are_null(make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(1000))
    assert summary["cores"] is None
    assert not [line for line in printed(summary) if line.startswith("cores")]


def test_a_run_that_ends_before_its_cores_were_read_twice_has_null_for_them(make_snapshot: Any) -> None:
    unread = CoreTotals(0, 0, dict.fromkeys(map(str, CoreClass), 0))
    assert summary_of(dataclasses.replace(make_snapshot(0), cores=unread))["cores"] is None


def test_the_summary_holds_the_states_of_the_phases_that_were_sampled(make_snapshot: Any) -> None:
    snapshot: Snapshot = make_snapshot(1000)
    learner = snapshot.learners[0]
    assert learner.account is not None
    states = np.zeros((len(LearnerPhase), 3), np.int64)
    states[list(LearnerPhase).index(LearnerPhase.TRAIN)] = [80 * 10**6, 40 * 10**6, 8 * 10**6]
    timed = dataclasses.replace(learner, account=dataclasses.replace(learner.account, states=states))
    summary = summary_of(dataclasses.replace(snapshot, learners=(timed,)))
    shares = {"running": 0.5, "runnable": 0.1, "blocked": pytest.approx(0.4)}
    assert summary["timing"]["learner"]["states"] == {"train": shares}
    assert summary["timing"]["collector"]["states"] == {}


def test_a_run_that_was_slowed_on_purpose_shows_what_faster_phases_gained(make_snapshot: Any) -> None:
    gains = {"train": {"25": [1.1], "50": [1.4, 1.5, 1.6]}, "env_step": {"25": [], "50": [1.02, 1.02]}}
    summary = summary_of(make_snapshot(1000), virtual_speedup=Measured(100.0, gains))
    assert summary["virtual_speedup"]["steps_per_sec"] == 100.0
    rows = [(row["phase"], row["percent"], row["blocks"]) for row in summary["virtual_speedup"]["gains"]]
    assert rows == [("train", 25, 1), ("train", 50, 3), ("env_step", 50, 2)]
    assert summary["virtual_speedup"]["gains"][1]["gain"] == pytest.approx(0.5)
    text = " ".join(" ".join(printed(summary)).split())
    assert "slowed on purpose, by timing.virtual_speedup" in text
    assert "with 50 % less time: train +50%, env_step +2%; see offpolicy explain" in text


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"null", b'{"status": "\xff"}', b"[" * 100_000])
def test_a_summary_that_cannot_be_read_is_refused_or_empty(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read" if content else "which is written when a run ends"):
        read_summary(tmp_path)
    assert known_summary(tmp_path) == {}


def test_a_run_that_has_not_ended_is_named_in_a_command_to_copy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"or write offpolicy resume '.*/my run'$"):
        read_summary(tmp_path / "my run")


def test_a_run_is_of_the_env_step_at_which_its_start_found_it(make_snapshot: Any) -> None:
    """Not of that at which it began to learn, from which its rates are."""
    last, learning, start = make_snapshot(1000), make_snapshot(500), make_snapshot(200)
    summaries = [build_summary(last, HEADER, RESULT, baseline=learning, start=one) for one in (None, start)]
    assert [summary["from_env_step"] for summary in summaries] == [0, start.env_steps]
