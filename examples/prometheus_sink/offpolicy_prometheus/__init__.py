"""A sink that serves the newest record at http://127.0.0.1:9100/metrics, for Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, Info, start_http_server

from offpolicy.config.extensions import SinkInfo
from offpolicy.config.parsing import option
from offpolicy.logger.metrics import METRICS

RANK = re.compile(r"^rank/(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOptions:
    """`sinks.prometheus.port` and `sinks.prometheus.address`."""

    port: int = option(9100, "port to serve at; each run needs its own", ge=1, le=65535)
    address: str = option("127.0.0.1", "address to serve at; 0.0.0.0 serves other machines too, without a password")


class PrometheusSink:
    """Has one gauge for each number of the records; a key of one rank has the label `rank`."""

    def __init__(self, context):
        self._registry, self._gauges = CollectorRegistry(), {}
        run = Info("offpolicy_run", "the run that this process trains", registry=self._registry)
        config = context.config
        labels = {"run": context.run_dir, "algo": config["algo"]["name"], "env": config["env"]["id"]}
        run.info({name: str(value) for name, value in {**labels, "seed": config["seed"]}.items()})
        options = context.options
        self._server, self._thread = start_http_server(options.port, options.address, self._registry)

    def write(self, record):
        for key, value in record.items():
            if isinstance(value, int | float):
                rank = RANK.match(key)
                gauge = self._gauge(RANK.sub("rank/<r>/", key), ["rank"] if rank else [])
                (gauge.labels(rank[1]) if rank else gauge).set(value)

    def _gauge(self, key, labels):
        if key not in self._gauges:
            name = "offpolicy_" + re.sub(r"[^a-zA-Z0-9_]", "_", key.replace("<r>", "each"))
            text = METRICS[key].help if key in METRICS else key
            self._gauges[key] = Gauge(name, text, labels, registry=self._registry)
        return self._gauges[key]

    def episode(self, episode): ...

    def text(self, tag, content, env_steps): ...

    def finish(self, summary): ...

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


PROMETHEUS = SinkInfo("offpolicy_prometheus:PrometheusSink", PrometheusOptions)
