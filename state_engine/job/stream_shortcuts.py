"""What PyFlink's streams have besides operators: partitioning, ``project``, ``print``, ``execute_and_collect``.

``rebalance``, ``shuffle``, ``rescale`` and ``forward`` choose in Flink the channel that an element takes to the next
operator. Here a row goes to the subtask that its key or its place in the total order names, so that a replay sends it
there again: they are accepted so that programs port, they change nothing, and they log that they do not. The same
holds for what tunes Flink's tasks and network: chaining, slots, buffers.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, get_args, overload

import pyarrow as pa

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.names import stored_name
from state_engine.core.operator.element_kinds import ElementChange
from state_engine.core.types.ddl import quoted
from state_engine.core.types.durations import Span
from state_engine.core.types.every_type import StructType
from state_engine.job.declared_aggregates import OneForAll
from state_engine.job.graph import (
    OperatorInput,
    SelectedKey,
    TransformNode,
    declared_columns,
    is_scalar,
    type_in_code,
)
from state_engine.job.stream import Stream
from state_engine.job.windowed_stream import AllWindowedStream
from state_engine.job.windowing import Assigner, WindowTime, windowing
from state_engine.machine.defects import guarded_class
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.row_expectation import Otherwise, RowExpectation, RowRuleLike
from state_engine.operators.windows.window_results import Emit
from state_engine.sinks.foreach_batch import ForeachBatchSink
from state_engine.sources.frames import HIDDEN
from state_engine.sources.output_type import OutputType
from state_engine.sources.stream_columns import ROW_KIND, kinds_of, shown_elements
from state_engine.spark.spark_names import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from state_engine.job.streams import DataStream

_log = logging.getLogger(__name__)


@guarded_class
class StreamShortcuts(Stream):
    """Methods of ``DataStream`` that wire no function of the user's."""

    def window_all(
        self,
        windows: Assigner,
        *,
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        emit: Emit = "final",
        time: WindowTime = "event",
    ) -> AllWindowedStream:
        """Group all rows of the stream by windows: they have one key, so one subtask does it all.

        ``stream.window_all(Tumbling("10 s")).aggregate(n=count())``. Results have no key. Of many rows, make
        aggregates by a key first, and group those here.

        Args:
            windows, lateness, late_to, emit, time: as of ``KeyedStream.window``.

        Raises:
            ConfigurationError: as of ``KeyedStream.window``.
        """
        rows = OperatorInput(self._node, SelectedKey(OneForAll(), BIGINT))
        made = windowing(self._add, rows, windows, lateness=lateness, late_to=late_to, emit=emit, time=time)
        return AllWindowedStream(made)

    def expect(self, name: str, rule: RowRuleLike, otherwise: Otherwise = "warn") -> DataStream:
        """Judge each row by a rule, before the operator or sink behind; rows that break it are counted.

        The rule is judged over columns: no row becomes Python values. A row meets it only where it is true: a null
        breaks it, so write ``amount IS NULL OR amount > 0`` where a null is fine. Updates and deletes are judged as
        inserts are. The report of the run, the output of ``statelake run`` and ``statelake checkpoints``, the SQL
        view ``expectations`` and Dagster say how many rows broke it. Keeps no state. Late rows that
        ``late_to`` takes are not judged.

        Args:
            name: of the rule, and uid of the operator that judges it.
            rule: a condition as SQL, ``"amount > 0 AND currency IN ('EUR', 'USD')"``, of parts that
                mean the same to Spark and DuckDB; or a function from a ``pyarrow.Table`` with rows of one subtask to
                a boolean column, which must judge each row by itself.
            otherwise: ``warn`` counts rows that break it, and they go on. ``drop`` leaves them out. ``dead_letter``
                sets them aside in the table ``dead_letters``, also under ``on_error="fail"``. ``fail`` ends the
                micro-batch with ``GateError``, and nothing of it is committed.

        Raises:
            ConfigurationError: the name is taken; the rule is not a condition on columns of the stream, as far as
                code shows these; or the stream is keyed or broadcast.

        Example:
            >>> from state_engine import FileSource, StatefulJob
            >>> from state_engine.testing import CollectSink, run_in_memory
            >>> job = StatefulJob("payments")
            >>> rows = job.source("rows", FileSource("/in", schema="id bigint, amount bigint"))
            >>> _ = rows.expect("amount_positive", "amount > 0", "drop").sink("out", CollectSink())
            >>> with run_in_memory(job) as run:
            ...     run.process({"rows": [(1, 5), (2, -5)]})
            ...     run.checkpoints()[-1].expectations[0].broken
            {'out': [Row(id=1, amount=5)]}
            1
        """
        check_choice(otherwise, get_args(Otherwise), what=f"otherwise of expectation '{name}'")
        given = self._input()
        if given.key is not None or given.everywhere:
            raise ConfigurationError(
                f"expectation '{name}': rows are judged one by one, before they are partitioned: call expect before "
                "key_by and broadcast"
            )
        if not isinstance(rule, str) and not callable(rule):
            raise ConfigurationError(
                f"expectation '{name}': a rule is SQL text or a function from a pyarrow.Table to a boolean column, "
                f"not {rule!r}"
            )
        expectation = RowExpectation(name, rule, otherwise)
        declared = declared_columns(self._node, type_in_code)
        if declared is not None:
            expectation.check_columns(pa.schema(list(declared.arrow)))
        return self._add((given,), expectation, method="expect", uid=name, output_type=None)

    def expect_or_drop(self, name: str, rule: RowRuleLike) -> DataStream:
        """``expect(name, rule, "drop")``, under the name that Lakeflow's pipelines have for it."""
        return self.expect(name, rule, "drop")

    def expect_or_fail(self, name: str, rule: RowRuleLike) -> DataStream:
        """``expect(name, rule, "fail")``, under the name that Lakeflow's pipelines have for it."""
        return self.expect(name, rule, "fail")

    @abstractmethod
    def _input(self) -> OperatorInput:
        """The stream as the input of an operator."""

    def shuffle(self) -> DataStream:
        """No effect: a row's place in the total order names its subtask. Returns a stream of the same rows."""
        return self._same_rows("shuffle")

    def rebalance(self) -> DataStream:
        """No effect: a row's place in the total order names its subtask. Returns a stream of the same rows."""
        return self._same_rows("rebalance")

    def rescale(self) -> DataStream:
        """No effect: a row's place in the total order names its subtask. Returns a stream of the same rows."""
        return self._same_rows("rescale")

    def forward(self) -> DataStream:
        """No effect: a row's place in the total order names its subtask. Returns a stream of the same rows."""
        return self._same_rows("forward")

    def start_new_chain(self) -> Self:
        """No effect: operators are not chained in one thread. Returns the stream."""
        return self._nothing("start_new_chain")

    def disable_chaining(self) -> Self:
        """No effect: operators are not chained in one thread. Returns the stream."""
        return self._nothing("disable_chaining")

    def slot_sharing_group(self, slot_sharing_group: object) -> Self:
        """No effect: Spark places tasks. Returns the stream."""
        return self._nothing("slot_sharing_group")

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """No effect: rows come in micro-batches. Returns the stream."""
        return self._nothing("set_buffer_timeout")

    def get_name(self) -> str:
        """The name of the operator that makes this stream; its uid where it has none."""
        operator = self._operator("get_name")
        return operator.name or operator.uid

    def project(self, *field_indexes: int) -> DataStream:
        """The fields at these positions, in this order.

        Fields that are called ``f0``, ``f1``, … are called so by their new place, as in a tuple; others keep their
        names.

        Raises:
            ConfigurationError: a position is not a number from 0, there is none, or the stream has bare values.
        """
        if not field_indexes or not all(type(i) is int and i >= 0 for i in field_indexes):
            raise ConfigurationError(f"project takes positions of fields, from 0, not {field_indexes}")
        if is_scalar(self._node):
            raise ConfigurationError("project picks fields of records, and this stream has bare values")
        projection, declared = Projection(field_indexes), declared_columns(self._node)
        made = None if declared is None else OutputType.of(projection.type_of(declared))
        return self._job.stream(TransformNode(self._node, projection, None, made))

    def print(self, sink_identifier: str | None = None) -> PrintSink:
        """Write every element to standard output, once the checkpoint that holds it is committed.

        In the process that runs the job, where Flink prints on its workers; at least once, as any function beside the
        engine. Where there is an identifier, it stands before the element, ``identifier> element``; of a stream that
        changes the kind stands there as well, ``-DRow(id=7)``, as Flink prints ``-D[7]``.
        """
        job, number = self._job, 1
        while f"print_{number}" in job.sinks:
            number += 1
        printed = _Printed(sink_identifier, is_scalar(self._node), declared_columns(self._node))
        name = stored_name(f"print_{number}_of_{job.name}", longest=62)
        sink = ForeachBatchSink(printed, name=name, accepts_changes=True)
        job.stream(self._node).sink(f"print_{number}", sink)
        return PrintSink()

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: None = None, **options: Any
    ) -> CloseableIterator: ...

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, *, limit: int, **options: Any
    ) -> list[Any]: ...

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None, **options: Any
    ) -> CloseableIterator | list[Any]:
        """Run what this stream needs in a state of its own: a ``CloseableIterator`` of its elements, or a list.

        Args:
            job_execution_name: taken for PyFlink's sake; the job has a name.
            limit: give a list of at most so many elements.
            options: as for ``collect``.
        """
        values = self._job.stream(self._node).collect(**options)
        return CloseableIterator(values) if limit is None else values[:limit]

    def _same_rows(self, method: str) -> DataStream:
        self._nothing(method)
        stream = self._job.stream(self._node)
        stream._made_by_operator = False
        return stream

    def _nothing(self, method: str) -> Self:
        _log.info("job '%s': %s() has no effect here: %s", self._job.name, method, _WHY)
        return self


