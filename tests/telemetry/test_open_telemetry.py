"""Spans and metrics of runs, as a real exporter sends them to a receiver, beside the rows of ``checkpoints``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.core.checkpoints.checkpoint import DAGSTER_RUN, CheckpointRow
from state_engine.core.errors import UserFunctionError
from state_engine.microbatch.reports import OperatorReport
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.telemetry.measurements import gauges, totals
from state_engine.telemetry.metrics import JOB, METRICS, OPERATOR, SUBTASK_RETRIES, Point
from state_engine.telemetry.open_telemetry import retries
from state_engine.telemetry.trace_context import continued_trace
from tests.support.tiny import ROWS, Site, Sum
from tests.telemetry.jobs_of_shops import shops
from tests.telemetry.receiver import Received, plain, receiving
from tests.telemetry.test_metrics_of_a_run import put

STEPS = ["settle", "plan", "execute", "commit_files", "stage", "commit", "publish"]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def exporting() -> Iterator[Received]:
    """This process' SDK, which sends to a receiver; an SDK can be set up once in a process."""
    with receiving() as received:
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{received.url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{received.url}/v1/metrics"), 1e9)
        meters = MeterProvider([reader], shutdown_on_exit=False)
        for module, name in (
            (trace, "TRACER"),
            (metrics._internal, "METER"),
        ):  # tests of other modules may come between
            setattr(module, f"_{name}_PROVIDER", None)
            getattr(module, f"_{name}_PROVIDER_SET_ONCE")._done = False
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(meters)
        yield received
        tracers.shutdown()
        meters.shutdown()


@pytest.fixture
def received(exporting: Received) -> Received:
    flush()
    exporting.clear()
    return exporting


def flush() -> None:
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        assert isinstance(provider, TracerProvider | MeterProvider)
        provider.force_flush()


def children(spans: list[Span], parent: Span) -> list[Span]:
    return [one for one in spans if one.parent_span_id == parent.span_id]


def inside(one: Span, parent: Span) -> bool:
    """Whether a span lies in another one, but for a microsecond that floats lose."""
    return (
        parent.start_time_unix_nano - 1_000 <= one.start_time_unix_nano
        and one.start_time_unix_nano <= one.end_time_unix_nano
        and one.end_time_unix_nano <= parent.end_time_unix_nano + 1_000
    )


def test_a_run_is_a_tree_of_spans_whose_numbers_are_those_of_the_row(
    tmp_path: Path, spark: SparkSession, received: Received
) -> None:
    with StateEngine(tmp_path / "root", spark, opentelemetry=True) as engine:
        put(tmp_path, "a", ("x", 0, 10), ("y", 5, 20), ("x", 10, -30))
        report = engine.run(shops(tmp_path), requested_by=f"{DAGSTER_RUN}6f1a")
        [row] = engine.checkpoints("shops")
    flush()
    spans = received.spans
    assert len({one.trace_id for one in spans}) == 1
    [run] = received.named("run shops")
    assert plain(run.attributes) == {
        JOB: "shops",
        "statelake.requested_by": "dagster run 6f1a",
        "dagster.run.id": "6f1a",
    }
    assert run.parent_span_id == b""
    [batch] = children(spans, run)
    facts = plain(batch.attributes)
    assert (batch.name, facts["statelake.checkpoint.id"]) == ("micro-batch", row.checkpoint_id)
    assert (facts["statelake.rows.in"], facts["statelake.rows.refused"]) == (row.rows_in, row.rows_refused)
    assert facts["statelake.rows.out"] == sum(sink.rows for sink in row.sinks) == 4
    steps = children(spans, batch)
    assert [one.name for one in sorted(steps, key=lambda s: s.start_time_unix_nano)] == STEPS
    for step in steps:
        spent_ms = (step.end_time_unix_nano - step.start_time_unix_nano) / 1e6
        if step.name in row.durations_ms:
            assert spent_ms == pytest.approx(row.durations_ms[step.name], abs=2)
    [execute] = received.named("execute")
    [operator] = children(spans, execute)
    assert operator.name == "operator totals"
    written = sum(file.bytes for file in row.operators[0].changelog)
    assert plain(operator.attributes)["statelake.state.written"] == written
    subtasks = [plain(one.attributes) for one in children(spans, operator)]
    assert sorted(one["statelake.subtask"] for one in subtasks) == [0, 1]
    assert sum(one["statelake.rows.in"] for one in subtasks) == row.rows_in
    assert {one["statelake.subtask.attempt"] for one in subtasks} == {0}
    assert all("statelake.seconds.process" in one for one in subtasks if one["statelake.rows.in"])
    for parent in (run, batch, execute, operator):
        assert all(inside(one, parent) for one in children(spans, parent)), parent.name
    assert report.batches[0].seconds * 1e9 == pytest.approx(
        batch.end_time_unix_nano - batch.start_time_unix_nano, rel=0.2
    )


def test_failed_attempts_of_subtasks_are_counted() -> None:
    subtasks = [SubtaskReport(index, attempt=attempt) for index, attempt in enumerate((0, 2, 1))]
    assert list(retries({"totals": OperatorReport.of("totals", subtasks)})) == [
        Point(SUBTASK_RETRIES, 3, {OPERATOR: "totals"})
    ]


def test_metrics_are_those_of_the_list_with_the_numbers_of_the_rows(
    tmp_path: Path, spark: SparkSession, received: Received
) -> None:
    flush()
    before = received.numbers  # counters of this process go on
    with StateEngine(tmp_path / "root", spark, opentelemetry=True) as engine:
        for name, cents in (("a", 10), ("b", 20), ("c", -1)):
            put(tmp_path, name, ("x", 0, cents), ("y", 5, 20))
            engine.run(shops(tmp_path))
        rows = engine.checkpoints("shops")
        history = engine.context.tables("shops").log.history
    flush()
    described = {one.name: (one.unit, one.about, one.kind == "counter") for one in METRICS}
    assert received.descriptions.items() <= described.items()
    numbers = received.numbers
    expected = {}
    for point in (*totals(rows), *gauges(history, now_ms=0)):
        at = point.metric.name, frozenset({JOB: "shops", **point.attributes}.items())
        if not point.metric.name.endswith(".age"):
            expected[at] = point.value + (before.get(at, 0) if point.metric.kind == "counter" else 0)
    expected["statelake.subtask.retries", frozenset({JOB: "shops", OPERATOR: "totals"}.items())] = 0
    assert len(expected) > 30
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    ages = {name for name, _ in numbers if name.endswith(".age")}
    assert ages == {"statelake.watermark.age"}, "how old a head is, nobody knows after its commit"


def test_a_run_continues_the_trace_of_its_starter(
    tmp_path: Path, spark: SparkSession, received: Received
) -> None:
    put(tmp_path, "a", ("x", 0, 10))
    job, carrier = shops(tmp_path), {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01", "HOME": "/"}
    with StateEngine(tmp_path / "root", spark, opentelemetry=True) as engine:
        with continued_trace(carrier):
            engine.run(job)
        engine.run(job)
        with continued_trace(carrier), trace.get_tracer("mine").start_as_current_span("mine"):
            engine.run(job)
    flush()
    continued, alone, within = received.named("run shops")
    assert (continued.trace_id.hex(), continued.parent_span_id.hex()) == (TRACE, PARENT)
    assert alone.parent_span_id == b""
    [mine] = received.named("mine")
    assert within.parent_span_id == mine.span_id, "the span of the caller goes before"


def test_a_replay_has_spans_and_adds_to_no_counter(
    tmp_path: Path, spark: SparkSession, received: Received
) -> None:
    put(tmp_path, "a", ("x", 0, 10))
    with StateEngine(tmp_path / "root", spark, opentelemetry=True) as engine:
        engine.run(shops(tmp_path))
        flush()
        counted = received.numbers
        again = engine.replay(shops(tmp_path))
    flush()
    [replay] = received.named("replay shops")
    [batch] = children(received.spans, replay)
    assert plain(batch.attributes)["statelake.checkpoint.id"] == again.branch_head_id
    name = "statelake.checkpoints", frozenset({JOB: "shops"}.items())
    assert received.numbers[name] == counted[name]


def test_a_run_that_fails_is_an_error_and_has_the_batches_before(
    tmp_path: Path, spark: SparkSession, received: Received
) -> None:
    def then(value: object, total: int) -> list[tuple[str, int, int]]:
        if total > 3:
            raise ValueError("too much")
        return []

    site = Site(tmp_path, spark).put({"k": ["a"], "v": [1]}, "0").put(ROWS, "1")
    job = site.job(Sum(then), batch_rows=1)
    with StateEngine(tmp_path / "root", spark, opentelemetry=True) as engine:
        with pytest.raises(UserFunctionError):
            engine.run(job)
        committed = engine.checkpoints("tiny")
    flush()
    [run] = received.named("run tiny")
    assert run.status.code == Status.STATUS_CODE_ERROR
    assert plain(run.attributes)["error.type"] == "UserFunctionError"
    assert [event.name for event in run.events] == ["exception"]
    batches = received.named("micro-batch")
    assert [plain(one.attributes)["statelake.checkpoint.id"] for one in batches] == ids(committed)
    assert len(batches) >= 2
    for batch in batches:  # looked ahead, a batch began beside the one before
        assert all(inside(one, batch) for one in children(received.spans, batch))


def ids(rows: list[CheckpointRow]) -> list[int]:
    return [row.checkpoint_id for row in rows if row.kind.is_micro_batch]


def test_what_fails_in_telemetry_fails_no_run(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from state_engine.telemetry.open_telemetry import OpenTelemetry

    def broken(self: OpenTelemetry, *given: object) -> None:
        raise RuntimeError("no telemetry today")

    monkeypatch.setattr(OpenTelemetry, "_record", broken)
    site = Site(tmp_path, spark).put(ROWS)
    with StateEngine(tmp_path / "root", spark, opentelemetry=True) as engine:
        assert engine.run(site.job()).caught_up
    assert "telemetry of a micro-batch failed" in caplog.text


class NoOpenTelemetry(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        assert name.partition(".")[0] != "opentelemetry", "imported, though it is off"


def test_off_nothing_of_it_is_imported(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "state_engine.telemetry.open_telemetry", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoOpenTelemetry(), *sys.meta_path])
    site = Site(tmp_path, spark).put(ROWS)
    with continued_trace({"traceparent": f"00-{TRACE}-{PARENT}-01"}):
        site.engine().run(site.job())
    site.close()
    assert "opentelemetry" not in sys.modules


@pytest.mark.more
def test_on_where_it_is_not_installed_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from state_engine import StateEngine\n"
        f"engine = StateEngine({str(tmp_path)!r})\n"
        "assert engine.context.telemetry is None\n"
        f"engine = StateEngine({str(tmp_path)!r}, opentelemetry=True)\n"
        "try: engine.context.telemetry\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert 'pip install "statelake[otel]"' in done.stdout
