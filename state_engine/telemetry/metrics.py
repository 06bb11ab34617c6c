"""The metrics that leave: name, kind, unit and meaning of each, and what a number of one is: a ``Point``.

One list for all ways out. Names and units follow the rules of OpenTelemetry: parts with dots between them, and units of
UCUM. Its semantic conventions have no name for stateful batches, so all begin with ``statelake``. Prometheus has the
same names in its own spelling. Mirrors the page of metrics in Flink's documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge"]
JOB, SOURCE, SINK, OPERATOR, STATE, STEP, SUBTASK = (
    f"statelake.{name}" for name in ("job", "source", "sink", "operator", "state", "step", "subtask")
)
FILE_KIND, TIME_DOMAIN, HEALTH, FUNCTION_METRIC = (
    f"statelake.{name}" for name in ("file.kind", "time.domain", "health", "function.metric")
)
RULE, OTHERWISE = "statelake.rule", "statelake.otherwise"
_SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}
"""Of units, in names of Prometheus; others are no part of a name."""


@dataclass(frozen=True)
class Metric:
    """What a number means.

    Attributes:
        unit: of UCUM: ``s``, ``By``, ``1`` for a ratio, or the thing counted, in braces.
        kind: ``counter`` for a number that only grows, over all micro-batches that were committed on ``main``; else
            ``gauge``.
        attributes: names of the attributes of its numbers, without that of the job.

    Example:
        >>> STEP_TIME.name, STEP_TIME.unit, STEP_TIME.prometheus_name
        ('statelake.step.time', 's', 'statelake_step_time_seconds_total')
    """

    name: str
    kind: Kind
    unit: str
    about: str
    attributes: tuple[str, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """Its name as Prometheus spells it, with the unit, and ``_total`` of a counter."""
        return (
            prometheus_label(self.name)
            + _SUFFIXES.get(self.unit, "")
            + ("_total" if self.kind == "counter" else "")
        )

    def of(self, value: float, *values: str) -> Point:
        """A number of it, with the values of its attributes in their order."""
        return Point(self, float(value), dict(zip(self.attributes, values, strict=True)))


def prometheus_label(name: str) -> str:
    """The name of an attribute as Prometheus spells it.

    Example:
        >>> prometheus_label("statelake.file.kind")
        'statelake_file_kind'
    """
    return name.replace(".", "_")


@dataclass(frozen=True)
class Point:
    """A number of a metric."""

    metric: Metric
    value: float
    attributes: Mapping[str, str] = field(default_factory=dict)


# -- all micro-batches on main -----------------------------------------------------------------------------------------

CHECKPOINTS = Metric(
    "statelake.checkpoints", "counter", "{checkpoint}", "Micro-batches that were committed on main"
)
ROWS_IN = Metric("statelake.rows.in", "counter", "{row}", "Rows that came from a source", (SOURCE,))
ROWS_OUT = Metric("statelake.rows.out", "counter", "{row}", "Rows that were staged for a sink", (SINK,))
ROWS_REFUSED = Metric(
    "statelake.rows.refused",
    "counter",
    "{row}",
    "Rows that became dead letters, because they could not be read or taken",
)
ROWS_LATE = Metric(
    "statelake.rows.late",
    "counter",
    "{row}",
    "Rows that came behind the watermark of their source",
    (SOURCE,),
)
ROWS_TOO_LATE = Metric(
    "statelake.rows.too_late",
    "counter",
    "{row}",
    "Rows that an operator dropped or emitted to a side output, because they came later than it waits",
    (OPERATOR,),
)
ROWS_AFTER_PARTITION = Metric(
    "statelake.rows.after_partition",
    "counter",
    "{row}",
    "Rows that came after their time partition had been run",
)
ROWS_JUDGED = Metric(
    "statelake.rows.judged", "counter", "{row}", "Rows that a rule by row judged", (RULE, OTHERWISE)
)
ROWS_BROKEN = Metric(
    "statelake.rows.broken", "counter", "{row}", "Rows that break a rule by row", (RULE, OTHERWISE)
)
STEP_TIME = Metric(
    "statelake.step.time", "counter", "s", "Time that a step of micro-batches took, up to the commit", (STEP,)
)
STATE_WRITTEN = Metric(
    "statelake.state.written",
    "counter",
    "By",
    "Size of the files of changes that an operator wrote",
    (OPERATOR,),
)

SUBTASK_RETRIES = Metric(
    "statelake.subtask.retries",
    "counter",
    "{attempt}",
    "Attempts of an operator's subtasks that failed before one that was committed; by OpenTelemetry only",
    (OPERATOR,),
)

# -- the newest micro-batch, and the head of main ----------------------------------------------------------------------

HEAD_ID = Metric("statelake.head.id", "gauge", "{checkpoint}", "Id of the head of main")
HEAD_TIME = Metric(
    "statelake.head.time", "gauge", "s", "When the attempt that committed the head began, since 1970"
)
HEAD_AGE = Metric("statelake.head.age", "gauge", "s", "How long ago that was")
BATCH_ID = Metric(
    "statelake.batch.id", "gauge", "{checkpoint}", "Id of the newest micro-batch on the path of the head"
)
BATCH_TIME = Metric("statelake.batch.time", "gauge", "s", "When its attempt began, since 1970")
BATCH_AGE = Metric("statelake.batch.age", "gauge", "s", "How long ago that was")
BATCH_ROWS_IN = Metric(
    "statelake.batch.rows_in", "gauge", "{row}", "Rows that came into the newest micro-batch"
)
BATCH_ROWS_REFUSED = Metric(
    "statelake.batch.rows_refused",
    "gauge",
    "{row}",
    "Rows of the newest micro-batch that became dead letters",
)
BATCH_DURATION = Metric(
    "statelake.batch.duration",
    "gauge",
    "s",
    "Time that a step of the newest micro-batch took, up to the commit",
    (STEP,),
)
FUNCTION = Metric(
    "statelake.function.value",
    "gauge",
    "",
    "What a metric of a function's MetricGroup said in the newest micro-batch, summed over subtasks",
    (FUNCTION_METRIC,),
)
WATERMARK_TIME = Metric(
    "statelake.watermark.time", "gauge", "s", "The watermark of a source, an event time since 1970", (SOURCE,)
)
WATERMARK_AGE = Metric(
    "statelake.watermark.age",
    "gauge",
    "s",
    "Lag of event time: how far the watermark is behind the clock",
    (SOURCE,),
)

# -- state -------------------------------------------------------------------------------------------------------------

STATE_ENTRIES = Metric(
    "statelake.state.entries",
    "gauge",
    "{entry}",
    "Entries of a keyed state, as far as known: of the head, or of its last compaction",
    (OPERATOR, STATE),
)
STATE_SIZE = Metric(
    "statelake.state.size",
    "gauge",
    "By",
    "Size of the files that hold the keyed state of an operator",
    (OPERATOR,),
)
STATE_PART = Metric(
    "statelake.state.part",
    "gauge",
    "By",
    "Part of that size that a keyed state takes, by the sizes of the columns of states; not by OpenTelemetry",
    (OPERATOR, STATE),
)
STATE_FILES = Metric(
    "statelake.state.files",
    "gauge",
    "{file}",
    "Files that reading the keyed state of an operator takes",
    (OPERATOR, FILE_KIND),
)
STATE_SKEW = Metric(
    "statelake.state.skew",
    "gauge",
    "1",
    "Skew of key groups: stored rows of the fullest subtask of an operator, as a multiple of the mean",
    (OPERATOR,),
)
TIMERS_PENDING = Metric(
    "statelake.timers.pending",
    "gauge",
    "{timer}",
    "Timers that an operator keeps, where they are counted",
    (OPERATOR,),
)
TIMERS_NEXT = Metric(
    "statelake.timers.next",
    "gauge",
    "s",
    "When the first timer of an operator is due, since 1970: by event time, or by the clock",
    (OPERATOR, TIME_DOMAIN),
)

# -- health ------------------------------------------------------------------------------------------------------------

STATUS = Metric(
    "statelake.status", "gauge", "", "1 for what statelake status says of the job, else 0", (HEALTH,)
)
UNPUBLISHED = Metric(
    "statelake.unpublished",
    "gauge",
    "{checkpoint}",
    "Checkpoints of the head's path that a sink has not seen",
)
DEAD_LETTERS = Metric(
    "statelake.dead_letters", "gauge", "{row}", "Dead letters of the head's path that were not sent again"
)
FILES_MISSING = Metric(
    "statelake.files.missing",
    "gauge",
    "{file}",
    "Files that the head needs and that are gone, or of another size",
)
FILES_WAITING = Metric(
    "statelake.files.waiting",
    "gauge",
    "{file}",
    "Files before the sources that no batch reads yet, as while they are copied",
)
TIMERS_DUE = Metric(
    "statelake.timers.due", "gauge", "{timer}", "Timers that a run now would fire although no row came"
)
TIMERS_DUE_TIME = Metric("statelake.timers.due_time", "gauge", "s", "For how long the first of them is due")
NEW_DATA = Metric(
    "statelake.new_data",
    "gauge",
    "",
    "1 where a source has new data that no checkpoint read, else 0",
    (SOURCE,),
)
LAG_FILES = Metric(
    "statelake.lag.files",
    "gauge",
    "{file}",
    "Files of a source that no checkpoint read to its end",
    (SOURCE,),
)
LAG_ROWS = Metric(
    "statelake.lag.rows", "gauge", "{row}", "Rows of a source that no checkpoint read", (SOURCE,)
)
LAG_SIZE = Metric(
    "statelake.lag.size",
    "gauge",
    "By",
    "Size of the files of a source that no checkpoint read to their ends",
    (SOURCE,),
)
LAG_TIME = Metric(
    "statelake.lag.time",
    "gauge",
    "s",
    "How long the first data waits that no checkpoint read",
    (SOURCE,),
)
LAG_PARTITIONS = Metric(
    "statelake.lag.partitions", "gauge", "{partition}", "Time partitions that are over and were not run"
)

METRICS: tuple[Metric, ...] = tuple(one for one in list(vars().values()) if isinstance(one, Metric))
"""All of them, in the order of this page."""


def by_metric(points: Iterable[Point]) -> dict[Metric, list[Point]]:
    """Points by their metric, in the order of the list; metrics without a point are left out."""
    groups: dict[Metric, list[Point]] = {metric: [] for metric in METRICS}
    for point in points:
        groups[point.metric].append(point)
    return {metric: own for metric, own in groups.items() if own}
