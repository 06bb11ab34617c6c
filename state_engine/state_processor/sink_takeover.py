"""``SinkTakeover``: the rows in the table of a keyed sink become its state, where the head does not know that state.

    a keyed SqlSink of an earlier version   a row replaced the one with its key in the table, and was forgotten
    a sink that left the code and is back   its table stayed as it was, and its state was left behind
    a restore that kept the table           to a checkpoint that does not know the state

So the table itself is read once, as the rows that were last:

    read     the rows of the table, by the columns that the sink, or its state, had
    write    they are entries of the state ``row`` of the sink's operator (``entry_writer``)
    commit   one row of kind ``transform`` upon the head, which adds the operator and names the table
    publish  the table belongs to the job from then on; its rows are compared with the state, and stay

A crash before the row leaves files that nobody lists; after it, the next run publishes. Checkpoints before the row do
not know the state. Flink has no counterpart. Decision 0065.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType as SparkStruct

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.updates import TakeOverTables
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import PUT
from state_engine.core.types.ddl import quoted
from state_engine.core.types.type_parsing import to_type
from state_engine.job.declared_states import declared_states
from state_engine.job.graph import PublishedNode, declared_key
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.job.typed_by_input import TypedByInput
from state_engine.operations.head_operations import HeadOperations
from state_engine.publishing.publication import Publication
from state_engine.queries.state_rows import OP, UPDATED_AT, VALUE, StateForm, state_rows
from state_engine.sinks.base import WRITE_ID
from state_engine.sinks.sql import target_of, wrote
from state_engine.sources.output_type import OutputType
from state_engine.state_processor.entry_writer import (
    Counts,
    EntryWriter,
    OperatorEntries,
    WrittenEntries,
    check_given,
)
from state_engine.state_tables.states import last_knowing, published_in, state_of, without_superseded
from state_engine.state_tables.table_form import TableForm

_LOG = logging.getLogger(__name__)


def unknown_sinks(job: StatefulJob, head: CheckpointRow) -> list[PublishedNode]:
    """The keyed sinks of a job whose state a checkpoint does not know."""
    return [
        node for node in job.published.values() if node.sink_key and head.operator(node.operator.uid) is None
    ]


@dataclass(frozen=True)
class SinkTakeover:
    """Takes over the tables of one job."""

    job: StatefulJob
    tables: JobTables
    publication: Publication
    spark: SparkSession

    def run(self, history: History, operations: Callable[[], HeadOperations]) -> CheckpointRow | None:
        """Take over what is to be taken over; the row that says so, None where there is nothing.

        Args:
            history: all rows of the job; what the head staged is published.

        Raises:
            StaleParentError: the job went on meanwhile; nothing was done.
        """
        head = history.head
        former = self._former(history, head) if head is not None else []
        if head is None or not former:
            return None
        writer = EntryWriter(self.spark, self.tables.layout)
        written = [self._written(writer, node, operator, head) for node, operator in former]
        shown = TakeOverTables([node.recorded.staged() for node, _ in former])
        row = writer.commit(
            written, shown, operations=operations(), tables=self.tables, history=history, head=head
        )
        for node, _ in former:
            _LOG.info(
                "job '%s': the table of sink '%s' shows a state from checkpoint %s on, which holds its rows",
                self.job.name,
                node.name,
                row.checkpoint_id,
                extra={"job": self.job.name, "checkpoint_id": row.checkpoint_id, "sink": node.name},
            )
        return row

    # -- which -----------------------------------------------------------------------------------------------------

    def _former(
        self, history: History, head: CheckpointRow
    ) -> list[tuple[PublishedNode, OperatorCheckpoint]]:
        """Keyed sinks whose state the head does not know, with the operators that hold what is in their tables."""
        path = history.main_path
        known = (
            (node, self._published(node, history) or self._staged(node, path))
            for node in unknown_sinks(self.job, head)
        )
        return [(node, operator) for node, operator in known if operator is not None]

    def _published(self, node: PublishedNode, history: History) -> OperatorCheckpoint | None:
        """The operator as a checkpoint last knew it, where the table shows its state."""
        state = node.recorded
        if not any(one.key == state.key for row in history.main_path for one in published_in(row)):
            return None
        known = state_of(last_knowing(history, state), state.operator, state.state)
        if known is None or not self.publication.tables.is_there(state):
            return None
        operator, _ = known
        self._check_key(node, KeySchema.recorded(operator.key_schema, operator.key_type).names)
        return replace(
            operator.unwritten(),
            parallelism=self.job.parallelism_of(node.operator),
            max_parallelism=self.job.max_parallelism,
            bases=[],
            next_timers_ms={},
            entries={},
        )

    def _staged(self, node: PublishedNode, path: Sequence[CheckpointRow]) -> OperatorCheckpoint | None:
        """The operator for the outputs that a sink of an earlier version wrote; typed as these were."""
        staged = self.publication.places.last_staged(without_superseded(path), node.recorded)
        if staged is None or not wrote(staged):
            return None
        self._check_key(node, target_of(staged).key)
        return self._operator(node, staged)

    def _check_key(self, node: PublishedNode, before: Sequence[str]) -> None:
        if before and set(before) != set(node.sink_key):
            raise ConfigurationError(
                f"job '{self.job.name}', sink '{node.name}': its table holds a row for each {list(before)}, and key= "
                f"says {list(node.sink_key)} now. Run the job once with the key that it had, or give the sink another "
                "name and another table"
            )

    # -- read and write --------------------------------------------------------------------------------------------

    def _written(
        self, writer: EntryWriter, node: PublishedNode, operator: OperatorCheckpoint, head: CheckpointRow
    ) -> WrittenEntries:
        """The rows of a table as entries of its state, in files that nobody lists yet."""
        what = f"job '{self.job.name}', sink '{node.name}'"
        schema = next(one for one in operator.states if one.name == node.state)
        columns = TableForm.of(operator, schema, map_key=node.map_key).columns
        batches = self.publication.tables.content(node.recorded, columns)
        rows = pa.concat_tables(
            [columns.schema.empty_table(), *(pa.Table.from_batches([b]) for b in batches)]
        )
        frame = _state_frame(self.spark.createDataFrame(rows), node.sink_key, StateForm.of(schema), head)
        entries = state_rows(
            frame, StateForm.of(schema), node.sink_key, clock_ms=head.clock_ms, what=what
        ).withColumn(OP, F.lit(PUT))
        given = OperatorEntries(operator, entries, partial(_checked, tuple(operator.states)))
        if not rows.num_rows:
            return WrittenEntries(given, [], [], {})
        return writer.write(given, what=what, doing="the rows of its table")

    def _operator(self, node: PublishedNode, staged: StagedSink) -> OperatorCheckpoint:
        """The operator as its first checkpoint records it, without files; typed as the sink's outputs were."""
        kind = _recorded_type(staged)
        function = node.operator.function
        assert isinstance(function, TypedByInput)
        bound = replace(node.operator, function=function.bound(kind))
        types = dict(zip(kind.columns.names, kind.columns.types, strict=True))
        key = declared_key(node.operator) or DeclaredKey(
            node.sink_key, tuple(types[name] for name in node.sink_key)
        )
        return OperatorCheckpoint(
            uid=node.operator.uid,
            parallelism=self.job.parallelism_of(node.operator),
            max_parallelism=self.job.max_parallelism,
            key_schema=str(key.schema),
            states=list(declared_states(self.job, bound, {}).values()),
            changelog=[],
            bases=[],
            changed_entries=0,
            key_type=key.schema.declared_text,
        )


def _recorded_type(staged: StagedSink) -> OutputType:
    """What a sink's outputs were, without the column that named attempts."""
    recorded = SparkStruct.fromJson(json.loads(staged.schema))
    fields = [field for field in recorded.fields if field.name != WRITE_ID]
    columns = to_type(SparkStruct(fields), parameter=f"columns of sink '{staged.name}'")
    return OutputType.of(columns)


def _state_frame(rows: DataFrame, key: Sequence[str], form: StateForm, head: CheckpointRow) -> DataFrame:
    """Rows of the table with the columns of the state as one, whatever they are called."""
    names = [quoted(name) for name in rows.columns if name not in key]
    columns = [F.col(quoted(name)) for name in key]
    value = F.struct(*map(F.col, names)).alias(VALUE)
    frame = rows if VALUE in key else rows.select(*columns, value)
    if not form.event_time:
        return frame
    written_ms = head.clock_ms if head.watermark_ms is None else head.watermark_ms
    return frame.withColumn(UPDATED_AT, F.timestamp_millis(F.lit(written_ms)))


def _checked(states: Sequence[StateSchema], table: pa.Table) -> Counts:
    """Refuses rows that cannot be entries; nobody asks how many there are."""
    check_given(states, table)
    return Counter()
