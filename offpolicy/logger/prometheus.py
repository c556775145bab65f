"""Prometheus: the newest record behind an HTTP address. Only this module imports `prometheus_client`, on demand.

Needs the extra `prometheus`: `pip install 'offpolicy[prometheus]'`. Other programs ask, at their own pace; a record
that nobody asks for costs a reference.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import Any

from offpolicy.errors import ConfigError
from offpolicy.logger.metrics import METRICS, RANK_IN_KEY
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import Summary
from offpolicy.types import EpisodeRecord

PREFIX = "offpolicy_"
STOP_S = 5.0  # for a request that is being answered at the end


def require_prometheus() -> None:
    """Raises `ConfigError` where the package is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError("log.prometheus_port: needs prometheus_client; type pip install 'offpolicy[prometheus]'")


class PrometheusSink:
    """Serves the newest record at `http://<address>:<port>/metrics` until it is closed.

    Raises `OSError` where the address is taken or not one of this machine's.
    """

    def __init__(self, port: int, address: str, run: str, header: RunHeader) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._info = {"run": run, "algo": header.algo, "env": header.env_id, "seed": str(header.seed)}
        self._record: Record = {}
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(port, address, registry)

    def collect(self) -> Iterator[Any]:  # Any: a metric family of prometheus_client
        """Yields the newest record as metric families; a thread of the server calls it."""
        return families(self._record, self._info)

    def write(self, record: Record) -> None:
        """Replaces the record that is served."""
        self._record = record

    def episode(self, episode: EpisodeRecord) -> None:
        """Serves nothing: `rollout/` summarises episodes."""

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Serves nothing: every record holds its verdict."""

    def finish(self, summary: Summary) -> None:
        """Serves nothing: the address is gone at the end."""

    def close(self) -> None:
        """Stops the server and frees its port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_S)


def families(record: Record, info: Mapping[str, str]) -> Iterator[Any]:  # Any: a metric family of prometheus_client
    """Yields a record as gauges: a key of one rank with the label `rank`, a text as an info with the label `value`."""
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily(f"{PREFIX}run", "the run that this process trains", dict(info))
    of_ranks: dict[str, Any] = {}
    for key, value in record.items():
        rank = RANK_IN_KEY.match(key)
        plain = RANK_IN_KEY.sub("rank/<r>/", key)
        text = METRICS[plain].help if plain in METRICS else ""
        if isinstance(value, str):
            yield InfoMetricFamily(metric_name(key), text, {"value": value})
        elif rank is None:
            yield GaugeMetricFamily(metric_name(key), text, value=value)
        else:
            family = of_ranks.setdefault(plain, GaugeMetricFamily(metric_name(plain), text, labels=["rank"]))
            family.add_metric([rank[0].split("/")[1]], value)
    yield from of_ranks.values()


def metric_name(key: str) -> str:
    """Returns the name of a key: `perf/steps_per_sec` is `offpolicy_perf_steps_per_sec`, `rank/<r>/x` is `rank_each_x`.

    `rank/0/train_ms` and `rank/train_mean_ms` are different metrics, so the former has a word in the rank's place.
    """
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", key.replace("<r>", "each"))
