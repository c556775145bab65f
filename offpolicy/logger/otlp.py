"""OTLP: every record is sent to an OpenTelemetry collector, as protobuf over HTTP.

Needs the extra `otlp`: `pip install 'offpolicy[otlp]'`. Only this module imports `opentelemetry`, on demand. A thread
sends, and training never waits for it: what a slow collector does not take in time is dropped.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from offpolicy import __version__
from offpolicy.errors import ConfigError
from offpolicy.logger.exported_metrics import PREFIX, exported_values, run_labels, ucum
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import Summary
from offpolicy.types import EpisodeRecord

PATH = "/v1/metrics"  # of an endpoint that is named without a path
TIMEOUT_S = 5.0  # for one request, with its retries
STOP_S = 2.0  # for what is left to send at the end
MAX_PENDING = 100  # records that wait while a request is under way
_EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
_TIMED_OUT = "due to timeout, max retries or shutdown"  # its first message on a request that nobody answered
NS_PER_S = 1_000_000_000


def require_otlp() -> None:
    """Raises `ConfigError` where the packages are not installed."""
    parents = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.exporter.otlp")
    needed = (*parents, "opentelemetry.exporter.otlp.proto", "opentelemetry.exporter.otlp.proto.http")
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise ConfigError("log.otlp_endpoint: needs opentelemetry; type pip install 'offpolicy[otlp]'")


class TimedRecord(NamedTuple):
    """A record and when it ended."""

    record: Record
    time_unix_ns: int


class OtlpSink:
    """Sends records to `endpoint` until it is closed; a failure is reported once, and later records are still tried.

    `endpoint` is the address of a collector, `http://host:4318`, or the whole address where it takes metrics.
    """

    def __init__(self, endpoint: str, run: str, header: RunHeader, warn: Callable[[str], None]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._endpoint, self._labels, self._warn = endpoint, run_labels(run, header), warn
        self._started_unix_s = header.started_unix_s
        self._exporter = OTLPMetricExporter(metrics_url(endpoint), timeout=TIMEOUT_S)
        self._reason = _FirstMessage()
        self._pending: deque[TimedRecord] = deque(maxlen=MAX_PENDING)
        self._wake, self._is_closing = threading.Event(), False
        self._is_failing = False  # the last request failed
        self._failure: str | None = None  # why the first records were lost
        self._has_warned = False
        # A daemon, so that a request that outlives `STOP_S` cannot keep the process.
        self._thread = threading.Thread(target=self._send_all, name="otlp", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Hands the record to the sending thread. Of more than `MAX_PENDING` the oldest is dropped, with a warning."""
        wall_s = record["wall_s"]
        assert isinstance(wall_s, int | float)
        if len(self._pending) == MAX_PENDING:
            self._fail(f"it is slower than the records: more than {MAX_PENDING} came before it answered one request")
        self._pending.append(TimedRecord(record, int((self._started_unix_s + wall_s) * NS_PER_S)))
        self._wake.set()
        self._report()

    def episode(self, episode: EpisodeRecord) -> None:
        """Sends nothing: `rollout/` summarises episodes."""

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Sends nothing: every record holds its verdict."""

    def finish(self, summary: Summary) -> None:
        """Sends nothing: the last record has the numbers."""

    def close(self) -> None:
        """Sends what is pending, for at most `STOP_S`, and ends the thread; at once if the collector is failing."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(0.0 if self._is_failing else STOP_S)
        if self._thread.is_alive():
            self._fail(f"no answer within {STOP_S:g} s at the end of the run")
        self._exporter.shutdown()  # ends the wait between two tries
        self._report()

    def _fail(self, failure: str) -> None:
        """Keeps the first failure. Either thread calls it, and neither takes back what the other one has found."""
        if self._failure is None:
            self._failure = failure

    def _report(self) -> None:
        """Warns of the first failure, on the caller's thread: the terminal is not the sending thread's."""
        if self._failure is not None and not self._has_warned:
            self._has_warned = True
            self._warn(f"warning: log.otlp_endpoint={self._endpoint} lost records, the run goes on: {self._failure}")

    def _send_all(self) -> None:
        """The sending thread: one request for all that is pending, whenever there is something."""
        with self._reason:
            while not self._is_closing or (self._pending and not self._is_failing):
                self._wake.wait()
                self._wake.clear()
                records = [self._pending.popleft() for _ in range(len(self._pending))]
                if records:
                    failure = self._send(records)
                    self._is_failing = failure is not None
                    if failure is not None:
                        self._fail(failure)

    def _send(self, records: Sequence[TimedRecord]) -> str | None:
        """Returns why the collector has not taken the records; None if it has."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._reason.text = ""
        try:
            is_taken = self._exporter.export(metrics_data(records, self._labels)) is MetricExportResult.SUCCESS
        except Exception as error:  # whatever a library raises must not end the thread without a word
            return f"{type(error).__name__}: {error}"
        if is_taken:
            return None
        if _TIMED_OUT in self._reason.text:
            return f"no answer within {TIMEOUT_S:g} s"
        return self._reason.text or "no reason given"


def metrics_url(endpoint: str) -> str:
    """Returns where an endpoint takes metrics: `PATH` below an address without a path."""
    return endpoint.rstrip("/") + PATH if urlsplit(endpoint).path in ("", "/") else endpoint


def metrics_data(records: Sequence[TimedRecord], labels: Mapping[str, str]) -> Any:  # Any: opentelemetry is optional
    """Returns records as OpenTelemetry's `MetricsData`: gauges, with the run and, where there is one, the rank."""
    from opentelemetry.sdk.metrics.export import (
        Gauge,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics: dict[str, Any] = {}
    for point in _points(records, labels):
        gauge = metrics.setdefault(point.name, Metric(point.name, point.help, ucum(point.unit), Gauge([])))
        attributes = {"run": labels["run"], **point.labels}
        gauge.data.data_points.append(NumberDataPoint(attributes, 0, point.time_unix_ns, point.value))
    service = {"name": "offpolicy", "version": __version__, "instance.id": labels["run"]}
    resource = Resource({f"service.{key}": value for key, value in service.items()})
    scope = ScopeMetrics(InstrumentationScope("offpolicy", __version__), list(metrics.values()), "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


@dataclass(frozen=True, slots=True)
class _Point:
    """One value of a gauge."""

    name: str  # of the gauge
    help: str
    unit: str  # of the metric table
    labels: Mapping[str, str]  # besides the run
    value: float
    time_unix_ns: int


def _points(records: Sequence[TimedRecord], labels: Mapping[str, str]) -> Iterator[_Point]:
    """Yields every value of the records, and the run itself; a text is a label of the value 1."""
    for record, time_unix_ns in records:
        yield _Point(f"{PREFIX}run_info", "the run that sends this", "1", labels, 1.0, time_unix_ns)
        for name, text, unit, rank, value in exported_values(record):
            if isinstance(value, str):
                yield _Point(f"{name}_info", text, "1", {"value": value}, 1.0, time_unix_ns)
            else:
                own = {} if rank is None else {"rank": rank}
                yield _Point(name, text, unit, own, float(value), time_unix_ns)


class _FirstMessage(logging.Filter):
    """Keeps the exporter's first message on a request, which has no other way to say why; the terminal gets none.

    Only messages of the thread that enters it are kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        logging.getLogger(_EXPORTER_LOG).addFilter(self)

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger(_EXPORTER_LOG).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps a message, unless there is one: a later one says that the tries are over."""
        if record.thread != self._thread:
            return True
        self.text = self.text or record.getMessage().replace("\n", " ")
        return False
