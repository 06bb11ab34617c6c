"""DataFrame code of users, which sees no column of ours and whose rows keep them. Decision 0096.

``visible`` gives the code a DataFrame without hidden columns, whoever reads the rows. ``with_places`` looks at the plan
of the DataFrame that it returns. A plan that treats rows one by one gets the hidden columns back, node by node. A plan
that looks at other rows is refused, and so is an expression that depends on when and where it runs: no result may
depend on the cuts of micro-batches.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from state_engine.core.errors import ConfigurationError
from state_engine.spark.spark_names import F
from state_engine.storage.java_gateway import analyzed_plan, frame_of, java_class, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    JavaObject = Any

_STREAM = "_statelake_stream"
"""Alias of the rows that users' code gets: it marks them in a plan, also where Spark copies that part of the plan."""
_CATALYST = "org.apache.spark.sql.catalyst"

_ROW_BY_ROW = {
    "Project", "Filter", "Generate", "Expand", "SubqueryAlias", "View", "ResolvedHint", "CollectMetrics", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "LateralJoin",
}  # fmt: skip
"""Nodes that make rows of a row of their first child."""
_OPAQUE = {"MapInArrow", "MapInPandas", "ScriptTransformation"}
"""Nodes whose rows are made by code that nobody looks into."""
_OF_ONE_SIDE = {
    "Inner": (0, 1), "Cross": (0, 1), "LeftOuter": (0,), "LeftSemi": (0,), "LeftAnti": (0,), "RightOuter": (1,),
}  # fmt: skip
"""Kinds of joins, with the places of the input of whose rows all their rows are made."""
_STATE = "key_by and a function with state, or an aggregate, see them across micro-batches"
_OTHER_ROWS = {
    "Aggregate": ("an aggregate (groupBy, agg, count, describe)", _STATE),
    "Deduplicate": ("distinct or dropDuplicates", _STATE),
    "Distinct": ("distinct", _STATE),
    "FlatMapGroupsInPandas": ("applyInPandas", _STATE),
    "FlatMapGroupsInArrow": ("applyInArrow", _STATE),
    "LocalLimit": ("limit", "bound a micro-batch by an option of its source, or count rows in state"),
    "Offset": ("offset", "count rows in state"),
    "Tail": ("tail", "count rows in state"),
    "AttachDistributedSequence": ("zipWithIndex", "count rows in state"),
    "Sort": ("a sort", "name the order: order_by=[...] of the source or of transform"),
    "Window": ("a window function", _STATE),
    "Sample": ("sample", "filter by what is in the row, as in where(pmod(xxhash64(id), 100) < 10)"),
    "Intersect": ("intersect", _STATE),
    "Except": ("except or subtract", _STATE),
    "Union": (
        "a union with rows of another table",
        "read that table as a source, and unite the streams: stream.union",
    ),
    "Join": (
        "a join with the stream itself, or one that adds rows of the other table",
        "join it with another table by an inner, left, semi or anti join",
    ),
}
_OF_USERS = {"PythonUDF", "ScalaUDF", "ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"}
"""Expressions that may depend on anything: functions of users, and other tables."""
_BY_VALUE = (100, 101)
"""Types of evaluation of functions that get Python's objects: by pickle, by Arrow. PySpark converts their times by the
zone of the process; functions over columns of pandas or Arrow go by that of the session."""
_TIMESTAMP = re.compile(r'(?:^|[tT]ype":)"timestamp"').search
"""Finds the type in a type's JSON."""
_CLOCKS = {"CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime"}
_RECORDED_CLOCK = (
    "a function has the recorded clock of the micro-batch, ctx.timer_service().current_processing_time()"
)
_LITERAL_OF_TIME = re.compile(r"\b(?:DATE|TIMESTAMP[A-Z_]*) '").search
"""Finds such literals in the SQL text that Spark writes."""
_SPECIAL = re.compile(r"(?i)^[a-z_]+\s*'\s*(?:now|today|tomorrow|yesterday)\b").search
"""Finds literals that Spark's parser completes with the time of the run."""
_OF_THE_DAY = r"(?i)^[\x00-\x20\x7f]*(?:T[0-9]|[0-9]{1,2}:|(?:now|today|tomorrow|yesterday)\b)"
"""Texts from which a cast makes a time of the day on which it runs."""
_TIMES = {"timestamp", "timestamp_ntz", "date"}
_TEXT = re.compile(r'(?:^|:)"string"').search
_NESTED = re.compile(r"^{").search
"""Find types in a type's JSON: texts, and those that have parts."""
_PARSERS = {"JsonToStructs", "CsvToStructs", "XmlToStructs"}
_HOLD_CASTS = {"ParseToTimestamp", "ParseToDate"}
"""``to_timestamp`` and ``to_date``, which stand for a cast where no format is given."""


