"""TensorBoard events without torch and without tensorflow: scalars over env steps, charts, options, texts.

Events are written by the calling thread, one write per record: `SafeSinks` catches the error of a full disk, which a
writer thread would only print.
"""

# pyright: reportAttributeAccessIssue=false
# protobuf makes its classes when it is imported, where a type checker cannot see them

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Container, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from offpolicy import fault
from offpolicy.config.parsing import flatten, is_within, plain
from offpolicy.config.schema import RunConfig, unread_keys
from offpolicy.errors import ConfigError
from offpolicy.files import AppendFile
from offpolicy.logger.drawing import AccountPictures
from offpolicy.logger.metrics import CHARTS, METRICS, ONCE_USED, WITH_RANKS, listed
from offpolicy.logger.provenance import Provenance, utf8
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import NewEvaluations, Sink, Summary
from offpolicy.logger.summary import RunStatus
from offpolicy.machine import cpu_model, versions
from offpolicy.timing.clock import unix_s

PATIENCE_S = 2.0  # at the end of a run, for a picture that is being drawn
PICTURE = "timing/account"  # in the group of the phases, so that the page still opens on evaluations
AXIS = ("env_steps", "iteration", "wall_s")
SHOWN = frozenset(key for charts in CHARTS.values() for keys in charts.values() for key in keys)
# Options that TensorBoard puts at the head of the table of hyper-parameters: as many as it shows before the results.
FIRST = ("algo.name", "env.id", "runner.name", "seed", "total_timesteps")
# Options that change neither what a run learns nor how fast.
LEFT_OUT = ("run_dir", "resume", "log", "checkpoint", "timing", "env.measure")
# Scalars at the end of a run, for the table, and their names there. They have separate keys: as points more of a
# curve, values of the whole run would stand among those of windows.
FINAL_METRICS = {
    "final/mean_reward": "final return",
    "final/elapsed_s": "time to it, s",
    "final/steps_per_sec": "env steps/s",
    "final/learner_train_pct": "train, % of the wall",
}


