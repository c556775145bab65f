"""UniLab's names beside ours: what they hold, and that both are read back as the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from offpolicy.analysis.records import RunRecords, read_run, records_of
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.record import Record
from offpolicy.logger.unilab import our_key, with_unilab_keys

OURS: Record = {
    "env_steps": 100.0,
    "iteration": 10.0,
    "wall_s": 1.0,
    "timing/learner_collector_wait_ms": 1.5,
    "timing/learner_replay_batch_wait_ms": 0.25,
    "timing/learner_rank_barrier_ms": 0.5,
    "timing/learner_sync_coordination_ms": 0.125,
    "timing/learner_replay_sample_ms": 0.75,
    "timing/learner_h2d_ms": 0.0625,
    "timing/learner_train_ms": 6.0,
    "timing/learner_weight_publish_ms": 0.375,
    "timing/learner_checkpoint_ms": 0.0,
    "timing/collector_weight_apply_ms": 0.1,
    "timing/collector_action_select_ms": 0.2,
    "timing/collector_env_step_ms": 0.3,
    "timing/collector_replay_write_ms": 0.4,
    "timing/collector_learner_wait_ms": 0.5,
    "perf/iter_ms": 9.5625,
    "perf/steps_per_sec": 105.0,
    "perf/samples_per_sec": 26_880.0,
    "perf/collector_capacity": 900.0,
    "perf/bottleneck": "learner(train 63%)",
    "rollout/ep_rew_mean": -150.0,
    "train/critic_loss": 2.0,
    "time/elapsed_s": 1.0,
}


def run_of(path: Path, records: list[Record]) -> RunRecords:
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_run(path)


def test_every_value_keeps_its_name_and_gets_unilabs() -> None:
    found = with_unilab_keys(OURS)
    assert found.items() >= OURS.items()
    assert {key: found[key] for key in found.keys() - OURS.keys()} == {
        "axis/env_steps_total": 100.0,
        "axis/iteration": 10.0,
        "timing/learner_wait_ms": 2.375,  # the four waits
        "timing/learner_incremental_h2d_ms": 0.0625,
        "timing/learner_weight_sync_ms": 0.375,
        "timing/collector_weight_sync_ms": 0.1,
        "timing/collector_mlp_infer_ms": 0.2,
        "timing/collector_env_step_total_ms": 0.3,
        "timing/collector_replay_ms": 0.4,
        "timing/collector_sync_coordination_ms": 0.5,
        "perf/collector_active_steps_per_sec": 900.0,
        "perf/effective_samples_per_sec": 26_880.0,
        "reward/mean": -150.0,
        "reward/mean_ep100": -150.0,
        "train/qf_loss": 2.0,
    }


def test_a_key_without_a_value_gets_no_name() -> None:
    assert with_unilab_keys({"env_steps": 5.0, "perf/bottleneck": "balanced"}) == {
        "env_steps": 5.0,
        "axis/env_steps_total": 5.0,
        "perf/bottleneck": "balanced",
    }


def test_a_run_with_both_names_is_read_as_the_same_run(tmp_path: Path) -> None:
    rows = [OURS | {"env_steps": 100.0 * k, "wall_s": float(k)} for k in range(1, 11)]
    plain, both = run_of(tmp_path / "plain", rows), run_of(tmp_path / "both", [with_unilab_keys(row) for row in rows])
    assert both.vocabulary.name == plain.vocabulary.name == "offpolicy"
    assert (both.notes, both.unlike) == ((), frozenset())
    for key, column in plain.columns.items():
        np.testing.assert_array_equal(both.columns[key], column, err_msg=key)


def test_unilabs_names_alone_are_read_as_our_numbers(tmp_path: Path) -> None:
    """The inverse: what a dashboard of UniLab would show, read as compare reads a run of UniLab."""
    added = [key for key in with_unilab_keys(OURS) if key not in OURS]
    marks = ("timing/learner_checkpoint_ms", "time/elapsed_s")
    row = {
        key: value for key, value in with_unilab_keys(OURS).items() if key not in marks and not isinstance(value, str)
    }
    renamed = {our_key(key) for key in added} - {"env_steps"}
    theirs = {key: value for key, value in row.items() if key not in renamed}
    found = records_of(tmp_path, [theirs], None)
    assert found.vocabulary.name == "UniLab E2 (from #639)"
    assert found.columns["timing/collector_waits_ms"].tolist() == [0.5]  # theirs is the wait among others
    for key, value in row.items():
        if key in METRICS and key != "timing/collector_learner_wait_ms":
            assert found.columns[key].tolist() == [value], key


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("timing/collector_mlp_infer_ms", "timing/collector_action_select_ms"),
        ("train/alpha", "train/ent_coef"),
        ("perf/iter_ms", "perf/iter_ms"),
        ("timing/learner_train_ms", "timing/learner_train_ms"),
        ("timing/collector_sync_coordination_ms", "timing/collector_learner_wait_ms"),
        ("timing/learner_wait_ms", None),
        ("train/critic_grad_norm", None),
    ],
)
def test_a_name_of_unilab_leads_to_ours(theirs: str, ours: str | None) -> None:
    assert our_key(theirs) == ours
