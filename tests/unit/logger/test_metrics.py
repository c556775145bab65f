"""The table of metrics, and the keys of UniLab and other trainers that are read and written under its names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from offpolicy.analysis.records import RunRecords, read_run
from offpolicy.logger.metrics import vocabulary_of, with_unilab_keys
from offpolicy.logger.record import Record

E0 = {
    "axis/env_steps_total": 512.0, "axis/iteration": 4.0, "reward/mean": 1.0, "reward/mean_ep100": 2.0,
    "episode/length": 50.0, "timing/learner_wait_ms": 7.0, "timing/learner_incremental_h2d_ms": 1.0,
    "timing/learner_train_ms": 5.0, "timing/learner_weight_sync_ms": 2.0, "timing/collector_weight_sync_ms": 0.5,
    "timing/collector_replay_ms": 0.25, "timing/collector_sync_coordination_ms": 3.0, "perf/steps_per_sec": 900.0,
    "perf/iter_ms": 8.0,
}  # fmt: skip
E1 = E0 | {"perf/iter_ms": 15.0, "perf/learner_pipeline_ms": 8.0}
E2 = {
    "timing/learner_collector_wait_ms": 6.0, "timing/learner_replay_batch_wait_ms": 1.0,
    "timing/learner_rank_barrier_ms": 0.1, "timing/learner_sync_coordination_ms": 0.2,
    "timing/learner_incremental_h2d_ms": 1.0, "timing/learner_train_ms": 5.0, "timing/learner_param_sync_ms": 0.4,
    "timing/learner_weight_sync_ms": 2.0, "timing/learner_other_ms": 0.3, "timing/collector_env_step_ms": 4.0,
    "perf/collector_active_steps_per_sec": 700.0, "perf/iter_ms": 15.0, "perf/steps_per_sec": 500.0,
}  # fmt: skip
E3 = {
    "timing/learner_collector_wait_ms": 6.0, "timing/learner_collector_release_ms": 0.2,
    "timing/learner_weight_publish_ms": 2.0, "timing/collector_weight_apply_ms": 0.5,
    "timing/collector_policy_infer_ms": 0.6, "timing/collector_replay_write_ms": 0.25,
    "timing/collector_sync_idle_ms": 3.0, "perf/iter_ms": 15.0,
}  # fmt: skip
E4 = {
    "timing/learner_collector_wait_ms": 6.0, "timing/learner_inference_ms": 0.7, "timing/learner_train_ms": 5.0,
    "timing/learner_collector_release_ms": 0.2, "timing/learner_replay_stage_ms": 1.0,
    "timing/replay_ingress_h2d_submit_ms": 0.1, "timing/collector_learner_action_wait_ms": 3.0,
    "timing/collector_inference_request_ms": 0.1, "perf/collector_cycle_ms": 9.0, "perf/iter_ms": 15.0,
}  # fmt: skip
E5 = {
    "Train/iteration": 4.0, "Train/mean_reward": 2.0, "Train/mean_episode_length": 50.0, "Perf/total_fps": 500.0,
    "Perf/iteration_time": 0.015, "Perf/learning_time": 0.005, "Perf/learner_collector_wait_ms": 6.0,
    "Perf/learner_weight_publish_ms": 2.0, "Perf/learner_inference_ms": 0.7, "Perf/collector_env_step_ms": 4.0,
    "Perf/collector_learner_action_wait_ms": 3.0, "Loss/critic": 0.5, "Policy/temperature": 0.2,
}  # fmt: skip


def recorded(directory: Path, scalars: dict[str, float]) -> RunRecords:
    """A run of 20 iterations whose event files hold nothing but these numbers."""
    writer = EventFileWriter(str(directory))
    values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    for index in range(20):
        summary = summary_pb2.Summary(value=values)
        writer.add_event(event_pb2.Event(step=128 * (index + 1), wall_time=1000.0 + index, summary=summary))
    writer.close()
    return read_run(directory)


WAIT, WAITS, H2D = "timing/learner_collector_wait_ms", "timing/learner_wait_ms", "timing/learner_h2d_ms"
IDLE, PUBLISH = "timing/collector_learner_wait_ms", "timing/learner_weight_publish_ms"
READ = {
    "E0": (E0, {WAITS: 7.0, H2D: 1.0, "timing/collector_waits_ms": 3.0, "perf/learner_pipeline_ms": 8.0,
        "perf/learner_capacity": 900.0, "rollout/ep_rew_mean": 2.0}),
    "E1": (E1, {WAITS: 7.0, "perf/iter_ms": 15.0}),
    "E2": (E2, {WAIT: 6.0, PUBLISH: 2.0, "timing/learner_param_sync_ms": 0.4, "perf/collector_capacity": 700.0}),
    "E3": (E3, {"timing/learner_sync_coordination_ms": 0.2, "timing/collector_action_select_ms": 0.6, IDLE: 3.0}),
    "E4": (E4, {H2D: 1.0, IDLE: 3.0, "timing/learner_inference_ms": 0.7}),
    "E5": (E5, {PUBLISH: 2.0, "timing/collector_env_step_ms": 4.0, "rollout/ep_rew_mean": 2.0, "perf/iter_ms": 15.0,
        "timing/learner_train_ms": 5.0}),
}  # fmt: skip


@pytest.mark.promise("metric-names")
@pytest.mark.parametrize("generation", READ)
def test_a_generation_is_recognised_by_its_keys_and_read_under_our_names(tmp_path: Path, generation: str) -> None:
    scalars, expected = READ[generation]
    run = recorded(tmp_path, scalars)
    assert run.vocabulary.name.startswith(f"UniLab {generation}")
    assert {key: float(np.nanmean(run.columns[key])) for key in expected} == pytest.approx(expected)


def test_what_means_something_else_is_not_read_or_has_a_note(tmp_path: Path) -> None:
    runs = {name: recorded(tmp_path / name, scalars) for name, scalars in (("E0", E0), ("E1", E1), ("E2", E2))}
    for name in ("E0", "E1"):  # the mixed wait is no single phase of ours
        assert WAIT not in runs[name].columns
        assert any(WAITS in note and "handshake" in note for note in runs[name].notes)
    assert not {"perf/iter_ms", "perf/steps_per_sec"} & runs["E0"].columns.keys()  # of the pipeline alone
    assert not any(note.startswith("reward/mean ") for note in runs["E0"].notes), "it is not read"
    assert any(WAIT in note and "#642" in note for note in runs["E2"].notes)
    assert any("perf/iter_ms" in note and "logging" in note for note in runs["E2"].notes)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("timing/learner_checkpoint_ms", "timing/collector_handshake_ms"), "offpolicy"),
        (("timing/learner_checkpoint_ms", "time/eta_s"), "offpolicy"),  # timing was off
        (("rollout/ep_rew_mean", "time/fps"), "Stable-Baselines3"),
        (("charts/SPS", "charts/episodic_return"), "CleanRL"),
        (("Perf/total_fps", "Train/mean_reward"), "RSL-RL"),
        (("something/else",), "offpolicy"),
    ],
)
def test_a_vocabulary_is_recognised_by_its_marks(keys: tuple[str, ...], name: str) -> None:
    assert vocabulary_of(keys).name == name


OURS: Record = {
    "env_steps": 100.0, "iteration": 10.0, "wall_s": 1.0, "timing/learner_collector_wait_ms": 1.5,
    "timing/learner_replay_batch_wait_ms": 0.25, "timing/learner_rank_barrier_ms": 0.5,
    "timing/learner_sync_coordination_ms": 0.125, "timing/learner_replay_sample_ms": 0.75,
    "timing/learner_h2d_ms": 0.0625, "timing/learner_train_ms": 6.0, "timing/learner_weight_publish_ms": 0.375,
    "timing/learner_checkpoint_ms": 0.0, "timing/collector_weight_apply_ms": 0.1,
    "timing/collector_action_select_ms": 0.2, "timing/collector_env_step_ms": 0.3,
    "timing/collector_replay_write_ms": 0.4, "timing/collector_learner_wait_ms": 0.5, "perf/iter_ms": 9.5625,
    "perf/steps_per_sec": 105.0, "perf/samples_per_sec": 26_880.0, "perf/collector_capacity": 900.0,
    "perf/bottleneck": "learner(train 63%)", "rollout/ep_rew_mean": -150.0, "train/critic_loss": 2.0,
    "time/elapsed_s": 1.0,
}  # fmt: skip


def run_of(path: Path, records: list[Record]) -> RunRecords:
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_run(path)


@pytest.mark.promise("metric-names")
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


def test_a_run_with_both_names_is_read_as_the_same_run(tmp_path: Path) -> None:
    rows = [OURS | {"env_steps": 100.0 * k, "wall_s": float(k)} for k in range(1, 11)]
    plain, both = run_of(tmp_path / "plain", rows), run_of(tmp_path / "both", [with_unilab_keys(row) for row in rows])
    assert both.vocabulary.name == plain.vocabulary.name == "offpolicy"
    assert (both.notes, both.unlike) == ((), frozenset())
    for key, column in plain.columns.items():
        np.testing.assert_array_equal(both.columns[key], column, err_msg=key)
