"""A collector of OpenTelemetry on the loopback, for tests."""

from __future__ import annotations

import http.server
import queue
import threading
from typing import Any


class Receiver:
    """An HTTP server on the loopback that takes what a collector takes; `status` is its answer.

    It answers while `may_answer` is set, as it is at first.
    """

    def __init__(self, status: int = 200) -> None:
        self.requests: queue.Queue[tuple[str, Any]] = queue.Queue()  # Any: a protobuf message
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

                request = metrics_service_pb2.ExportMetricsServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.requests.put((self.path, request))
                receiver.may_answer.wait()
                self.send_response(status)
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
            for metric in metrics_of(self.requests.get()[1]):
                for point in metric.gauge.data_points:
                    labels = {pair.key: pair.value.string_value for pair in point.attributes}
                    found.append((metric.name, labels, point.as_double, point.time_unix_nano))
        return found

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def metrics_of(request: Any) -> list[Any]:
    return [m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics]
