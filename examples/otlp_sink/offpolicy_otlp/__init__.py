"""A sink that sends the newest record to an OpenTelemetry collector, as protobuf over HTTP.

A thread of OpenTelemetry sends every `sinks.otlp.every_s` seconds; training never waits for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from offpolicy.config.extensions import SinkInfo
from offpolicy.config.parsing import option
from offpolicy.logger.metrics import METRICS

RANK = re.compile(r"^rank/(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpOptions:
    """`sinks.otlp.endpoint` and `sinks.otlp.every_s`; `OTEL_EXPORTER_OTLP_HEADERS` adds headers, such as a token."""

    endpoint: str = option("http://127.0.0.1:4318/v1/metrics", "where the collector takes metrics")
    every_s: float = option(5.0, "seconds between two requests", gt=0.0)


class OtlpSink:
    """Has one gauge for each number of the records; a key of one rank has the attribute `rank`."""

    def __init__(self, context):
        config, options = context.config, context.options
        self._attributes = {"run": str(context.run_dir), "algo": config["algo"]["name"], "env": config["env"]["id"]}
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(options.endpoint, timeout=5), export_interval_millis=1000 * options.every_s
        )
        resource = Resource({"service.name": "offpolicy", "service.instance.id": str(context.run_dir)})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter, self._gauges = self._provider.get_meter("offpolicy"), {}

    def write(self, record):
        for key, value in record.items():
            if isinstance(value, int | float):
                rank = RANK.match(key)
                attributes = {"rank": rank[1]} if rank else {}
                self._gauge(RANK.sub("rank/<r>/", key)).set(float(value), {**self._attributes, **attributes})

    def _gauge(self, key):
        if key not in self._gauges:
            name = "offpolicy_" + re.sub(r"[^a-zA-Z0-9_]", "_", key.replace("<r>", "each"))
            self._gauges[key] = self._meter.create_gauge(name, description=METRICS[key].help if key in METRICS else key)
        return self._gauges[key]

    def episode(self, episode): ...

    def text(self, tag, content, env_steps): ...

    def finish(self, summary): ...

    def close(self):
        self._provider.shutdown(timeout_millis=2000)  # sends what is left


OTLP = SinkInfo("offpolicy_otlp:OtlpSink", OtlpOptions)
