"""Prometheus: the newest record behind an HTTP address. Only this module imports `prometheus_client`, on demand.

Needs the extra `prometheus`: `pip install 'offpolicy[prometheus]'`. Other programs ask, at their own pace; a record
that nobody asks for costs a reference.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from offpolicy.errors import ConfigError
from offpolicy.logger.exported_metrics import PREFIX, exported_values, run_labels
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import Summary
from offpolicy.types import EpisodeRecord

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

        self._info = run_labels(run, header)
        self._record: Record = {}
        registry = CollectorRegistry()
        registry.register(self)
        server: Any  # Any: one of its methods is replaced
        server, self._thread = start_http_server(port, address, registry)
        # Its own one writes a stack trace over the panel whenever a client breaks its connection off.
        server.handle_error = partial(_handle_error, server.handle_error)
        self._server = server

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


def _handle_error(handle: Callable[[Any, Any], None], request: Any, address: Any) -> None:  # Any: of socketserver
    """Passes the error of a request on to `handle`, but for a connection that the client has broken off."""
    if not isinstance(sys.exception(), ConnectionError):
        handle(request, address)


def families(record: Record, info: Mapping[str, str]) -> Iterator[Any]:  # Any: a metric family of prometheus_client
    """Yields a record as gauges: a key of one rank with the label `rank`, a text as an info with the label `value`."""
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily(f"{PREFIX}run", "the run that this process trains", dict(info))
    of_ranks: dict[str, Any] = {}
    for name, text, _, rank, value in exported_values(record):
        if isinstance(value, str):
            yield InfoMetricFamily(name, text, {"value": value})
        elif rank is None:
            yield GaugeMetricFamily(name, text, value=value)
        else:
            family = of_ranks.setdefault(name, GaugeMetricFamily(name, text, labels=["rank"]))
            family.add_metric([rank], value)
    yield from of_ranks.values()
