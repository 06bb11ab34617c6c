"""Runs as spans and numbers of OpenTelemetry, by its API: where they go is decided by the SDK of the program.

    run                     a call of ``StateEngine.run``, and also of ``replay``, ``backfill`` and
                            ``replay_dead_letters``; in the caller's span, or in a trace context from outside
      micro-batch           one that was committed
        settle, plan, …     its steps, under the names that the row of ``checkpoints`` has
          operator          in the step ``execute``
            subtask         by the clock of the machine that ran it

Nothing of this module is imported where it is off. Spans are made of what a micro-batch reports anyway, when it is
committed, so no code of a micro-batch knows of them; one that fails is an error of its run. Metrics are those of the
list whose numbers stand in rows, and the retries of subtasks. Plays the part of Flink's trace and metric reporters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import NamedTuple

from opentelemetry import metrics, propagate, trace
from opentelemetry.util.types import AttributeValue

from state_engine.core.checkpoints.checkpoint import DAGSTER_RUN, MAIN, CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.microbatch.reports import BatchReport, OperatorReport
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.telemetry.measurements import gauges, totals
from state_engine.telemetry.metrics import (
    BATCH_AGE,
    HEAD_AGE,
    JOB,
    METRICS,
    OPERATOR,
    STEP,
    SUBTASK,
    SUBTASK_RETRIES,
    Point,
)
from state_engine.telemetry.trace_context import trace_context


class Span(NamedTuple):
    """From when to when, in nanoseconds since 1970."""

    start_ns: int
    end_ns: int


_NS = 1_000_000_000
_AGES = (HEAD_AGE, BATCH_AGE)
"""Are nothing at a commit, and nobody counts on afterwards: the times say it."""
_EXECUTE = "execute"


class OpenTelemetry:
    """Makes spans and numbers of the runs of an engine."""

    def __init__(self) -> None:
        version = metadata.version("statelake")
        self._tracer = trace.get_tracer("statelake", version)
        meter = metrics.get_meter("statelake", version)
        self._counters = {
            one: meter.create_counter(one.name, one.unit, one.about)
            for one in METRICS
            if one.kind == "counter"
        }
        self._gauges = {
            one: meter.create_gauge(one.name, one.unit, one.about) for one in METRICS if one.kind == "gauge"
        }

    @contextmanager
    def run(self, what: str, job: str, requested_by: str) -> Iterator[None]:
        """The span of a run, or of what else commits micro-batches; an error that ends it is recorded."""
        attributes = {JOB: job, "statelake.requested_by": requested_by}
        if requested_by.startswith(DAGSTER_RUN):
            attributes["dagster.run.id"] = requested_by.removeprefix(DAGSTER_RUN)
        inside = trace.get_current_span().get_span_context().is_valid
        parent = None if inside else propagate.extract(trace_context())
        with self._tracer.start_as_current_span(f"{what} {job}", parent, attributes=attributes) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def batch(self, job: str, report: BatchReport, history: History) -> None:
        """The spans and the numbers of a micro-batch that was committed and published this moment."""
        row = history[report.checkpoint_id]
        if trace.get_current_span().is_recording():
            self._spans(job, report, row)
        if row.branch != MAIN:  # counters are those of main
            return
        now_ms = time.time_ns() // 1_000_000
        for point in (*totals([row]), *retries(report.operators), *gauges(history, now_ms=now_ms)):
            self._record(job, point)

    def _record(self, job: str, point: Point) -> None:
        attributes = {JOB: job, **point.attributes}
        if point.metric in self._counters:
            self._counters[point.metric].add(point.value, attributes)
        elif point.metric not in _AGES:
            self._gauges[point.metric].set(point.value, attributes)

    # -- spans ---------------------------------------------------------------------------------------------------------

    def _spans(self, job: str, report: BatchReport, row: CheckpointRow) -> None:
        now_ns = time.time_ns()
        start_ns = now_ns - int(time.perf_counter() * _NS)
        steps = {
            name: Span(start_ns + int(began_s * _NS), start_ns + int((began_s + report.steps_s[name]) * _NS))
            for name, began_s in report.steps_began_s.items()
        }
        whole = Span(min((one.start_ns for one in steps.values()), default=now_ns), now_ns)
        facts: dict[str, AttributeValue] = {
            JOB: job,
            "statelake.checkpoint.id": row.checkpoint_id,
            "statelake.rows.in": row.rows_in,
            "statelake.rows.refused": row.rows_refused,
            "statelake.rows.out": sum(report.rows_out.values()),
            **({"statelake.partition": row.partition} if row.partition else {}),
        }
        with self._span("micro-batch", whole, facts):
            for name, step in steps.items():
                with self._span(name, step, {JOB: job, STEP: name}):
                    for operator in report.operators.values() if name == _EXECUTE else ():
                        self._operator(job, operator, step)

    def _operator(self, job: str, report: OperatorReport, step: Span) -> None:
        of_subtasks = [(one, _span_of(one, step)) for one in report.subtasks]
        start_ns = min((span.start_ns for _, span in of_subtasks), default=step.start_ns)
        end_ns = max((span.end_ns for _, span in of_subtasks), default=step.end_ns)
        facts: dict[str, AttributeValue] = {
            JOB: job,
            OPERATOR: report.uid,
            "statelake.rows.in": report.rows_in,
            "statelake.rows.out": report.rows_out,
            "statelake.rows.refused": report.rows_refused,
            "statelake.keys": report.keys,
            "statelake.state.written": report.changelog_bytes,
        }
        with self._span(f"operator {report.uid}", Span(start_ns, end_ns), facts):
            for one, span in of_subtasks:
                numbers: dict[str, AttributeValue] = {
                    JOB: job,
                    OPERATOR: report.uid,
                    SUBTASK: one.subtask,
                    "statelake.rows.in": one.rows_in,
                    "statelake.rows.out": one.rows_out,
                    "statelake.subtask.attempt": one.attempt,
                    **{f"statelake.seconds.{name}": spent for name, spent in one.seconds.items()},
                }
                with self._span("subtask", span, numbers):
                    pass

    @contextmanager
    def _span(self, name: str, span: Span, facts: Mapping[str, AttributeValue]) -> Iterator[None]:
        new = self._tracer.start_span(name, attributes=facts, start_time=span.start_ns)
        with trace.use_span(new):
            yield
        new.end(span.end_ns)


def retries(operators: Mapping[str, OperatorReport]) -> Iterator[Point]:
    """Failed attempts of the subtasks of operators, which rows of checkpoints do not record."""
    for uid, operator in operators.items():
        yield SUBTASK_RETRIES.of(sum(one.attempt for one in operator.subtasks), uid)


def _span_of(subtask: SubtaskReport, step: Span) -> Span:
    """When a subtask ran; inside its step also where the clock of its machine differs."""
    start_ns = min(max(int(subtask.began_s * _NS), step.start_ns), step.end_ns)
    return Span(start_ns, min(start_ns + int(sum(subtask.seconds.values()) * _NS), step.end_ns))
