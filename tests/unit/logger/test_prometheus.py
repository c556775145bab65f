"""The newest record is served on the loopback, with ranks as labels and the table's meanings."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from offpolicy.logger.exported_metrics import exported_values, metric_name
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.prometheus import PrometheusSink
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import open_sink

HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=3, mode="alternate", total_timesteps=10)
RECORD: Record = {
    "perf/steps_per_sec": 123.5,
    "rank/0/train_ms": 4.0,
    "rank/1/train_ms": 5.0,
    "perf/bottleneck": "learner",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def sink(port: int) -> Iterator[PrometheusSink]:
    opened = PrometheusSink(port, "127.0.0.1", "runs/a", HEADER)
    yield opened
    opened.close()


def served(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_the_newest_record_is_served(sink: PrometheusSink, port: int) -> None:
    sink.write({"perf/steps_per_sec": 1.0})
    sink.write(RECORD)
    lines = served(port).splitlines()
    assert "offpolicy_perf_steps_per_sec 123.5" in lines
    assert 'offpolicy_run_info{algo="sac",env="Pendulum-v1",run="runs/a",seed="3"} 1.0' in lines
    assert 'offpolicy_perf_bottleneck_info{value="learner"} 1.0' in lines


def test_ranks_are_labels_of_one_metric(sink: PrometheusSink, port: int) -> None:
    sink.write(RECORD)
    text = served(port)
    assert 'offpolicy_rank_each_train_ms{rank="0"} 4.0' in text
    assert 'offpolicy_rank_each_train_ms{rank="1"} 5.0' in text
    assert text.count("# TYPE offpolicy_rank_each_train_ms gauge") == 1


def test_a_port_that_is_taken_disables_the_sink_and_nothing_else(sink: PrometheusSink, port: int) -> None:
    warnings: list[str] = []
    again = open_sink("prometheus", lambda: PrometheusSink(port, "127.0.0.1", "b", HEADER), warnings.append)
    assert again is None
    assert warnings[0].startswith("warning: prometheus is disabled for the rest of the run: OSError")


def test_a_key_of_a_rank_is_the_metric_of_all_ranks_with_a_label() -> None:
    first, second = exported_values({"rank/0/train_ms": 4.0, "rank/11/train_ms": 5.0})
    assert (first.name, first.rank, first.value) == ("offpolicy_rank_each_train_ms", "0", 4.0)
    assert (second.name, second.rank, second.value) == ("offpolicy_rank_each_train_ms", "11", 5.0)
    assert first.unit == second.unit == METRICS["rank/<r>/train_ms"].unit


def test_names_are_distinct_and_need_no_escape() -> None:
    names = [metric_name(key) for key in METRICS]
    assert len(set(names)) == len(METRICS)
    assert [name for name in names if not re.fullmatch(r"[a-z_][a-zA-Z0-9_]*", name)] == []
