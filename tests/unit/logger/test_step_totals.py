"""Iterations reported in seconds become an account that closes, and nothing is claimed that was not reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.logger.record import RunHeader
from offpolicy.logger.step_totals import PHASE_OF, StepTotals
from offpolicy.timing.clock import Stopwatch

MS = 1_000_000


class Hands:
    """A clock whose time is set."""

    now = 0

    def now_ns(self) -> int:
        return self.now


@pytest.fixture
def totals() -> StepTotals:
    header = RunHeader(
        algo="foreign", env_id="X-v0", seed=0, mode="overlap", total_timesteps=1000, num_envs=2, num_collectors=2
    )
    return StepTotals(header, Stopwatch(Hands()))


def add(totals: StepTotals, iteration: int = 1, iteration_time: float | None = None, **seconds: float) -> None:
    totals.add(iteration, seconds, iteration_time, {"throughput_steps": 8}, {}, {})


def test_each_time_is_its_phase_and_the_rest_of_the_iteration_is_other(totals: StepTotals) -> None:
    seconds = {name: 0.001 * (index + 1) for index, name in enumerate(PHASE_OF)}
    add(totals, 1, 0.050, **seconds)
    add(totals, 2, 0.050, **seconds)
    account = totals.snapshot().learners[0].account
    phases_ns = {str(phase): 2 * MS * (index + 1) for index, phase in enumerate(PHASE_OF.values())}
    assert {phase: ns for phase, ns in account.phases_ns.items() if ns} == phases_ns | {"other": 10 * MS}
    assert (account.wall_ns, account.iterations) == (100 * MS, 2)
    assert sum(account.phases_ns.values()) == account.wall_ns


def test_times_that_exceed_the_iteration_show_as_a_negative_rest(totals: StepTotals) -> None:
    add(totals, train_time=0.030, learner_incremental_h2d_time=0.010, iteration_time=0.035)
    account = totals.snapshot().learners[0].account
    assert (account.wall_ns, account.phases_ns["other"]) == (35 * MS, -5 * MS)


def test_the_collectors_times_are_of_a_vector_step_by_unilabs_names(totals: StepTotals) -> None:
    names = ("weight_sync_ms", "mlp_infer_ms", "env_step_ms", "replay_ms", "sync_coordination_ms")
    totals.set_collector_timing({name: index + 1.0 for index, name in enumerate(names)})
    add(totals, train_time=0.1)  # 8 transitions of 4 environments: 2 vector steps
    (collector,) = totals.snapshot().collectors
    phases = ("weight_apply", "action_select", "env_step", "replay_write", "learner_wait")
    assert collector.account.phases_ns == {p: 2 * MS * (i + 1) for i, p in enumerate(phases)} | {
        phase: 0 for phase in collector.account.phases_ns if phase not in phases
    }
    assert (collector.env_steps, collector.vector_steps, collector.account.iterations) == (8, 2, 2)


def test_updates_are_samples_by_batch_and_else_iterations(totals: StepTotals) -> None:
    totals.add(1, {}, None, {"learner_samples_per_iter": 2048, "effective_batch_size": 512}, {}, {})
    totals.add(2, {}, None, {}, {}, {})
    (learner,) = totals.snapshot().learners
    assert (learner.samples, learner.updates) == (2048, 5)


def test_metrics_are_means_under_our_names_and_unknown_ones_are_told_once(totals: StepTotals) -> None:
    for loss in (1.0, 3.0):
        totals.add(
            1, {}, None, {}, {"qf_loss": loss, "alpha": 0.5, "critic_grad_norm": 9.0}, {"alive": 1.0, "mean": 7.0}
        )
    metrics = totals.snapshot().learners[0].metrics
    assert (metrics.names, metrics.sums.tolist(), metrics.counts.tolist()) == (
        ("critic_loss", "ent_coef"), [4.0, 1.0], [2.0, 2.0]
    )  # fmt: skip
    assert totals.take_left_out() == ["train/critic_grad_norm", "reward/alive"]
    totals.add(1, {}, None, {}, {"critic_grad_norm": 9.0}, {})
    assert totals.take_left_out() == []
    assert totals.known({"rollout/episodes": 0.0}) == {"rollout/ep_rew_mean": 7.0}


def test_env_steps_are_those_of_the_collector_where_it_counts_them(totals: StepTotals) -> None:
    add(totals)
    assert totals.snapshot().env_steps == 8
    totals.set_collector(5000, 700, -3.0)
    add(totals)
    snapshot = totals.snapshot()
    assert (snapshot.env_steps, snapshot.replay_rows, snapshot.collectors[0].env_steps) == (5000, 700, 5000)
    assert totals.known({"rollout/episodes": 0.0}) == {"replay/rows": 700, "rollout/ep_rew_mean": -3.0}


def test_nothing_is_claimed_of_what_was_not_reported(totals: StepTotals) -> None:
    zeros = {
        "rank/num": 1.0, "prefetch/pack_ms": 0.0, "cpu/collector_pct": 0.0, "perf/policy_lag": 0.0,
        "perf/sample_age": 0.0, "timing/learner_checkpoint_ms": 0.0, "spread/learner_log_p50_ms": 0.0,
        "share/learner_evaluation_pct": 0.0,
        "replay/rows": 0.0, "rollout/episodes": 0.0,
    }  # fmt: skip
    kept = {"timing/learner_train_ms": 1.0, "perf/steps_per_sec": 2.0, "cpu/learner_pct": 50.0}
    assert totals.known(zeros | kept) == kept
    totals.add(1, {}, None, {"collector_active_steps_per_sec": 900.0}, {}, {})
    assert totals.known({"rollout/episodes": 3.0}) == {"rollout/episodes": 3.0, "perf/collector_capacity": 900.0}


@pytest.mark.parametrize(
    "value", [None, "x", "12", np.zeros(2), float("nan"), 10**400], ids=lambda value: str(value)[:9]
)
def test_what_is_no_number_is_not_known_and_later_records_are_whole(totals: StepTotals, value: Any) -> None:
    names = ("throughput_steps", "learner_samples_per_iter", "effective_batch_size", "collector_active_steps_per_sec")
    totals.set_collector_timing({"env_step_ms": value})
    totals.add(1, {"train_time": value}, value, dict.fromkeys(names, value), {"qf_loss": value}, {"mean": value})
    sizes = {"learner_samples_per_iter": np.array([64]), "effective_batch_size": np.array(32)}
    info = {"throughput_steps": np.int64(8), **sizes}  # one element is a number
    totals.add(2, {"train_time": 0.002}, None, info, {"qf_loss": 2.0}, {})
    snapshot = totals.snapshot()
    (learner,) = snapshot.learners
    assert (snapshot.env_steps, learner.updates, learner.samples) == (8, 3, 64)
    assert learner.account.phases_ns["train"] == 2 * MS
    assert (learner.metrics.sums.tolist(), learner.metrics.counts.tolist()) == ([2.0], [1.0])


@pytest.mark.parametrize("number", [np.int64(500), np.float32(500.0), torch.tensor(500), np.array([500])])
def test_counts_of_other_libraries_become_numbers_that_files_take(totals: StepTotals, number: Any) -> None:
    """JSON has no number of numpy: the first record ended `metrics.jsonl`, and the summary raised."""
    totals.set_collector(number, number, number)
    totals.add(number, {}, None, {}, {}, {})
    snapshot = totals.snapshot()
    counts = (snapshot.env_steps, snapshot.replay_rows, snapshot.iteration)
    assert json.dumps([*counts, totals.known({"rollout/episodes": 0})]) == (
        '[500, 500, 500, {"replay/rows": 500, "rollout/ep_rew_mean": 500.0}]'
    )