def visible(rows: DataFrame, hidden: Sequence[str]) -> DataFrame:
    """Rows as users' code sees them: without hidden columns."""
    return rows.drop(*hidden).alias(_STREAM)


@dataclass(frozen=True)
class Placed:
    """What users' code made of the rows.

    Attributes:
        rows: with the hidden columns, or without all of them where the code lost them.
        order: names of further hidden columns, which put rows that became of one row in order.
        mixed: whether such rows may come in any order nevertheless.
    """

    rows: DataFrame
    kept: bool
    order: tuple[str, ...] = ()
    mixed: bool = False


def with_places(made: DataFrame, given: DataFrame, hidden: Sequence[str], *, what: str) -> Placed:
    """The rows that users' code made, with the hidden columns of the rows that they were."""
    plan = analyzed_plan(made)
    carried = _Carrier(given, tuple(hidden), what).carried(plan)
    kept = bool(hidden) and carried is not None and carried.plan is not None
    if hidden and not kept:  # new rows: the plan once more, with the checked times and without hidden columns
        carried = _Carrier(given, (), what).carried(plan)
    if carried is None:
        return Placed(made, kept=False)
    order = carried.order[len(hidden) :]
    return Placed(frame_of(carried.plan, made.sparkSession), kept, order, carried.mixed)


@dataclass(frozen=True)
class _Carried:
    """A plan with the hidden columns.

    Attributes:
        plan: its node; None where the rows are new ones, of code that nobody looks into.
    """

    plan: JavaObject | None
    hidden: tuple[JavaObject, ...]
    order: tuple[str, ...]
    mixed: bool = False