class TensorBoardSink(Sink):
    """Writes one event file. After a resume, readers drop the points of earlier files beyond `resume_step`."""

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],  # Any: nested configuration values
        header: RunHeader,
        resume_step: int | None,
        *,
        is_full: bool = False,
        provenance: Provenance | None = None,
    ) -> None:
        """`is_full`: write every key of the records, not only those of the charts; `provenance` None: look it up."""
        self._started_s = header.started_unix_s
        self._wall_s = 0.0
        self._evaluations = NewEvaluations(header.last_eval_step)
        self._is_full, self._has_ranks = is_full, header.world_size > 1
        self._seen: set[str] = set()  # keys that have been written
        self._pictures: AccountPictures | None = AccountPictures()  # None: they have failed
        self._file = AppendFile(_event_path(run_dir, int(header.started_unix_s)))
        self._pending = BytesIO()
        self._writer = RecordWriter(self._pending)
        self._event(file_version="brain.Event:2")
        if resume_step is not None:
            # Readers drop what earlier files hold from this step on.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._event(resume_step + 1, session_log=start)
        self._values(0, *_hparams_values(used_options(config), header.started_unix_s))
        step = resume_step or 0
        self.text("configuration", f"```yaml\n{yaml.safe_dump(plain(dict(config)), sort_keys=False)}```", step)
        self.text("run", _origin(run_dir, provenance or Provenance.of_this_process(unix_s())), step)

    def write(self, record: Record) -> None:
        """Writes scalars at the record's env steps; those of a new evaluation at the step of its policy."""
        self._wall_s = _number(record.get("wall_s"))
        if self._pictures is not None:
            self._pictures.add(record)
        rest, evaluation = self._evaluations.take(record)
        step = int(_number(record.get("env_steps")))
        num_seen = len(self._seen)
        self._scalars(step, self._selected(rest))
        if evaluation:
            self._scalars(int(_number(evaluation["eval/env_steps"])), self._selected(evaluation))
        self._picture(step, is_wanted=bool(evaluation))
        if len(self._seen) > num_seen:  # a reader takes the newest layout
            self._values(step, _layout_value(self._seen))
        self._flush()

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Writes `content` (Markdown) for the text dashboard."""
        value = summary_pb2.Summary.Value(tag=f"{tag}/text_summary", tensor=_string_tensor(content))
        value.metadata.plugin_data.plugin_name = "text"
        self._values(env_steps, value)
        self._flush()

    def finish(self, summary: Summary) -> None:
        """Writes the final values of the hparams metrics, and the status of the session."""
        self._wall_s = summary["wall_s"]
        train_pct, learner = None, summary["timing"]["learner"]
        if learner is not None:
            steady_s = learner["wall_s"] - learner["phases_s"].get("warmup", 0.0)
            train_pct = 100.0 * learner["phases_s"]["train"] / steady_s if steady_s > 0 else None
        values = (summary["eval"]["mean_reward"], self._wall_s, summary["rates"]["steps_per_sec"], train_pct)
        final = zip(FINAL_METRICS, values, strict=True)
        self._scalars(summary["env_steps"], {key: value for key, value in final if value is not None})
        status = api_pb2.STATUS_SUCCESS if summary["status"] == RunStatus.COMPLETED else api_pb2.STATUS_FAILURE
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=self._started_s + self._wall_s)
        self._values(summary["env_steps"], _hparams_value(hparams_metadata.SESSION_END_INFO_TAG, session_end_info=end))
        self._flush()
        self._picture(summary["env_steps"], is_wanted=True, patience_s=PATIENCE_S)
        self._flush()

    def close(self) -> None:
        """Closes the event file, in which nothing is pending."""
        self._file.close()

    def _selected(self, record: Record) -> dict[str, float]:
        """Returns the numbers of a record to write: those of the charts, or all of them with `log.tensorboard=full`."""
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
        return {key: value for key, value in numbers.items() if key not in AXIS and self._is_shown(key, value)}

    def _is_shown(self, key: str, value: float) -> bool:
        if self._is_full or key not in METRICS:  # a key of one rank, or UniLab's name of another key
            return True
        is_used = value != 0.0 or key in self._seen or key not in ONCE_USED
        return key in SHOWN and is_used and (self._has_ranks or key not in WITH_RANKS)

    def _flush(self) -> None:
        """Appends what is pending, whole or not at all: readers stop at a torn event."""
        piece = self._pending.getvalue()
        self._pending.seek(0)
        self._pending.truncate()
        self._file.write(piece)

    def _scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes numbers; the first of a key with its description, which readers keep."""
        values = [summary_pb2.Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        for value in values:
            if value.tag not in self._seen:
                metric = METRICS.get(listed(value.tag))  # None: a name of another trainer
                if metric is not None:
                    over = f"Unit: {metric.unit}; over: {metric.window}; of: {metric.reduction}."
                    value.metadata.summary_description = f"{metric.help} {over}"
                # TensorBoard's fast loader drops a description without these two.
                value.metadata.data_class = summary_pb2.DATA_CLASS_SCALAR
                value.metadata.plugin_data.plugin_name = scalar_metadata.PLUGIN_NAME
        self._seen.update(numbers)
        self._values(step, *values)

    def _picture(self, step: int, *, is_wanted: bool, patience_s: float = 0.0) -> None:
        """Writes a picture of the account that has become ready, after beginning one if it is wanted and due.

        After a failed one it writes a text, and no more pictures.
        """
        if self._pictures is None:
            return
        try:
            picture = self._pictures.take(self._wall_s if is_wanted else None, patience_s)
        except Exception as error:  # of matplotlib, or of another version of it: the scalars do not depend on it
            self._pictures = None
            self.text(PICTURE, f"no pictures from here on: {type(error).__name__}: {error}", step)
            return
        if picture is not None:
            env_steps, png = picture
            width, height = struct.unpack_from(">II", png, 16)  # of the PNG's header
            image = summary_pb2.Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)
            self._values(env_steps, summary_pb2.Summary.Value(tag=PICTURE, image=image))

    def _values(self, step: int, *values: summary_pb2.Summary.Value) -> None:
        self._event(step, summary=summary_pb2.Summary(value=values))

    def _event(self, step: int = 0, **content: Any) -> None:  # Any: the one-of of the event's kinds
        event = event_pb2.Event(wall_time=self._started_s + self._wall_s, step=step, **content)
        fault.hit("tensorboard.write")
        self._writer.write(event.SerializeToString())


