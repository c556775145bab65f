"""The readers of both tables, on tables of a few lines; event files as each generation of trainers wrote them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from offpolicy.analysis.records import RunRecords, read_run
from offpolicy.logger.metrics import (
    CHARTS,
    COLLECTOR_ROWS,
    LEARNER_ROWS,
    METRICS,
    PIPELINE_KEY,
    Alias,
    Metric,
    MetricClass,
    collector_key,
    device_key,
    learner_key,
    prefetch_key,
    rank_key,
    read_charts,
    read_metrics,
    read_vocabularies,
    spread_key,
    vocabulary_of,
)
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

GROUP = """
[[group]]
section = "Some"
key = "some/{}_ms"
defaults = { class = "rate", unit = "ms", window = "log interval", reduction = "rank 0" }
[group.metrics]
"""
PHASES = """
[[group]]
section = "Phases"
key = "timing/collector_{}_ms"
defaults = { class = "exclusive", unit = "ms", window = "log interval", reduction = "rank 0", help = "." }
[group.metrics]
""" + "\n".join(f"{phase} = {{ row = '{phase.upper()}' }}" for phase in CollectorPhase)
EACH = """
[[group]]
section = "Each"
key = "each/{phase}_{}"
phases = "collector"
whole = { cycle = "Cycle" }
defaults = { class = "nested", unit = "ms", window = "log interval", reduction = "rank 0" }
[group.metrics]
min = { help = "{row}: least." }
max = { help = "{row}: most." }
"""


def groups(table: str) -> list[dict[str, Any]]:
    return list(tomllib.loads(table)["group"])


def test_a_metric_has_the_defaults_of_its_group() -> None:
    table = GROUP + 'busy = { unit = "s", row = "Busy", help = """\nA text\nof two lines.""" }'
    assert read_metrics(groups(table)) == {
        "some/busy_ms": Metric(
            "some/busy_ms", "Some", MetricClass.RATE, "s", "log interval", "rank 0", "A text of two lines.", "Busy"
        )
    }


def test_a_group_over_phases_repeats_its_metrics_for_each_and_for_the_whole() -> None:
    metrics = read_metrics(groups(PHASES + EACH))
    each = [(key, metric.help) for key, metric in metrics.items() if key.startswith("each/")]
    assert each[:2] == [
        ("each/weight_apply_min", "WEIGHT_APPLY: least."),
        ("each/weight_apply_max", "WEIGHT_APPLY: most."),
    ]
    assert each[-2:] == [("each/cycle_min", "Cycle: least."), ("each/cycle_max", "Cycle: most.")]
    assert len(each) == 2 * (len(CollectorPhase) + 1)


def test_a_key_listed_twice_is_refused() -> None:
    line = 'busy = { help = "A text." }'
    with pytest.raises(ValueError, match="some/busy_ms is listed twice"):
        read_metrics(groups(GROUP + line + GROUP + line))


def test_every_phase_has_a_row() -> None:
    assert list(LEARNER_ROWS) == list(LearnerPhase)
    assert list(COLLECTOR_ROWS) == list(CollectorPhase)
    assert all([*LEARNER_ROWS.values(), *COLLECTOR_ROWS.values()])


def test_the_keys_of_phases_are_in_the_table() -> None:
    keys = {learner_key("train"), collector_key("env_step"), rank_key("train", "min"), prefetch_key("pack")}
    assert keys | {device_key("h2d"), spread_key("learner", "iter", "p50")} <= METRICS.keys()


def test_every_chart_shows_something_and_every_curve_is_in_one() -> None:
    assert all(keys for charts in CHARTS.values() for keys in charts.values())
    shown = {key for name in ("Overview", "Learning") for keys in CHARTS[name].values() for key in keys}
    assert shown >= {key for key, metric in METRICS.items() if metric.kind is MetricClass.CURVE}


def test_a_title_with_a_place_in_it_is_one_chart_per_key() -> None:
    metrics = read_metrics(groups(PHASES))
    charts = read_charts({"{row}": ["*_env_step_ms", "*_snapshot_ms"], "{key}": ["*_other_ms"], "all": ["*"]}, metrics)
    assert {title: keys for title, keys in charts.items() if title != "all"} == {
        "ENV_STEP": ["timing/collector_env_step_ms"],
        "SNAPSHOT": ["timing/collector_snapshot_ms"],
        "timing/collector_other_ms": ["timing/collector_other_ms"],
    }
    assert len(charts["all"]) == len(CollectorPhase)


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


def value(run: RunRecords, key: str) -> float:
    return float(np.nanmean(run.columns[key]))


@pytest.mark.parametrize(
    ("scalars", "name"),
    [(E0, "UniLab E0"), (E1, "UniLab E1"), (E2, "UniLab E2"), (E3, "UniLab E3"), (E4, "UniLab E4"), (E5, "UniLab E5")],
)
def test_a_generation_is_recognised_by_its_keys(tmp_path: Path, scalars: dict[str, float], name: str) -> None:
    assert recorded(tmp_path, scalars).vocabulary.name.startswith(name)


@pytest.mark.parametrize("scalars", [E0, E1])
def test_the_mixed_wait_is_no_single_phase_of_ours(tmp_path: Path, scalars: dict[str, float]) -> None:
    run = recorded(tmp_path, scalars)
    assert value(run, "timing/learner_wait_ms") == 7.0
    assert "timing/learner_collector_wait_ms" not in run.columns
    assert any("timing/learner_wait_ms" in note and "handshake" in note for note in run.notes)


def test_iter_ms_of_e0_is_the_pipeline_and_of_e1_the_wall(tmp_path: Path) -> None:
    first, second = tmp_path / "e0", tmp_path / "e1"
    first.mkdir()
    second.mkdir()
    run = recorded(first, E0)
    assert value(run, PIPELINE_KEY) == 8.0
    assert value(run, "perf/learner_capacity") == 900.0
    assert not {"perf/iter_ms", "perf/steps_per_sec"} & run.columns.keys()
    assert value(recorded(second, E1), "perf/iter_ms") == 15.0


def test_env_steps_come_from_the_axis_that_was_recorded(tmp_path: Path) -> None:
    assert recorded(tmp_path, E0).last_env_steps == 512.0


def test_the_return_is_the_mean_of_a_hundred_episodes(tmp_path: Path) -> None:
    run = recorded(tmp_path, E0)
    assert value(run, "rollout/ep_rew_mean") == 2.0
    assert not any(note.startswith("reward/mean ") for note in run.notes), "it is not read"


@pytest.mark.parametrize(
    ("scalars", "key", "expected"),
    [
        (E0, "timing/learner_h2d_ms", 1.0),
        (E0, "timing/collector_waits_ms", 3.0),
        (E2, "timing/learner_collector_wait_ms", 6.0),
        (E2, "timing/learner_weight_publish_ms", 2.0),
        (E2, "timing/learner_param_sync_ms", 0.4),
        (E2, "perf/collector_capacity", 700.0),
        (E3, "timing/learner_sync_coordination_ms", 0.2),
        (E3, "timing/collector_action_select_ms", 0.6),
        (E3, "timing/collector_learner_wait_ms", 3.0),
        (E4, "timing/learner_h2d_ms", 1.0),
        (E4, "timing/collector_learner_wait_ms", 3.0),
        (E4, "timing/learner_inference_ms", 0.7),
        (E5, "timing/learner_weight_publish_ms", 2.0),
        (E5, "timing/collector_env_step_ms", 4.0),
        (E5, "rollout/ep_rew_mean", 2.0),
    ],
)
def test_a_key_is_read_under_our_name(tmp_path: Path, scalars: dict[str, float], key: str, expected: float) -> None:
    assert value(recorded(tmp_path, scalars), key) == pytest.approx(expected)


def test_seconds_become_milliseconds(tmp_path: Path) -> None:
    run = recorded(tmp_path, E5)
    assert value(run, "perf/iter_ms") == pytest.approx(15.0)
    assert value(run, "timing/learner_train_ms") == pytest.approx(5.0)


def test_a_key_with_another_meaning_has_a_note(tmp_path: Path) -> None:
    notes = recorded(tmp_path, E2).notes
    assert any("timing/learner_collector_wait_ms" in note and "#642" in note for note in notes)
    assert any("perf/iter_ms" in note and "logging" in note for note in notes)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("timing/learner_checkpoint_ms", "timing/collector_learner_wait_ms"), "offpolicy 0.1"),
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


def test_the_axis_of_rsl_rl_is_iterations() -> None:
    assert not vocabulary_of(["Perf/total_fps"]).axis_is_env_steps
    assert vocabulary_of(E5).axis_is_env_steps


def test_a_vocabulary_has_the_aliases_of_the_one_it_extends_without_those_it_drops() -> None:
    first = {"name": "first", "marks": [["a", "b"]], "aliases": {"a": "x", "b": "y", "c": "z"}}
    second = {"name": "second", "marks": [["c"]], "extends": "first", "drops": ["a"]}
    second["aliases"] = {"b": {"key": "y", "scale": 2.0, "note": "in halves"}}
    newest, oldest = read_vocabularies([second, first])
    assert (newest.name, newest.marks) == ("second", (("c",),))
    assert newest.aliases == {"b": Alias("y", "in halves", 2.0), "c": Alias("z")}
    assert list(oldest.aliases) == ["a", "b", "c"]
