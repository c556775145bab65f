"""A collector of OpenTelemetry on the loopback, for tests."""

from __future__ import annotations

import http.server
import queue
import threading
from typing import Any


class Receiver:
    """An HTTP server on the loopback that takes what a collector takes."""

    def __init__(self) -> None:
        self.requests: queue.Queue[Any] = queue.Queue()  # Any: a protobuf message
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

                request = metrics_service_pb2.ExportMetricsServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.requests.put(request)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Writes nothing to the terminal."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def points(self) -> list[tuple[str, dict[str, str], float, int]]:
        """Returns name, labels, value and time of every point of all requests, in order."""
        found = []
        while not self.requests.empty():
            scopes = [scope for resource in self.requests.get().resource_metrics for scope in resource.scope_metrics]
            for metric in (metric for scope in scopes for metric in scope.metrics):
                for point in metric.gauge.data_points:
                    labels = {pair.key: pair.value.string_value for pair in point.attributes}
                    found.append((metric.name, labels, point.as_double, point.time_unix_nano))
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
