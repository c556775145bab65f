"""The example packages, installed as pip installs them, trained with, gone on with and missed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, Traces
from tests.otlp_receiver import Receiver

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = ("tqc", "fourier", "sqlite_sink", "mlflow_sink", "prometheus_sink", "otlp_sink")
SMALL = ("algo.learning_starts=200", "eval.episodes=1", "threads.learner=1", "threads.collector=1", "run_dir=run")
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, installed from a copy of their sources."""
    home = tmp_path_factory.mktemp("examples")
    for name in EXAMPLES:
        shutil.copytree(REPOSITORY / "examples" / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--target", str(home / "site"), *(str(home / name) for name in EXAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "site"


@pytest.fixture
def cli(site: Path, tmp_path: Path) -> Cli:
    """The command line beside the examples; `without=True`: without them."""

    def run(*words: str, without: bool = False) -> subprocess.CompletedProcess[str]:
        traces = Traces()
        path = str(REPOSITORY) if without else f"{REPOSITORY}:{site}"
        environ = {**os.environ, **traces.environ, "PYTHONPATH": path}
        command = [sys.executable, "-m", "offpolicy", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        traces.assert_none()
        return done

    return run


def test_an_algorithm_a_network_an_environment_and_a_sink_train_together(cli: Cli, tmp_path: Path) -> None:
    words = ("algo=tqc", "env=light_pendulum", "algo.network.name=fourier", "log.sinks=[sqlite]", *SMALL)
    done = cli("train", *words, "total_timesteps=300", "algo.num_quantiles=9")
    assert done.returncode == 0, done.stdout + done.stderr
    config = (tmp_path / "run/config.yaml").read_text()
    assert yaml.safe_load(config)["env"]["kwargs"] == {"g": 1.0}
    assert yaml.safe_load(config)["algo"]["num_quantiles"] == 9
    for label in ("algos tqc of offpolicy-tqc 0.1.0", "networks fourier of offpolicy-fourier 0.1.0"):
        assert f"plug-in: {label}" in done.stdout
        assert f"# plug-in: {label}" in config
    saved = max((tmp_path / "run/checkpoints").glob("step-*"))  # a slow machine saves one by time too
    assert (
        "sinks sqlite of offpolicy-sqlite 0.1.0"
        in json.loads((saved / "state.json").read_text())["fingerprint"]["plug-ins"]
    )
    last = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][-1]
    assert last["train/n_updates"] == 100
    with sqlite3.connect(tmp_path / "runs.sqlite") as database:
        rows = database.execute("SELECT value FROM records WHERE key = 'train/n_updates'").fetchall()
        ((summary,),) = database.execute("SELECT summary FROM runs").fetchall()
    database.close()
    assert rows[-1] == (100,)
    assert json.loads(summary)["status"] == "completed"

    resumed = cli("resume", "run", "total_timesteps=320")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "warning: plug-ins" not in resumed.stdout
    evaluated = cli("eval", "run", "--episodes", "1")
    assert evaluated.returncode == 0, evaluated.stderr

    gone = cli("eval", "run", "--episodes", "1", without=True)
    assert gone.returncode == 2
    assert "used the plug-in algos tqc of offpolicy-tqc 0.1.0; is it installed?" in gone.stderr


def test_options_of_plugins_are_in_the_help_and_are_checked(cli: Cli) -> None:
    shown = cli("train", "algo=tqc", "log.sinks=[sqlite]", "algo.network.name=fourier", "--help").stdout
    for line in ("algo.num_quantiles=25", "sinks.sqlite.path=runs.sqlite", "algo.network.num_features=64"):
        assert line in shown
    refused = cli("train", "algo=tqc", "algo.num_quantiles=1", "algo.dropped=8", "algo.dropd=3")
    assert refused.returncode == 2
    assert "algo.num_quantiles: got 1, allowed a whole number in [8, 512]" in refused.stderr
    assert "algo.dropped: got 8, allowed a whole number in [0, 7]" in refused.stderr, "a target of no quantile"
    assert "algo.dropd: unknown key; did you mean algo.dropped?" in refused.stderr


def test_a_sink_that_fails_ends_nothing(cli: Cli) -> None:
    done = cli("train", "log.sinks=[sqlite]", "sinks.sqlite.path=/no/such/dir/x", *SMALL, "total_timesteps=230")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "warning: offpolicy-sqlite 0.1.0 (entry point offpolicy.sinks: sqlite = offpolicy_sqlite:SQLITE)" in done.stdout
    )
    assert "is disabled for the rest of the run: OperationalError: unable to open database file" in done.stdout


SERVED = """
import pathlib, urllib.request
from offpolicy import Callback

class Watch(Callback):
    def on_record(self, record):
        with urllib.request.urlopen("http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            pathlib.Path("served.txt").write_bytes(answer.read())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_prometheus_and_opentelemetry_get_the_newest_record(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    receiver, port = Receiver(), free_port()
    (tmp_path / "served.py").write_text(SERVED.replace("{port}", str(port)))
    try:
        done = cli(
            "train", "env=pendulum", "log.sinks=[prometheus,otlp]", f"sinks.prometheus.port={port}",
            f"sinks.otlp.endpoint={receiver.address}/v1/metrics", "callbacks=[served:Watch]", "log.ranks=all",
            *("runner=multi_gpu", "runner.world_size=2", "device=cpu", *SMALL, "total_timesteps=400"),
        )  # fmt: skip
        points = receiver.points()
    finally:
        receiver.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "disabled" not in done.stdout + done.stderr
    assert [value for name, _, value, _ in points if name == "offpolicy_env_steps"][-1] == 400.0
    assert {labels["rank"] for name, labels, _, _ in points if name == "offpolicy_rank_each_train_ms"} == {"0", "1"}
    served = (tmp_path / "served.txt").read_text()
    assert re.search(r'^offpolicy_rank_each_train_ms{rank="1"} [0-9.]+$', served, re.MULTILINE)
    assert re.search(r"^offpolicy_env_steps [0-9.]+$", served, re.MULTILINE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own packages
def test_a_run_and_its_resume_are_one_run_of_mlflow(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    if importlib.util.find_spec("mlflow") is None or importlib.util.find_spec("sqlalchemy") is None:
        pytest.skip("needs mlflow")
    from mlflow.tracking import MlflowClient

    words = ("algo=sac", "env=pendulum", "log.sinks=[mlflow]", *SMALL)
    for command in (("train", *words, "total_timesteps=300"), ("resume", "run", "total_timesteps=320")):
        done = cli(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "disabled" not in done.stdout + done.stderr
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("offpolicy")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algo.learning_starts"] == "200"
    updates = client.get_metric_history(run.info.run_id, "train/n_updates")
    assert (updates[-1].step, updates[-1].value) == (320, 120)