_WHY = "rows go where their key or their place in the total order sends them, in tasks of Spark"


class PrintSink:
    """What ``print`` gives back: names and numbers of subtasks, which Flink's sinks have, mean nothing to it."""

    def name(self, name: str) -> PrintSink:
        """No effect."""
        return self

    def uid(self, uid: str) -> PrintSink:
        """No effect: it has no state."""
        return self

    def set_parallelism(self, parallelism: int) -> PrintSink:
        """No effect: it is called in one process."""
        return self


class CloseableIterator:
    """The elements that ``execute_and_collect`` ran for, one after the other. Mirrors PyFlink's class of this name.

    Example:
        >>> with CloseableIterator([1, 2]) as elements:
        ...     elements.next(), list(elements)
        (1, [2])
    """

    def __init__(self, elements: list[Any]) -> None:
        self._left = iter(elements)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def next(self) -> Any:
        """The next element. Raises StopIteration at the end."""
        return next(self._left)

    def close(self) -> None:
        """Discard the elements that are left; nothing runs after that."""
        self._left = iter(())

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class _Printed:
    def __init__(self, identifier: str | None, scalar: bool, declared: StructType | None) -> None:
        self._before, self._scalar = "" if identifier is None else f"{identifier}> ", scalar
        self._declared = declared

    def __call__(self, rows: pa.Table, checkpoint_id: int) -> None:
        shown = shown_elements(rows, scalar=self._scalar, declared=self._declared)
        kinds = kinds_of(rows) if ROW_KIND in rows.column_names else None
        for place, element in enumerate(shown):
            value = element.value if isinstance(element, ElementChange) else element
            print(f"{self._before}{'' if kinds is None else kinds[place]}{value}")


