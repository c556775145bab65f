"""Records reach a collector as protobuf, with names, units and ranks; one that is dead or slow delays nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from offpolicy.logger import otlp
from offpolicy.logger.otlp import OtlpSink
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.clock import Stopwatch
from tests.otlp_receiver import Receiver

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
AT_ONCE_S = 1.0  # what a call may take on a loaded machine; a collector that is waited for takes TIMEOUT_S


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


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


def test_every_record_arrives_once_and_in_order(receiver: Receiver) -> None:
    records: list[Record] = [{"wall_s": float(number), "iteration": number} for number in range(20)]
    assert send(receiver.address, *records) == []
    sent = [value for name, _, value, _ in receiver.points() if name == "offpolicy_iteration"]
    assert sent == [float(number) for number in range(20)]


@pytest.mark.slow
def test_a_collector_that_refuses_gives_one_warning_and_no_delay() -> None:
    port, clock = free_port(), Stopwatch()
    warnings = send(f"http://127.0.0.1:{port}", *[RECORD] * 50)
    assert clock.elapsed_s() < otlp.STOP_S + AT_ONCE_S
    (warning,) = warnings
    assert warning.startswith(f"warning: log.otlp_endpoint=http://127.0.0.1:{port} lost records, the run goes on: ")