def _number(value: float | str | None) -> float:
    return value if isinstance(value, int | float) else 0.0


def used_options(config: Mapping[str, Any]) -> dict[str, Any]:  # Any: values of the configuration
    """Returns the options by dotted key; without those that nothing reads and those that are null."""
    options = {key: value for key, value in flatten(config).items() if value is not None}
    try:
        unread = tuple(unread_keys(RunConfig.from_mapping(config)))
    except ConfigError:  # of another trainer
        unread = ()
    return {key: value for key, value in options.items() if not is_within(key, (*LEFT_OUT, *unread))}


def _origin(run_dir: Path, start: Provenance) -> str:
    """Returns where the run came from, as a table: the directory, the command, the commit, the versions."""
    found = {"directory": str(run_dir), "command": start.command, "git commit": start.git_commit or "none"}
    found |= {package: version or "not installed" for package, version in versions().items()} | {"cpu": cpu_model()}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in found.items())])


def _event_path(run_dir: Path, started_s: int) -> Path:
    """Returns a name that sorts after those of earlier files: readers take files in order of name and never go back."""
    names = " ".join(path.name for path in run_dir.glob("events.out.tfevents.*"))
    stamp = max(started_s, *(int(earlier) + 1 for earlier in re.findall(r"tfevents\.(\d+)", names)), 0)
    return run_dir / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.0"


def _string_tensor(content: str | bytes) -> tensor_pb2.TensorProto:
    raw = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    return tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[raw], tensor_shape=shape)


def _layout_value(seen: Container[str]) -> summary_pb2.Summary.Value:
    """Returns the custom-scalars dashboard: charts with a line per key and run, each key as a regular expression."""
    layout = layout_pb2.Layout()
    for category, titles in CHARTS.items():
        charts = {title: [f"^{re.escape(key)}$" for key in keys if key in seen] for title, keys in titles.items()}
        chart_pbs = [
            layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))
            for title, tags in charts.items()
            if tags
        ]
        if chart_pbs:
            layout.category.append(layout_pb2.Category(title=category, chart=chart_pbs))
    return summary_pb2.Summary.Value(
        tag=layout_metadata.CONFIG_SUMMARY_TAG,
        tensor=_string_tensor(layout.SerializeToString()),
        metadata=layout_metadata.create_summary_metadata(),
    )


def _hparams_values(options: Mapping[str, Any], started_s: float) -> Iterator[summary_pb2.Summary.Value]:
    """Yields the experiment and the start of its session in this same run, so that no extra run directory appears."""
    infos = []
    start = plugin_data_pb2.SessionStartInfo(start_time_secs=started_s)
    for key, value in options.items():
        if isinstance(value, bool):
            start.hparams[key].bool_value, data_type = value, api_pb2.DATA_TYPE_BOOL
        elif isinstance(value, int | float):
            start.hparams[key].number_value, data_type = value, api_pb2.DATA_TYPE_FLOAT64
        else:
            start.hparams[key].string_value, data_type = utf8(str(value)), api_pb2.DATA_TYPE_STRING
        infos.append(api_pb2.HParamInfo(name=key, type=data_type, differs=key in FIRST))
    named = ((api_pb2.MetricName(tag=key), name) for key, name in FINAL_METRICS.items())
    metrics = [api_pb2.MetricInfo(name=tag, display_name=name) for tag, name in named]
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=metrics)
    yield _hparams_value(hparams_metadata.EXPERIMENT_TAG, experiment=experiment)
    yield _hparams_value(hparams_metadata.SESSION_START_INFO_TAG, session_start_info=start)


def _hparams_value(tag: str, **data: Any) -> summary_pb2.Summary.Value:  # Any: the one-of of the plug-in's data
    metadata = hparams_metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**data))
    return summary_pb2.Summary.Value(tag=tag, tensor=hparams_metadata.NULL_TENSOR, metadata=metadata)
