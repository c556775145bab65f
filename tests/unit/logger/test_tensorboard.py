"""Event files of TensorBoard: scalars, charts, texts, the table of hyper-parameters and the picture of the account."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, metadata

from offpolicy.config.overrides import load_config
from offpolicy.logger.drawing import EVERY_S, AccountPictures
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import SafeSinks
from offpolicy.logger.tensorboard import TensorBoardSink, used_options
from offpolicy.timing.phases import LearnerPhase

CONFIG = {"algo": {"name": "sac", "gamma": 0.99, "hidden_dims": [256, 256], "auto_alpha": True}, "seed": 3}
SUMMARY = {
    "status": "completed", "wall_s": 9.0, "env_steps": 2100, "eval": {"mean_reward": -140.0},
    "rates": {"steps_per_sec": 150.0},
    "timing": {"learner": {"wall_s": 10.0, "phases_s": {"train": 6.0, "warmup": 2.0}}},
}  # fmt: skip


def read(run_dir: Path) -> Any:
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def points(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(run_dir).Scalars(tag)]


def write(run_dir: Path, header: RunHeader, resume_step: int | None, *records: Record, is_full: bool = False) -> None:
    sink = TensorBoardSink(run_dir, CONFIG, header, resume_step, is_full=is_full)
    for record in records:
        sink.write(record)
    sink.close()


def test_full_writes_every_number_of_a_record_over_env_steps(tmp_path: Path, header: RunHeader, record: Record) -> None:
    write(tmp_path, header, None, record, is_full=True)
    accumulator = read(tmp_path)
    numbers = {key for key, value in record.items() if not isinstance(value, str)}
    assert set(accumulator.Tags()["scalars"]) == numbers - {"env_steps", "iteration", "wall_s"}
    (event,) = accumulator.Scalars("timing/learner_train_ms")
    assert (event.step, event.value) == (2000, pytest.approx(6.1))
    assert event.wall_time == pytest.approx(1_000_008.6)


def test_a_record_is_readable_before_the_sink_is_closed(tmp_path: Path, header: RunHeader) -> None:
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    sink.write({"env_steps": 10, "perf/utd": 1.0})
    assert points(tmp_path, "perf/utd") == [(10, 1.0)]
    sink.close()


def test_an_evaluation_is_one_point_at_the_step_of_its_policy(tmp_path: Path, header: RunHeader) -> None:
    """Nor is one of an earlier start another one."""
    evaluation: Record = {"eval/env_steps": 100, "eval/mean_reward": -5.0}
    write(tmp_path, header, None, {"env_steps": 110, **evaluation}, {"env_steps": 120, **evaluation})
    write(tmp_path, replace(header, last_eval_step=100), 120, {"env_steps": 130, **evaluation})
    assert points(tmp_path, "eval/mean_reward") == [(100, -5.0)]


def test_a_resume_purges_later_points(tmp_path: Path, header: RunHeader) -> None:
    write(tmp_path, header, None, *({"env_steps": step, "perf/utd": 1.0} for step in (100, 200, 201, 300)))
    write(tmp_path, header, 200, {"env_steps": 250, "perf/utd": 2.0}, {"env_steps": 300, "perf/utd": 2.0})
    assert points(tmp_path, "perf/utd") == [(100, 1.0), (200, 1.0), (250, 2.0), (300, 2.0)]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


def charts_of(run_dir: Path) -> dict[str, list[list[str]]]:
    """The keys of each chart of the newest layout, by category."""
    event = read(run_dir).Tensors("custom_scalars__config__")[-1]
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    return {
        category.title: [[tag.strip("^$").replace("\\", "") for tag in chart.multiline.tag] for chart in category.chart]
        for category in layout.category
    }


def test_a_chart_has_one_key_and_appears_with_its_first_value(
    tmp_path: Path, header: RunHeader, record: Record
) -> None:
    key, title = "timing/learner_h2d_ms", "Learner phases, ms per iteration"
    write(tmp_path, header, None, record)
    first = charts_of(tmp_path)
    assert list(first)[:3] == ["Overview", "Learning", "Rates"]
    assert [key] not in first[title]
    write(tmp_path, header, None, record, record | {"env_steps": 2100, key: 1.0})
    charts = charts_of(tmp_path)
    assert [chart for chart in charts[title] if chart not in first[title]] == [[key]]
    assert {len(chart) for category in charts.values() for chart in category} == {1}


@pytest.mark.promise("metric-table")
def test_a_scalar_has_the_meaning_and_unit_of_the_table(tmp_path: Path, header: RunHeader) -> None:
    write(tmp_path, header, None, {"env_steps": 1, "perf/utd": 1.0}, {"env_steps": 2, "perf/utd": 1.0})
    metadata_of = read(tmp_path).SummaryMetadata("perf/utd")
    assert metadata_of.summary_description.startswith("Updates per env step, achieved after warm-up.")
    assert "Unit: updates/env step;" in metadata_of.summary_description
    assert metadata_of.plugin_data.plugin_name == "scalars"  # or the fast loader drops the description
    assert points(tmp_path, "perf/utd") == [(1, 1.0), (2, 1.0)]


def test_texts_are_in_the_text_dashboard(tmp_path: Path, header: RunHeader) -> None:
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    sink.text("verdict", "**learner**", 1200)
    sink.close()
    accumulator, texts = read(tmp_path), {}
    for tag in ("configuration", "run", "verdict"):
        (event,) = accumulator.Tensors(f"{tag}/text_summary")
        texts[tag] = event.step, event.tensor_proto.string_val[0].decode()
    assert texts["verdict"] == (1200, "**learner**")
    assert "  gamma: 0.99\n" in texts["configuration"][1]
    assert "| command | `" in texts["run"][1]
    assert "| git commit | `" in texts["run"][1]


def test_hparams_are_in_the_same_run(tmp_path: Path, header: RunHeader) -> None:
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    sink.finish(SUMMARY)
    sink.close()
    contents = read(tmp_path).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["algo.gamma"].number_value == 0.99
    assert start.hparams["algo.hidden_dims"].string_value == "[256, 256]"
    assert start.hparams["algo.auto_alpha"].bool_value is True
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    tags = ["final/mean_reward", "final/elapsed_s", "final/steps_per_sec", "final/learner_train_pct"]
    assert [info.name.tag for info in experiment.metric_infos] == tags
    assert [info.name for info in experiment.hparam_infos if info.differs] == ["algo.name", "seed"]
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_SUCCESS
    assert end.end_time_secs == header.started_unix_s + 9.0
    assert [points(tmp_path, tag) for tag in tags] == [[(2100, value)] for value in (-140.0, 9.0, 150.0, 75.0)]
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_an_option_in_other_bytes_and_a_failure_are_shown_in_the_table(tmp_path: Path, header: RunHeader) -> None:
    """Bytes that are no UTF-8 ended the whole sink before the first record."""
    sink = TensorBoardSink(tmp_path, {"init_from": os.fsdecode(b"caf\xe9")}, header, None)
    sink.finish({**SUMMARY, "status": "failed"})
    sink.close()
    contents = read(tmp_path).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["init_from"].string_value == r"caf\udce9"
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_FAILURE


@pytest.mark.promise("full-disk")
def test_a_full_disk_is_one_warning_and_keeps_what_was_written(tmp_path: Path, header: RunHeader) -> None:
    """The event file may grow by ten bytes more."""
    sink = TensorBoardSink(tmp_path, CONFIG, header, None)
    warnings: list[str] = []
    safe = SafeSinks(warnings.append, {"tensorboard": lambda: sink})
    safe.each(lambda sink: sink.write({"env_steps": 1, "perf/utd": 1.0}))
    (path,) = tmp_path.glob("events.out.tfevents.*")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        safe.each(lambda sink: sink.write({"env_steps": 2, "perf/utd": 1.0}))
        safe.each(lambda sink: sink.write({"env_steps": 3, "perf/utd": 1.0}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    safe.close()
    (warning,) = warnings
    assert warning.startswith("warning: tensorboard is disabled for the rest of the run: OSError: only 10 of")
    assert points(tmp_path, "perf/utd") == [(1, 1.0)]


def test_a_plain_run_has_few_charts_and_no_prefix_before_eval(
    tmp_path: Path, header: RunHeader, record: Record
) -> None:
    write(tmp_path, header, None, record)
    keys = read(tmp_path).Tags()["scalars"]
    assert 40 < len(keys) <= 80
    prefixes = sorted({key.split("/")[0] for key in keys})
    assert prefixes == ["eval", "perf", "rollout", "share", "spread", "timing", "train"]


def test_keys_of_ranks_need_several_ranks(tmp_path: Path, header: RunHeader, record: Record) -> None:
    for num_ranks in (1, 2):
        run = tmp_path / str(num_ranks)
        run.mkdir()
        write(run, replace(header, world_size=num_ranks), None, dict.fromkeys(record, 1.0))
        for key in ("rank/rank_barrier_max_ms", "timing/learner_rank_barrier_ms", "share/learner_param_sync_pct"):
            assert (key in read(run).Tags()["scalars"]) is (num_ranks > 1)


def test_a_phase_is_written_from_its_first_time_on(tmp_path: Path, header: RunHeader) -> None:
    key = "timing/learner_h2d_ms"
    write(tmp_path, header, None, *({"env_steps": step, key: value} for step, value in enumerate((0.0, 2.0, 0.0))))
    assert points(tmp_path, key) == [(1, 2.0), (2, 0.0)]


def test_options_are_those_of_the_algorithm() -> None:
    for algo, used, unused in (
        ("sac", "algo.alpha_lr", "algo.exploration_noise"),
        ("td3", "algo.exploration_noise", "algo.alpha_lr"),
        ("appo", "algo.clip", "collect.band"),
    ):
        options = used_options(load_config([f"algo={algo}"]).to_mapping())
        assert options["algo.name"] == algo
        assert used in options
        assert unused not in options
        assert not [key for key in options if key.startswith(("log.", "timing.", "run_dir"))]
        assert None not in options.values()


def test_a_picture_of_the_account_is_drawn_when_it_is_due() -> None:
    pytest.importorskip("matplotlib")
    made = AccountPictures()
    for env_steps, train in ((100, 80.0), (200, 60.0)):
        shares: Record = dict.fromkeys((f"share/learner_{phase}_pct" for phase in LearnerPhase), 0.0)
        shares |= {"share/learner_train_pct": train, "share/learner_other_pct": 100.0 - train}
        made.add({"env_steps": env_steps, **shares})
    assert made.take(EVERY_S - 1.0, timeout_s=60.0) is None
    first = made.take(EVERY_S, timeout_s=60.0)
    assert first is not None
    assert (first[0], first[1][:8]) == (200, b"\x89PNG\r\n\x1a\n")
    assert made.take(2 * EVERY_S - 1.0, timeout_s=60.0) is None
    assert made.take(2 * EVERY_S, timeout_s=60.0) is not None
