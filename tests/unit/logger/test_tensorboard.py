from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, metadata

from offpolicy.logger.metrics import METRICS, MetricClass
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import SafeSink
from offpolicy.logger.tensorboard import TensorBoardSink
from offpolicy.timing.phases import CoreClass, PackerPhase

CONFIG = {"algo": {"name": "sac", "gamma": 0.99, "hidden_dims": [256, 256]}, "seed": 3, "timing": {"enabled": True}}
SUMMARY = {
    "status": "completed",
    "wall_s": 9.0,
    "env_steps": 2100,
    "eval": {"mean_reward": -140.0},
    "rates": {"steps_per_sec": 150.0},
}


def read(run_dir: Path) -> Any:
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def points(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(run_dir).Scalars(tag)]


def write(run_dir: Path, header: RunHeader, resume_step: int | None, *records: Record) -> None:
    sink = TensorBoardSink(run_dir, CONFIG, header, resume_step)
    for record in records:
        sink.write(record)
    sink.close()


def test_every_number_of_a_record_is_a_scalar_over_env_steps(tmp_path: Path, header: RunHeader, record: Record) -> None:
    write(tmp_path, header, None, record)
    accumulator = read(tmp_path)
    numbers = {key for key, value in record.items() if not isinstance(value, str)} - {
        "env_steps",
        "iteration",
        "wall_s",
    }
    assert set(accumulator.Tags()["scalars"]) == numbers
    (event,) = accumulator.Scalars("timing/learner_train_ms")
    assert (event.step, event.value) == (2000, pytest.approx(6.1))
    assert event.wall_time == pytest.approx(1_000_008.6)


def test_a_record_is_readable_before_the_sink_is_closed(tmp_path: Path, header: RunHeader) -> None:
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    sink.write({"env_steps": 10, "perf/utd": 1.0})
    assert points(tmp_path, "perf/utd") == [(10, 1.0)]
    sink.close()


def test_an_evaluation_is_one_point_at_the_step_of_its_policy(tmp_path: Path, header: RunHeader) -> None:
    evaluation: Record = {"eval/env_steps": 100, "eval/mean_reward": -5.0}
    write(tmp_path, header, None, {"env_steps": 110, **evaluation}, {"env_steps": 120, **evaluation})
    assert points(tmp_path, "eval/mean_reward") == [(100, -5.0)]


def test_a_resume_purges_later_points(tmp_path: Path, header: RunHeader) -> None:
    write(tmp_path, header, None, *({"env_steps": step, "perf/utd": 1.0} for step in (100, 200, 201, 300)))
    write(tmp_path, header, 200, {"env_steps": 250, "perf/utd": 2.0}, {"env_steps": 300, "perf/utd": 2.0})
    assert points(tmp_path, "perf/utd") == [(100, 1.0), (200, 1.0), (250, 2.0), (300, 2.0)]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


def tags_of(chart: Any) -> list[str]:
    return [tag.strip("^$").replace("\\", "") for tag in chart.multiline.tag]


def test_charts_are_grouped_and_name_known_tags(tmp_path: Path, header: RunHeader, record: Record) -> None:
    write(tmp_path, header, None, record)
    accumulator = read(tmp_path)
    (event,) = accumulator.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == [
        "Learner phases",
        "Collector phases",
        "Spread",
        "Cores",
        "Ranks",
        "Prefetch",
        "Rates",
        "Staleness",
        "Learning curves",
    ]
    charts = {category.title: category.chart for category in layout.category}
    assert len(charts["Learner phases"][0].multiline.tag) == 13
    assert len(charts["Collector phases"][0].multiline.tag) == 9
    assert "^timing/learner_train_ms$" in charts["Learner phases"][0].multiline.tag
    assert tags_of(charts["Spread"][0]) == [f"spread/learner_iter_{name}_ms" for name in ("p50", "p95", "p99", "max")]
    assert tags_of(charts["Cores"][0]) == [f"cores/{row}_ms_per_s" for row in CoreClass]
    assert [tags_of(chart) for chart in charts["Ranks"]] == [
        ["rank/rank_barrier_min_ms", "rank/rank_barrier_mean_ms", "rank/rank_barrier_max_ms"],
        ["rank/late_ms"],
        ["rank/straggler"],
    ]
    assert tags_of(charts["Prefetch"][0]) == [f"prefetch/{phase}_ms" for phase in PackerPhase]
    assert tags_of(charts["Staleness"][0]) == ["perf/policy_lag", "perf/policy_lag_p95"]
    shown = {tag for chart in charts["Learning curves"] for tag in tags_of(chart)}
    assert shown == {metric.key for metric in METRICS.values() if metric.kind is MetricClass.CURVE}
    assert all(chart.multiline.tag for category in layout.category for chart in category.chart)


def test_hparams_are_in_the_same_run(tmp_path: Path, header: RunHeader) -> None:
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    sink.finish(SUMMARY)
    sink.close()
    contents = read(tmp_path).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["algo.gamma"].number_value == 0.99
    assert start.hparams["algo.hidden_dims"].string_value == "[256, 256]"
    assert start.hparams["timing.enabled"].bool_value is True
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    assert [info.name.tag for info in experiment.metric_infos] == ["eval/mean_reward", "perf/steps_per_sec"]
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_SUCCESS
    assert points(tmp_path, "eval/mean_reward") == [(2100, -140.0)]
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_text_is_in_the_text_dashboard(tmp_path: Path, header: RunHeader) -> None:
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    sink.text("verdict", "**learner**", 1200)
    sink.close()
    (event,) = read(tmp_path).Tensors("verdict/text_summary")
    assert (event.step, event.tensor_proto.string_val) == (1200, [b"**learner**"])


def test_a_full_disk_is_one_warning_and_keeps_what_was_written(tmp_path: Path, header: RunHeader) -> None:
    """The event file may grow by ten bytes more."""
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    warnings: list[str] = []
    safe = SafeSink("tensorboard", sink, warnings.append)
    safe.write({"env_steps": 1, "perf/utd": 1.0})
    (path,) = tmp_path.glob("events.out.tfevents.*")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        safe.write({"env_steps": 2, "perf/utd": 1.0})
        safe.write({"env_steps": 3, "perf/utd": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    safe.close()
    assert (len(warnings), safe.num_dropped) == (1, 2)
    assert warnings[0].startswith("warning: tensorboard is disabled for the rest of the run: OSError: only 10 of")
    assert points(tmp_path, "perf/utd") == [(1, 1.0)]
