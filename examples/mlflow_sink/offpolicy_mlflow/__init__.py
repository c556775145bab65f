"""A sink that writes runs to MLflow: numbers as metrics over env steps, the configuration as parameters."""

from __future__ import annotations

import time
from dataclasses import dataclass

from offpolicy.config.extensions import SinkInfo
from offpolicy.config.parsing import option

RUN_ID = "mlflow_run_id"  # file of the run directory: a resume goes on in the same run of MLflow
MOST_METRICS = 1000  # of one request, MLflow's own limit
STATUSES = {"completed": "FINISHED", "failed": "FAILED"}  # else KILLED: the run can be resumed


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowOptions:
    """`sinks.mlflow.uri` and `sinks.mlflow.experiment`."""

    uri: str = option("sqlite:///mlflow.db", "tracking store: a server's address or a database")
    experiment: str = option("offpolicy", "experiment that holds the runs")


class MlflowSink:
    """One run of MLflow for a run directory; a resume goes on in it."""

    def __init__(self, context):
        from mlflow.tracking import MlflowClient  # takes seconds: only where it is used

        self._client, name = MlflowClient(context.options.uri), context.options.experiment
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        kept = context.run_dir / RUN_ID
        if context.resume_step is not None and kept.exists():
            self._id = kept.read_text()
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(experiment, run_name=context.run_dir.name).info.run_id
        for key, value in _flat(context.config).items():
            self._client.log_param(self._id, key, value)
        kept.write_text(self._id)

    def write(self, record):
        from mlflow.entities import Metric

        now_ms, step = int(time.time() * 1000), int(record["env_steps"])
        numbers = [(key, value) for key, value in record.items() if type(value) in (int, float)]
        metrics = [Metric(key, float(value), now_ms, step) for key, value in numbers]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics[start : start + MOST_METRICS])

    def episode(self, episode): ...

    def text(self, tag, content, env_steps): ...

    def finish(self, summary):
        self._client.set_tag(self._id, "status", summary["status"])
        self._client.set_terminated(self._id, STATUSES.get(summary["status"], "KILLED"))

    def close(self): ...


def _flat(config, prefix=""):
    flat = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


MLFLOW = SinkInfo("offpolicy_mlflow:MlflowSink", MlflowOptions)
