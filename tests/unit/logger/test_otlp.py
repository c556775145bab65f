"""Records reach a collector as protobuf, with names, units and ranks; one that is dead or slow delays nothing."""

from __future__ import annotations

import importlib.util
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.errors import ConfigError
from offpolicy.logger import otlp
from offpolicy.logger.exported_metrics import ucum
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.otlp import MAX_PENDING, OtlpSink, metrics_url, require_otlp
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.clock import Stopwatch
from tests.otlp_receiver import Receiver, metrics_of

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

HEADER = RunHeader(
    algo="sac", env_id="Pendulum-v1", seed=3, mode="alternate", total_timesteps=10, started_unix_s=1_000_000.0
)
RECORD: Record = {
    "wall_s": 2.5,
    "perf/steps_per_sec": 123.5,
    "rank/0/train_ms": 4.0,
    "rank/1/train_ms": 5.0,
    "perf/bottleneck": "learner",
}
SLOWER = f"it is slower than the records: more than {MAX_PENDING} came before it answered one request"
AT_ONCE_S = 1.0  # what a call may take on a loaded machine; a collector that is waited for takes TIMEOUT_S


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def send(endpoint: str, *records: Record) -> list[str]:
    """Sends records as a run does; returns its warnings."""
    warnings: list[str] = []
    sink = OtlpSink(endpoint, "runs/a", HEADER, warnings.append)
    for record in records:
        sink.write(record)
    sink.close()
    return warnings


def test_a_record_arrives_with_run_ranks_and_date(receiver: Receiver) -> None:
    assert send(receiver.address, RECORD) == []
    points = receiver.points()
    when = 1_000_002_500_000_000
    assert ("offpolicy_perf_steps_per_sec", {"run": "runs/a"}, 123.5, when) in points
    assert ("offpolicy_rank_each_train_ms", {"run": "runs/a", "rank": "0"}, 4.0, when) in points
    assert ("offpolicy_rank_each_train_ms", {"run": "runs/a", "rank": "1"}, 5.0, when) in points
    assert ("offpolicy_perf_bottleneck_info", {"run": "runs/a", "value": "learner"}, 1.0, when) in points
    run = {"run": "runs/a", "algo": "sac", "env": "Pendulum-v1", "seed": "3"}
    assert ("offpolicy_run_info", run, 1.0, when) in points


