"""A receiver of OTLP over HTTP on this machine: what the exporter sends is kept as protobuf's messages."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Numbers = dict[tuple[str, frozenset[tuple[str, Any]]], float]


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as values of Python."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@dataclass
class Received:
    """What came since the last look."""

    url: str = ""
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)

    def clear(self) -> None:
        self.traces.clear()
        self.metrics.clear()

    @property
    def spans(self) -> list[Span]:
        return [s for one in self.traces for r in one.resource_spans for c in r.scope_spans for s in c.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    @property
    def descriptions(self) -> dict[str, tuple[str, str, bool]]:
        """Of each metric its unit, its meaning, and whether it is a counter that only grows."""
        return {m.name: (m.unit, m.description, m.sum.is_monotonic) for m in self._all_metrics()}

    @property
    def numbers(self) -> Numbers:
        """The last number of each metric and its attributes."""
        last: Numbers = {}
        for metric in self._all_metrics():
            for point in (*metric.gauge.data_points, *metric.sum.data_points):
                labels = frozenset(plain(point.attributes).items())
                last[metric.name, labels] = point.as_double or float(point.as_int)
        return last

    def _all_metrics(self) -> Iterator[Any]:
        for one in self.metrics:
            for resource in one.resource_metrics:
                for scope in resource.scope_metrics:
                    yield from scope.metrics


@contextmanager
def receiving() -> Iterator[Received]:
    """A receiver that runs inside."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                received.traces.append(ExportTraceServiceRequest.FromString(body))
            else:
                assert self.path == "/v1/metrics"
                received.metrics.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
