"""The rows of a stream or slice, wherever they are: ``DriverRows``, ``TaskRows`` or ``SparkRows``.

A source returns a table where the driver read the rows, ``TaskRows`` where tasks read them with Arrow, and a DataFrame
where Spark does (``Given``). Nobody but this module asks which: others call the methods of ``Rows``, or ``match`` and
``either``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from state_engine.core.types.ddl import quoted
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_parsing import to_type
from state_engine.spark.placement import Placement, limits_of, placement_of
from state_engine.spark.spark_names import F, T
from state_engine.spark.tasks import ArrowFunction, DriverTables, FramePartitions, TaskInput, mapped_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A = TypeVar("A")
Read = Callable[[int, Sequence[str]], Iterator[pa.RecordBatch]]
"""Gives the rows of one task, by its number, with only these columns."""


class Rows(ABC):
    """Rows, and who reads them."""

    @property
    @abstractmethod
    def struct(self) -> T.StructType:
        """Names and types of all columns, as Spark has them."""

    @abstractmethod
    def arrow_type(self, name: str) -> pa.DataType:
        """Type of a column in Arrow."""

    @abstractmethod
    def as_frame(self, spark: SparkSession) -> DataFrame:
        """As a DataFrame."""

    @property
    def table(self) -> pa.Table | None:
        """As a table, where the driver has them."""
        return None

    @property
    def task_rows(self) -> TaskRows | None:
        """As what tasks read with Arrow, where it is they who do."""
        return None

    def mapped(
        self,
        spark: SparkSession,
        run: ArrowFunction,
        schema: T.StructType | str,
        *,
        columns: Sequence[str],
    ) -> DataFrame:
        """What a function makes of the rows of every task, where they are read, with only these columns."""
        return mapped_in_arrow(_selected(self.as_frame(spark), columns), run, schema)

    def by_task(self, spark: SparkSession, columns: Sequence[str]) -> TaskInput[pa.Table | None]:
        """Some columns, for tasks that each take a part of the rows, whichever it is."""
        return FramePartitions(_selected(self.as_frame(spark), columns), _table_of)


@dataclass(frozen=True)
class DriverRows(Rows):
    """A few rows, which the driver has.

    Attributes:
        rows: the rows.
        here: whether the driver also works on them itself, where they pass through to a sink.
    """

    rows: pa.Table
    here: bool = False

    @cached_property
    def struct(self) -> T.StructType:
        return T.StructType.fromJson(spark_schema(self.rows.schema))

    def arrow_type(self, name: str) -> pa.DataType:
        return self.rows.schema.field(name).type

    def as_frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.rows, schema=self.struct)

    @property
    def table(self) -> pa.Table | None:
        return self.rows

    def by_task(self, spark: SparkSession, columns: Sequence[str]) -> TaskInput[pa.Table | None]:
        return DriverTables([self.rows.select(columns)], self.here or limits_of(spark).in_process)


@dataclass(frozen=True)
class TaskRows(Rows):
    """Rows that tasks read with Arrow: no row of them goes through Spark unless DataFrame code asks for it.

    Attributes:
        schema: of the rows, hidden columns included.
        tasks: how many read them.
        read: gives the rows of a task; it is pickled for the tasks.
        scan: gives the same rows as a DataFrame that Spark reads; None where only ``read`` can.
        near: whether they are in files on a disk, so that reading them again costs less than a shuffle.
    """

    schema: pa.Schema
    tasks: int
    read: Read
    scan: Callable[[], DataFrame] | None = None
    near: bool = False

    @cached_property
    def struct(self) -> T.StructType:
        return T.StructType.fromJson(spark_schema(self.schema))

    def arrow_type(self, name: str) -> pa.DataType:
        return self.schema.field(name).type

    def as_frame(self, spark: SparkSession) -> DataFrame:
        if self.scan is not None:
            return self.scan()
        return self.mapped(spark, iter, self.struct, columns=self.schema.names)

    @property
    def task_rows(self) -> TaskRows | None:
        return self

    def mapped(
        self,
        spark: SparkSession,
        run: ArrowFunction,
        schema: T.StructType | str,
        *,
        columns: Sequence[str],
    ) -> DataFrame:
        read, names = self.read, tuple(columns)

        def read_and_run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tasks = (task for batch in batches for task in batch.column(0).to_pylist())
            yield from run(rows for task in tasks for rows in read(task, names))

        return spark.range(0, self.tasks, 1, max(self.tasks, 1)).mapInArrow(read_and_run, schema)


@dataclass(frozen=True)
class SparkRows(Rows):
    """Rows that Spark reads."""

    rows: DataFrame

    @cached_property
    def struct(self) -> T.StructType:
        return self.rows.schema

    def arrow_type(self, name: str) -> pa.DataType:
        return to_type(self.struct[name].dataType, parameter=f"column '{name}'").arrow

    def as_frame(self, spark: SparkSession) -> DataFrame:
        return self.rows


Given: TypeAlias = "DataFrame | TaskRows | pa.Table"
"""Rows as a source returns them."""


def rows_of(given: Given, spark: SparkSession) -> Rows:
    """Rows as a source returned them, under the limits of a session."""
    if isinstance(given, pa.Table):
        rows = DriverRows(given)
        place = placement_of(limits_of(spark), rows=given.num_rows, held_bytes=given.nbytes)
        return rows if place is Placement.DRIVER else SparkRows(rows.as_frame(spark))
    return given if isinstance(given, TaskRows) else SparkRows(given)


def match(
    given: Given,
    *,
    table: Callable[[pa.Table], A],
    frame: Callable[[DataFrame], A],
    tasks: Callable[[TaskRows], A] | None = None,
) -> A:
    """What one of three functions returns, by who reads the rows; ``tasks`` may be left out where it is never they."""
    if isinstance(given, pa.Table):
        return table(given)
    if isinstance(given, TaskRows):
        assert tasks is not None
        return tasks(given)
    return frame(given)


def either(
    spark: SparkSession,
    given: Given,
    *,
    table: Callable[[pa.Table], A],
    frame: Callable[[DataFrame], A],
) -> A:
    """What one of two functions returns: for a table that the driver has, or for any other rows as a DataFrame."""
    return match(given, table=table, tasks=lambda rows: frame(rows.as_frame(spark)), frame=frame)


def all_tables(parts: Sequence[Given]) -> list[pa.Table] | None:
    """The tables, where all parts are tables that the driver has; else None."""
    tables = [part for part in parts if isinstance(part, pa.Table)]
    return tables if len(tables) == len(parts) else None


def batched(values: Iterable[A], size: int) -> Iterator[list[A]]:
    """Lists of at most so many, in order."""
    several = iter(values)
    while some := list(islice(several, size)):
        yield some


def _selected(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    return rows.select(*[F.col(quoted(name)) for name in columns])


def _table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    filled = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(filled) if filled else None
