"""The newest record is served on the loopback, with ranks as labels and the table's meanings; the port is freed."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.errors import ConfigError
from offpolicy.logger.exported_metrics import SENTENCES, metric_name
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.prometheus import PrometheusSink, _handle_error, families, require_prometheus
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


def test_a_metric_has_the_meaning_of_the_table(sink: PrometheusSink, port: int) -> None:
    sink.write(RECORD)
    text = served(port)
    for name, key in (
        ("perf_steps_per_sec", "perf/steps_per_sec"),
        ("rank_each_train_ms", "rank/<r>/train_ms"),
        ("perf_bottleneck_info", "perf/bottleneck"),
    ):
        assert f"# HELP offpolicy_{name} {METRICS[key].help}" in text


def test_a_directory_with_a_name_in_other_bytes_is_shown_with_escapes(port: int) -> None:
    """Every answer was an error, with a stack trace on the terminal: the name is no UTF-8."""
    sink = PrometheusSink(port, "127.0.0.1", os.fsdecode(b"runs/caf\xe9"), HEADER)
    assert r'run="runs/caf\\udce9"' in served(port)
    sink.close()


def test_a_client_that_breaks_off_leaves_no_trace_on_the_terminal(
    sink: PrometheusSink, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe of the port that resets the connection wrote a stack trace over the panel."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
        client.send(b"GET /metr")
    served(port)  # the server goes on
    for thread in threading.enumerate():
        if thread.name.endswith("(process_request_thread)"):
            thread.join(10.0)
    assert capsys.readouterr().err == ""


def test_other_errors_of_a_request_are_said() -> None:
    said: list[tuple[object, object]] = []
    for error in (BrokenPipeError("gone"), ValueError("a defect")):
        try:
            raise error
        except (BrokenPipeError, ValueError):
            _handle_error(lambda *request: said.append(request), "request", error)
    assert [str(error) for _, error in said] == ["a defect"]


def test_it_is_served_at_the_given_address_alone(port: int) -> None:
    sink = PrometheusSink(port, "127.0.0.2", "runs/a", HEADER)
    with pytest.raises(urllib.error.URLError, match="refused"):
        served(port)
    sink.close()


def test_before_the_first_record_the_run_is_named(sink: PrometheusSink, port: int) -> None:
    assert "offpolicy_run_info" in served(port)


def test_every_key_of_the_table_has_a_name_of_its_own_that_prometheus_takes() -> None:
    names = [metric_name(key) for key in METRICS]
    assert len(set(names)) == len(METRICS)
    assert [name for name in names if not re.fullmatch(r"[a-z_][a-zA-Z0-9_]*", name)] == []
    assert len(list(families(dict.fromkeys(METRICS, 1.0), {}))) == len(METRICS) - len(SENTENCES) + 1


def test_the_port_is_free_after_the_end(port: int) -> None:
    PrometheusSink(port, "127.0.0.1", "a", HEADER).close()
    PrometheusSink(port, "127.0.0.1", "a", HEADER).close()


def test_a_port_that_is_taken_disables_the_sink_and_nothing_else(sink: PrometheusSink, port: int) -> None:
    warnings: list[str] = []
    again = open_sink("prometheus", lambda: PrometheusSink(port, "127.0.0.1", "b", HEADER), warnings.append)
    assert again is None
    assert warnings[0].startswith("warning: prometheus is disabled for the rest of the run: OSError")


def test_it_serves_the_loopback_unless_told_otherwise() -> None:
    log = load_config(["log.prometheus_port=9100"]).log
    assert (log.prometheus_port, log.prometheus_address) == (9100, "127.0.0.1")
    assert load_config([]).log.prometheus_port is None


@pytest.mark.parametrize("given", ["0", "70000", "x"])
def test_a_port_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.prometheus_port: got .*, allowed a whole number in \[1, 65535\]"):
        load_config([f"log.prometheus_port={given}"])


def test_a_missing_package_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    require_prometheus()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'offpolicy\[prometheus\]'"):
        require_prometheus()