class _Carrier:
    def __init__(self, given: DataFrame, names: tuple[str, ...], what: str) -> None:
        self._given, self._names, self._what = given, names, what
        self._vm = jvm_of(given.sparkSession)
        plan = f"{_CATALYST}.plans.logical"
        self._project, self._filter, self._expand, self._union = (
            java_class(self._vm, f"{plan}.{name}") for name in ("Project", "Filter", "Expand", "Union")
        )
        patterns = java_class(self._vm, f"{_CATALYST}.trees.TreePattern")
        self._of_python = patterns.PYTHON_UDF()
        self._current = patterns.CURRENT_LIKE()
        self._casts = (patterns.CAST(), patterns.RUNTIME_REPLACEABLE(), patterns.TIME_ZONE_AWARE_EXPRESSION())

    def carried(self, plan: JavaObject) -> _Carried | None:
        """The node with the hidden columns; None where it does not read the stream."""
        kind = _kind(plan)
        if kind == "SubqueryAlias" and plan.alias() == _STREAM:
            return self._stream(plan)
        if kind == "WithCTE":
            inline = java_class(self._vm, f"{_CATALYST}.optimizer.InlineCTE")
            return self.carried(inline(True, False).apply(plan))
        children = _list(plan.children())
        below = [self.carried(child) for child in children]
        subqueries = [query for query in _list(plan.subqueries()) if self.carried(query) is not None]
        places = [at for at, one in enumerate(below) if one is not None]
        if subqueries:
            raise self._refused("Join")
        if not places:
            return None
        self._check_expressions(plan)
        plan = self._with_whole_times(plan, kind)
        if kind == "Union":
            return self._of_union(children, [one for one in below if one is not None])
        at = places[0]
        row_by_row = kind in _ROW_BY_ROW or at in _OF_ONE_SIDE.get(_join_type(plan, kind), ())
        if len(places) > 1 or not (row_by_row or kind in _OPAQUE):
            raise self._refused(kind)
        one = below[at]
        assert one is not None
        if self._names and (kind in _OPAQUE or one.plan is None):
            return replace(one, plan=None)
        inputs = [*children[:at], one.plan, *children[at + 1 :]]
        over = replace(one, plan=self._over(plan, kind, one, inputs))
        if kind in ("Generate", "Expand"):
            return self._numbered(over)
        return replace(over, mixed=over.mixed or kind.endswith("Join"))

    def _over(self, plan: JavaObject, kind: str, below: _Carried, inputs: Sequence[JavaObject]) -> JavaObject:
        """The node above such inputs, which gives their hidden columns on."""
        if kind == "Project":
            return self._project(self._seq([*_list(plan.projectList()), *below.hidden]), below.plan)
        if kind == "Expand":
            rows = [self._seq([*_list(row), *below.hidden]) for row in _list(plan.projections())]
            return self._expand(
                self._seq(rows), self._seq([*_list(plan.output()), *below.hidden]), below.plan
            )
        return plan.withNewChildren(self._seq(inputs))

    def _stream(self, plan: JavaObject) -> _Carried:
        """The rows that the code got, with the hidden columns behind the others."""
        if not self._names:
            return _Carried(plan, (), ())
        project = plan.child()
        below = {a.name(): a for a in _list(project.child().output())}
        own = _list(project.projectList())
        if len(own) != len(self._given.columns):
            raise ConfigurationError(
                f"{self._what} reads a metadata column (_metadata), which only some ways to read files have: write "
                "what it says into the files, as a column"
            )
        hidden = tuple(below[name] for name in self._names)
        return _Carried(self._project(self._seq([*own, *hidden]), project.child()), hidden, self._names)

    def _of_union(self, children: Sequence[JavaObject], below: Sequence[_Carried]) -> _Carried:
        names = self._names
        if len(below) < len(children):
            raise self._refused("Union")
        if any(one.plan is None for one in below):
            return replace(below[0], plan=None)
        parts = [
            self._project(self._seq([*_list(child.output()), *one.hidden[: len(names)]]), one.plan)
            for child, one in zip(children, below, strict=True)
        ]
        union = analyzed_plan(frame_of(self._union(self._seq(parts), False, False), self._given.sparkSession))
        output = _list(union.output())
        return _Carried(union, tuple(output[len(output) - len(names) :]), names, mixed=True)

    def _numbered(self, below: _Carried) -> _Carried:
        """With a number that puts the rows that one row became in the order in which they come."""
        if below.mixed or not self._names:
            return below
        name = f"_statelake_n{len(below.order)}"
        numbered = frame_of(below.plan, self._given.sparkSession).withColumn(
            name, F.monotonically_increasing_id()
        )
        plan = analyzed_plan(numbered)
        return _Carried(plan, (*below.hidden, _list(plan.output())[-1]), (*below.order, name))

    def _check_zones(self, plan: JavaObject) -> None:
        """Refuse functions that get or give times in the zone of the process that runs them, where that is not UTC."""
        if not plan.containsPattern(self._of_python):
            return
        for one in chain.from_iterable(map(_nodes, _list(plan.expressions()))):
            if _kind(one) != "PythonUDF" or one.evalType() not in _BY_VALUE:
                continue
            kinds = [one.dataType(), *(child.dataType() for child in _list(one.children()))]
            if any(_TIMESTAMP(kind.json()) for kind in kinds) and (zones := _zones_of_tasks(self._given)):
                raise ConfigurationError(
                    f"{self._what} uses a udf, {one.name()}, of a timestamp: Spark converts its times by the zone of "
                    f"the process, {' or '.join(zones)} where tasks run, so that a row would be another one on another "
                    "machine. Use pandas_udf or SQL's functions, compute it in a function (map, process), or set "
                    "spark.executorEnv.TZ to UTC"
                )

    def _check_literals(self, expression: JavaObject) -> None:
        """Refuse ``TIMESTAMP 'now'`` and its like. The parser made constants of them, and keeps their text."""
        if not _LITERAL_OF_TIME(expression.sql()):  # one call, where a walk takes some for each part
            return
        for one in _nodes(expression):
            is_time = _kind(one) == "Literal" and one.dataType().typeName() in _TIMES
            if is_time and _SPECIAL(text := _text_of(one)):
                raise ConfigurationError(
                    f"{self._what} uses {text}, the time of the run, so that a row would be another one in another "
                    f"run: {_RECORDED_CLOCK}"
                )

    def _check_expressions(self, plan: JavaObject) -> None:
        self._check_zones(plan)
        for expression in _list(plan.expressions()):
            self._check_literals(expression)
        if plan.deterministic() and not plan.containsPattern(self._current):
            return
        for one in chain.from_iterable(map(self._of_a_run, _list(plan.expressions()))):
            way_out = "compute it in a function (map, process) from what is in the row"
            if _kind(one) in _CLOCKS:
                way_out = _RECORDED_CLOCK
            elif _kind(one) == "InputFileName":
                way_out = "write the name into the files, as a column"
            raise ConfigurationError(
                f"{self._what} uses {one.prettyName().lower()}, which depends on when and where it runs, so that a "
                f"row would be another one in another run: {way_out}"
            )

    def _of_a_run(self, expression: JavaObject) -> Iterator[JavaObject]:
        """What in an expression depends on the run by itself."""
        children = _list(expression.children())
        if _kind(expression) in _OF_USERS:
            by_itself = False
        elif expression.deterministic():
            by_itself = not children and expression.containsPattern(self._current)
        else:
            by_itself = all(child.deterministic() for child in children)
        if by_itself:
            yield expression
        yield from chain.from_iterable(map(self._of_a_run, children))

    def _with_whole_times(self, plan: JavaObject, kind: str) -> JavaObject:
        """The node, where no text becomes a time of the day on which it runs, as ``12:30`` or ``today`` would."""
        before = _list(plan.expressions())
        after = [self._whole_time(one) for one in before]
        if all(new is old for new, old in zip(after, before, strict=True)):
            return plan
        if kind == "Project":
            return self._project(self._seq(after), plan.child())
        if kind == "Filter":
            return self._filter(after[0], plan.child())
        raise ConfigurationError(
            f"{self._what} makes times of texts in a node {kind}, where a time of day without a date would get that of "
            "the run: make them in a select, or withColumn, in front of it"
        )

    def _whole_time(self, expression: JavaObject) -> JavaObject:
        """An expression whose casts take such a text for one that is no time."""
        if not any(map(expression.containsPattern, self._casts)):
            return expression
        if _kind(expression) in _HOLD_CASTS:
            cast = expression.replacement()
            made = self._whole_time(cast)
            return expression if made is cast else made
        before = _list(expression.children())
        self._check_texts(expression, before)
        after = [self._whole_time(child) for child in before]
        if _kind(expression) == "Cast" and before[0].dataType().typeName() == "string":
            kind = str(expression.dataType().typeName())
            if kind == "timestamp" or (kind in _TIMES and before[0].foldable()):
                after[0] = self._marked(after[0])
        if all(new is old for new, old in zip(after, before, strict=True)):
            return expression
        return expression.withNewChildren(self._seq(after))

    def _check_texts(self, expression: JavaObject, children: Sequence[JavaObject]) -> None:
        """Refuse what makes times of texts inside of values, which nothing marks."""
        if not _TIMESTAMP(expression.dataType().json()):
            return
        kind = _kind(expression)
        given = children[0].dataType() if kind == "Cast" else None
        if kind in _PARSERS and not expression.options().contains("timestampFormat"):
            way_out = "let it give strings, and cast these, or give it the option timestampFormat"
        elif kind == "VariantGet" or (given is not None and given.typeName() == "variant"):
            way_out = "get a string, and cast it"
        elif given is not None and _NESTED(given.json()) and _TEXT(given.json()):
            way_out = "cast each text by itself, as in transform(texts, t -> try_cast(t AS timestamp))"
        else:
            return
        raise ConfigurationError(
            f"{self._what} makes times of texts inside of values ({expression.dataType().simpleString()}), where a "
            f"time of day without a date would get that of the run: {way_out}"
        )

    def _marked(self, text: JavaObject) -> JavaObject:
        """A text that says what it lacks, so that its cast fails, or gives null where it is a ``try_cast``."""
        of = f"{_CATALYST}.expressions"
        literal, kind = java_class(self._vm, f"{of}.Literal"), text.dataType()
        lacks = literal.create("without a date it depends on the day of the run: $0", kind)
        return java_class(self._vm, f"{of}.RegExpReplace")(text, literal.create(_OF_THE_DAY, kind), lacks)

    def _refused(self, kind: str) -> ConfigurationError:
        words, way_out = _OTHER_ROWS.get(kind, (kind, _STATE))
        return ConfigurationError(
            f"{self._what} uses {words}, which looks at other rows: the result would depend on which rows share a "
            f"micro-batch. A transform treats rows one by one; {way_out}"
        )

    def _seq(self, parts: Sequence[JavaObject]) -> JavaObject:
        return java_class(self._vm, "org.apache.spark.api.python.PythonUtils").toSeq(list(parts))


