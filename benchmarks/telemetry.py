"""``python -m benchmarks.telemetry``: what does OpenTelemetry cost a micro-batch?

Two jobs with the same input take turns in one session, a micro-batch each: one engine has OpenTelemetry off, the other
on, with the SDK, whose exporters send to a receiver in a process of its own. Who is first changes from pair to pair.
Counted is the whole call of the engine.

**Equal results come first**: before any figure is printed, outputs and state of both are what the workload says. The
last line is ``ratio with to without = N``: the median over pairs of the one divided by the other.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from typing import Annotated

import typer
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.comparison import SMALL_BATCH, site
from benchmarks.contenders.statelake import Statelake
from benchmarks.figures import Spread, load_of_machine
from benchmarks.unequal import check
from benchmarks.workload import Feed, Workload
from state_engine import StateEngine


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _take_all(port: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Taking)
    port.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def exporting() -> Iterator[None]:
    """The SDK of this process, as a program would set it up; a receiver of OTLP beside it."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=_take_all, args=(there,), daemon=True)
    receiver.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/traces")))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/metrics"), 5_000)])
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    try:
        yield
    finally:
        tracers.shutdown()
        meters.shutdown()
        receiver.terminate()


def run(
    pairs: Annotated[int, typer.Option(min=1, help="Micro-batches of each that are counted.")] = 100,
    events: Annotated[int, typer.Option(min=1, help="Events in each.")] = SMALL_BATCH,
    keys: Annotated[int, typer.Option(min=10, help="Distinct keys.")] = 100_000,
    warm_up: Annotated[int, typer.Option(min=0, help="Pairs that are not counted.")] = 20,
) -> None:
    """Compare micro-batches with OpenTelemetry on and off."""
    print(load_of_machine(), flush=True)
    without, with_it = measure(pairs, events=events, keys=keys, warm_up=warm_up)
    print(f"off: {Spread.of(without)}; on: {Spread.of(with_it)}; {load_of_machine()}")
    ratios = [on / off for on, off in zip(with_it, without, strict=True)]
    print(f"ratio with to without = {statistics.median(ratios):.3f}", flush=True)


def measure(pairs: int, *, events: int, keys: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Seconds of each micro-batch, with OpenTelemetry off and on.

    Raises:
        UnequalResultsError: outputs or state are not what so many events must lead to.
    """
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with site() as (spark, directory), exporting():
        feed = Feed(Workload(keys), directory / "feed")
        jobs = {on: Statelake(spark, directory / f"on_{on}".lower()) for on in seconds}
        for on, job in jobs.items():
            job.engine.close()
            job.engine = StateEngine(job.root, spark, opentelemetry=on)
        for number in range(warm_up + pairs):
            batch = feed.write(events)
            for on in (False, True) if number % 2 else (True, False):
                seconds[on].append(jobs[on].run(batch).seconds)
        for job in jobs.values():
            check(job.name, job.results(), feed.workload.expected(feed.events))
            job.close()
    return seconds[False][warm_up:], seconds[True][warm_up:]


if __name__ == "__main__":
    typer.run(run)
