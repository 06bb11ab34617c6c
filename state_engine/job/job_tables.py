"""``JobTables``: the Delta tables of one job, made when they are first needed and checked before they are used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, OperatorCheckpoint
from state_engine.core.checkpoints.row_outputs import staged_sinks
from state_engine.core.checkpoints.table_names import listed_in_tables
from state_engine.core.errors import (
    CommitFailedError,
    MissingFilesError,
    StateMigrationError,
)
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.stored_form import added_fields, columns_text, grown
from state_engine.core.types.type_parsing import from_spark_json
from state_engine.core.types.type_text import type_from_text
from state_engine.sinks.base import verify_files
from state_engine.sinks.staging import located
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.delta.commit_actions import FileGroup
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import (
    DEAD_LETTERS_SCHEMA,
    OPERATOR_STATE_SCHEMA,
    STATE_TABLE_PROPERTIES,
    WRITE_ID,
    JobLayout,
    changelog_schema,
)
from state_engine.storage.state.base import BASE_PARTITIONS, base_schema
from state_engine.storage.stores.locks import table_lock
from state_engine.storage.stores.store_clock import StoreClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BY_WRITE_ID = pa.schema([WRITE_ID])


class JobTables:
    """Tables of one job under one root.

    Args:
        spark: session; needed only to add a column for a new state.
    """

    def __init__(self, spark: SparkSession, kernel: DeltaKernel, layout: JobLayout, root_id: str) -> None:
        self._spark, self._kernel, self.layout = spark, kernel, layout
        self.clock = StoreClock(layout.root)
        self.log = CheckpointLog(kernel, layout, root_id, clock=self.clock, verify=self.verify_files)
        self._ready: set[str] = set()
        self._columns: dict[str, pa.DataType] = {}
        self._in_use: set[str] = set()

    def create(self) -> None:
        """Make the table of checkpoints, or check that it is this job's. Raises RootError."""
        if self.layout.checkpoints not in self._ready:
            self.log.create()
            self._ready.add(self.layout.checkpoints)

    def verify_files(self, row: CheckpointRow) -> None:
        """Check that every file of a row exists with its recorded size; raises CommitFailedError."""
        try:
            for uri, files in listed_files(self.layout, row):
                verify_files(uri, files, what=f"checkpoint {row.checkpoint_id}")
        except MissingFilesError as error:
            raise CommitFailedError(
                f"job '{self.layout.job}': the {row.kind} {row.checkpoint_id} (attempt {row.write_id}) was overtaken, "
                f"or began long ago, and its files are no longer those that it wrote: {error}. Nothing was committed; "
                "run again"
            ) from error

    def ensure_operator_state(self) -> None:
        """Make the table of operator state if there is none."""
        self._ensure(self.layout.operator_state, OPERATOR_STATE_SCHEMA)

    def ensure_dead_letters(self) -> None:
        """Make the table of dead letters if there is none."""
        self._ensure(self.layout.dead_letters, DEAD_LETTERS_SCHEMA)
        self._ensure_columns(self.layout.dead_letters, DEAD_LETTERS_SCHEMA)  # a version before wrote fewer

    def ensure_changelog(self, uid: str, key_schema: str, states: Sequence[StateSchema]) -> None:
        """Make an operator's changelog, or add what new states and new fields of states need."""
        schema = changelog_schema(parse_ddl(key_schema).arrow, _columns(states))
        self._ensure_state(self.layout.changelog(uid), schema, _BY_WRITE_ID)

    def ensure_base(self, uid: str, key_schema: str, states: Sequence[StateSchema]) -> None:
        """Make the table of an operator's bases, or add what new states and new fields of states need."""
        schema = base_schema(parse_ddl(key_schema).arrow, _columns(states))
        self._ensure_state(self.layout.base(uid), schema, BASE_PARTITIONS)

    def list_base(
        self,
        operator: OperatorCheckpoint,
        files: Sequence[DataFile],
        base_id: str,
        *,
        instead_of: Sequence[DataFile] = (),
    ) -> None:
        """List files of a base, which are in place, in the operator's table; no checkpoint need name them yet."""
        self.ensure_base(operator.uid, operator.key_schema, operator.states)
        groups = [FileGroup([f], {"base_id": base_id, "key_group": f.key_group_min or 0}) for f in files]
        if groups or instead_of:
            uri = self.layout.base(operator.uid)
            self._kernel.change(uri, add=groups, remove=[f.path for f in instead_of])

    def list_changes(
        self,
        uid: str,
        key_schema: str,
        states: Sequence[StateSchema],
        files: Sequence[DataFile],
        write_id: str,
    ) -> int:
        """List files of an operator's changes, which are in place, in its table; no checkpoint need name them yet."""
        self.ensure_changelog(uid, key_schema, states)
        return self._kernel.append(self.layout.changelog(uid), files, partition={"write_id": write_id})

    def list_operator_state(self, files: Sequence[DataFile], write_id: str) -> int:
        """List files of operator state or source positions, which are in place; no checkpoint need name them yet."""
        self.ensure_operator_state()
        return self._kernel.append(self.layout.operator_state, files, partition={"write_id": write_id})

    def _ensure_state(self, uri: str, schema: pa.Schema, partitions: pa.Schema) -> None:
        self._ensure(uri, schema, partitions)
        columns = self._columns_of(uri)
        needed = pa.struct([*schema, *partitions])
        if not _fits(columns, needed) and self._only_left_over(uri):
            self._begin_anew(uri, pa.schema(list(needed)), partitions.names)
            self._columns[uri] = needed
        self._ensure_columns(uri, schema)

    def _begin_anew(self, uri: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Give a table that holds leftovers only other columns, and take its files out of its log, in one commit.

        Kernel cannot replace columns. The table and its properties stay; whoever still reads the old version can.
        """
        from pyspark.sql.types import StructType

        session = self._spark.newSession()
        fields = spark_schema(schema)
        nothing = session.createDataFrame([], StructType.fromJson(fields))
        with table_lock(uri):
            if "timestamp_ntz" in json.dumps(fields):
                _allow_timestamps_without_zone(session, uri)
            writer = nothing.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.partitionBy(*partition_by).save(uri)
            self._kernel.outlasting(uri)

    def _only_left_over(self, uri: str) -> bool:
        """Whether no checkpoint lists a file of a table: attempts that failed made it, and all that is in it."""
        if uri not in self._in_use:
            rows = self.log.load().values()
            if any(files for row in rows for at, files in listed_files(self.layout, row) if at == uri):
                self._in_use.add(uri)
        return uri not in self._in_use

    def _columns_of(self, uri: str) -> pa.DataType:
        if uri not in self._columns:
            facts = self._kernel.facts(uri)
            assert facts is not None
            self._columns[uri] = pa.struct(
                [(f["name"], from_spark_json(f["type"]).arrow) for f in facts.schema["fields"]]
            )
        return self._columns[uri]

    def _ensure_columns(self, uri: str, schema: pa.Schema) -> None:
        columns = self._columns_of(uri)
        needed = grown(columns, pa.struct(list(schema)))
        added = added_fields(columns, needed)
        if added:
            # Kernel adds columns only to tables with column mapping, which other readers of ours do not know
            with table_lock(uri):
                add_columns(self._spark, uri, added)
                self._kernel.outlasting(uri)
            self._columns[uri] = needed

    def _ensure(self, uri: str, schema: pa.Schema, partitions: pa.Schema = _BY_WRITE_ID) -> None:
        if uri not in self._ready:
            self._kernel.create_table(
                uri,
                pa.schema([*schema, *partitions]),
                partition_by=partitions.names,
                properties=STATE_TABLE_PROPERTIES,
            )
            self._ready.add(uri)


def listed_files(layout: JobLayout, row: CheckpointRow) -> Iterator[tuple[str, Sequence[DataFile]]]:
    """The files that a row lists as its own, by the directory that they are in."""
    for table, files in listed_in_tables(row):
        yield layout.table(table), files
    for staged in staged_sinks(row):
        if staged.files:  # a table that shows a state lists none, and may be in a database
            yield located(staged, layout).path, staged.files


def _fits(columns: pa.DataType, needed: pa.DataType) -> bool:
    """Whether a table has nothing but what is needed; it may lack some of it."""
    try:
        return not added_fields(needed, grown(columns, needed))
    except StateMigrationError:
        return False


def _columns(states: Sequence[StateSchema]) -> dict[str, pa.DataType]:
    return {s.column_name: type_from_text(s.type).storage for s in states}


def add_columns(spark: SparkSession, uri: str, added: list[tuple[tuple[str, ...], pa.DataType]]) -> None:
    """Add columns and fields to a table, under whose lock the caller is."""
    text = columns_text(added)
    if "timestamp_ntz" in text.lower():
        _allow_timestamps_without_zone(spark, uri)
    spark.sql(f"ALTER TABLE delta.`{uri}` ADD COLUMNS ({text})")


def _allow_timestamps_without_zone(spark: SparkSession, uri: str) -> None:
    """A table that exists gets such columns only when they are added."""
    feature = "'delta.feature.timestampNtz' = 'supported'"
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ({feature})")