def _zones_of_tasks(frame: DataFrame) -> list[str]:
    """Time zones of the processes that run functions of Python, other than UTC; asked in a task for each core."""
    context = frame.sparkSession.sparkContext
    tasks = context.defaultParallelism
    return sorted({*context.parallelize(range(tasks), tasks).map(_zone_here).collect()} - {""})


def _zone_here(_: int) -> str:
    return "" if (time.timezone, time.daylight) == (0, 0) else os.environ.get("TZ") or time.tzname[0]


def _nodes(expression: JavaObject) -> Iterator[JavaObject]:
    yield expression
    yield from chain.from_iterable(map(_nodes, _list(expression.children())))


def _text_of(expression: JavaObject) -> str:
    """The SQL text that an expression was parsed from; nothing where it was none."""
    origin = expression.origin()
    parts = (origin.sqlText(), origin.startIndex(), origin.stopIndex())
    if not all(part.isDefined() for part in parts):
        return ""
    text, start, stop = (part.get() for part in parts)
    return str(text)[start : stop + 1]


def _join_type(plan: JavaObject, kind: str) -> str:
    return str(plan.joinType().toString()) if kind == "Join" else ""


def _kind(node: JavaObject) -> str:
    return str(node.getClass().getSimpleName())


def _list(seq: JavaObject) -> list[JavaObject]:
    return [seq.apply(at) for at in range(seq.size())]