class Projection:
    """Some of the fields of records, as DataFrame code."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        self._positions = positions

    def __call__(self, rows: DataFrame) -> DataFrame:
        chosen = [F.col(quoted(field)).alias(name) for field, name in self._chosen(rows.columns)]
        return rows.select(*chosen)

    def of_table(self, rows: pa.Table) -> pa.Table:
        """The same where there is no Spark."""
        chosen = {name: rows[field] for field, name in self._chosen(rows.column_names)}
        return pa.table(chosen | {c: rows[c] for c in rows.column_names if c.startswith(HIDDEN)})

    def _chosen(self, columns: Sequence[str]) -> list[tuple[str, str]]:
        names = [c for c in columns if not c.startswith(HIDDEN)]
        return [(names[at], name) for at, name in zip(self._positions, self._names(names), strict=True)]

    def type_of(self, declared: StructType) -> StructType:
        """What elements are behind it: of tuples tuples, of all others Rows."""
        names = self._names(list(declared.names))
        made_by = tuple if declared.made_by is tuple else "row"
        return StructType(names, [declared.types[at] for at in self._positions], made_by)

    def _names(self, names: list[str]) -> list[str]:
        if max(self._positions) >= len(names):
            raise ConfigurationError(f"project{self._positions}: the stream has the fields {names}")
        is_tuple = names == [f"f{at}" for at in range(len(names))]
        return [f"f{place}" if is_tuple else names[at] for place, at in enumerate(self._positions)]

    def __repr__(self) -> str:
        return f"project{self._positions}"