def test_a_metric_has_meaning_and_unit_of_the_table_and_the_resource_names_the_run(receiver: Receiver) -> None:
    send(receiver.address, RECORD)
    path, request = receiver.requests.get(timeout=10)
    assert path == "/v1/metrics"
    found = {metric.name: metric for metric in metrics_of(request)}
    metric, own = found["offpolicy_perf_steps_per_sec"], METRICS["perf/steps_per_sec"]
    assert (metric.description, metric.unit) == (own.help, ucum(own.unit))
    resource = {pair.key: pair.value.string_value for pair in request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("offpolicy", "runs/a")


def test_every_record_arrives_once_and_in_order(receiver: Receiver) -> None:
    records: list[Record] = [{"wall_s": float(number), "iteration": number} for number in range(20)]
    assert send(receiver.address, *records) == []
    sent = [value for name, _, value, _ in receiver.points() if name == "offpolicy_iteration"]
    assert sent == [float(number) for number in range(20)]


def test_a_collector_that_refuses_gives_one_warning_and_no_delay() -> None:
    port, clock = free_port(), Stopwatch()
    warnings = send(f"http://127.0.0.1:{port}", *[RECORD] * 50)
    assert clock.elapsed_s() < otlp.STOP_S + AT_ONCE_S
    (warning,) = warnings
    assert warning.startswith(f"warning: log.otlp_endpoint=http://127.0.0.1:{port} lost records, the run goes on: ")


def test_writing_to_a_collector_that_never_answers_takes_no_time_and_closing_a_little(silent: str) -> None:
    warnings: list[str] = []
    sink, clock = OtlpSink(silent, "runs/a", HEADER, warnings.append), Stopwatch()
    for _ in range(10 * MAX_PENDING):
        sink.write(RECORD)
    assert clock.elapsed_s() < AT_ONCE_S
    sink.close()
    assert clock.elapsed_s() < otlp.STOP_S + AT_ONCE_S
    assert warnings == [f"warning: log.otlp_endpoint={silent} lost records, the run goes on: {SLOWER}"]


def test_a_collector_that_never_answers_is_named_at_the_end(silent: str) -> None:
    assert send(silent, RECORD) == [
        f"warning: log.otlp_endpoint={silent} lost records, the run goes on: no answer within 2 s at the end of the run"
    ]


def test_a_collector_that_does_not_answer_in_time_is_named_while_the_run_goes_on(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter's message would leave it open whether it was the time, the tries or the end of the run."""
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.2)
    warnings: list[str] = []
    sink = OtlpSink(silent, "runs/a", HEADER, warnings.append)
    watch = Stopwatch()
    while not warnings and watch.elapsed_s() < 10.0:
        sink.write(RECORD)
        time.sleep(0.05)
    sink.close()
    assert warnings == [f"warning: log.otlp_endpoint={silent} lost records, the run goes on: no answer within 0.2 s"]


def test_records_that_a_late_answer_costs_are_warned_of_once(receiver: Receiver) -> None:
    """It answered in the end, so no request failed: the oldest records went without a word."""
    warnings: list[str] = []
    sink = OtlpSink(receiver.address, "runs/a", HEADER, warnings.append)
    receiver.may_answer.clear()
    sink.write({"wall_s": 0.0, "iteration": 0})
    receiver.requests.get(timeout=10)
    for number in range(1, MAX_PENDING + 1):
        sink.write({"wall_s": float(number), "iteration": number})
    assert warnings == []  # all of them wait
    for number in range(MAX_PENDING + 1, MAX_PENDING + 4):
        sink.write({"wall_s": float(number), "iteration": number})
    receiver.may_answer.set()
    sink.close()
    sent = [value for name, _, value, _ in receiver.points() if name == "offpolicy_iteration"]
    assert sent == [float(number) for number in range(4, MAX_PENDING + 4)]
    assert warnings == [f"warning: log.otlp_endpoint={receiver.address} lost records, the run goes on: {SLOWER}"]


def test_an_error_of_the_collector_is_named_once_and_the_next_record_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    receiver, warnings = Receiver(status=500), list[str]()
    sink = OtlpSink(receiver.address, "runs/a", HEADER, warnings.append)
    for _ in range(3):
        sink.write(RECORD)
        receiver.requests.get(timeout=10)
    sink.close()
    receiver.close()
    (warning,) = warnings
    assert "500" in warning
    assert caplog.records == []  # nothing of the exporter's own reaches the terminal


def test_a_collector_that_comes_back_gets_the_records_since(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    sink = OtlpSink(receiver.address, "runs/a", HEADER, warnings.append)
    with monkeypatch.context() as patch:
        failed = threading.Event()

        def fail(*args: object) -> None:
            failed.set()
            raise OSError("no route")

        patch.setattr(sink._exporter, "export", fail)
        sink.write({"wall_s": 1.0, "iteration": 1})
        assert failed.wait(10)
    sink.write({"wall_s": 2.0, "iteration": 2})
    receiver.requests.get(timeout=10)
    sink.close()
    assert warnings == [
        f"warning: log.otlp_endpoint={receiver.address} lost records, the run goes on: OSError: no route"
    ]


def test_the_end_waits_again_for_a_collector_that_has_come_back(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = OtlpSink(receiver.address, "runs/a", HEADER, [].append)
    waits_s: list[float] = []
    monkeypatch.setattr(sink, "_is_failing", True)
    sink.write(RECORD)
    watch = Stopwatch()
    while sink._is_failing and watch.elapsed_s() < 10.0:
        time.sleep(0.01)
    monkeypatch.setattr(sink._thread, "join", waits_s.append)
    sink.close()
    assert waits_s == [otlp.STOP_S]


def test_nothing_is_left_after_the_end(receiver: Receiver) -> None:
    log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    filters, threads = list(log.filters), set(threading.enumerate())  # of earlier tests, whose requests may go on
    send(receiver.address, RECORD)
    assert [one for one in log.filters if one not in filters] == []
    assert [one.name for one in set(threading.enumerate()) - threads if one.name == "otlp"] == []


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("https://otel.example/", "https://otel.example/v1/metrics"),
        ("https://otel.example/otlp/v1/metrics", "https://otel.example/otlp/v1/metrics"),
    ],
)
def test_an_address_without_a_path_gets_that_of_metrics(endpoint: str, url: str) -> None:
    assert metrics_url(endpoint) == url


@pytest.mark.parametrize("given", ["127.0.0.1:4318", "grpc://a:4317", "http://", "http://a:x"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.otlp_endpoint: got .*, allowed an address such as http://127"):
        load_config([f"log.otlp_endpoint='{given}'"])


def test_nothing_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, offpolicy.logger.otlp, offpolicy.logger.logger; print('opentelemetry' in str(list(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_missing_package_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    require_otlp()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'offpolicy\[otlp\]'"):
        require_otlp()
