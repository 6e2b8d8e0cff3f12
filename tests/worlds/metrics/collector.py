"""A receiver of OTLP over HTTP, which reads requests by OpenTelemetry's own definition of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


@dataclass
class Collector:
    """What came: the requests with their headers. ``status`` is its answer; while ``answers`` is not set,
    there is none.
    """

    url: str = ""
    requests: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    answers: threading.Event = field(default_factory=threading.Event)

    def resource(self) -> dict[str, str]:
        """The attributes of the last request's one resource."""
        [found] = self.requests[-1].resource_metrics
        return {item.key: item.value.string_value for item in found.resource.attributes}

    def metrics(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        [found] = self.requests[-1].resource_metrics
        [scope] = found.scope_metrics
        assert len({metric.name for metric in scope.metrics}) == len(scope.metrics), "each name once"
        return {metric.name: metric for metric in scope.metrics}


@contextmanager
def collector() -> Iterator[Collector]:
    """Serve ``POST /v1/metrics`` on a free port."""
    kept = Collector()
    kept.answers.set()

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert kept.answers.wait(60)
            right = self.path == "/v1/metrics" and self.headers["Content-Type"] == "application/x-protobuf"
            self.send_response(kept.status if right else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            if right and kept.status == 200:
                kept.requests.append(ExportMetricsServiceRequest.FromString(body))
                kept.headers.append({name.lower(): value for name, value in self.headers.items()})
                self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as server:
        kept.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield kept
        finally:
            kept.answers.set()
            server.shutdown()
            thread.join()
