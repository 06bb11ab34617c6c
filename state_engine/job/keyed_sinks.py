"""Keyed sinks in a graph: an operator keeps the last row of each key, and the sink's table shows its state.

    sink "latest" with key   operator ``sink_latest``, state ``row``, published table "latest"

So all that holds of published tables holds of them: one transaction a checkpoint, restores, policies, repairs. The uid
follows from the sink's name, so state stays with the sink across versions of the job. Plays the part of
``SinkUpsertMaterializer`` in Flink SQL, whose state no table shows. Decision 0065.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.databases.sink import SqlSink
from state_engine.databases.state_table import SqlStateTable
from state_engine.job.typed_by_input import TypedByInput
from state_engine.operators.last_rows import LastRow
from state_engine.sinks.base import Sink
from state_engine.sinks.delta import DeltaSink
from state_engine.sources.output_type import OutputType
from state_engine.state_tables.base import StateTable
from state_engine.state_tables.delta import DeltaStateTable

KeyedSink = DeltaSink | SqlSink


def keyed(sink: Sink) -> KeyedSink | None:
    """The sink, if it holds the last row of each key.

    Example:
        >>> keyed(DeltaSink("/data/rows")), keyed(DeltaSink("/data/latest", key=["id"])).key
        (None, ('id',))
    """
    return sink if isinstance(sink, KeyedSink) and sink.key else None


def uid_of(sink: str) -> str:
    """Uid of the operator of a keyed sink.

    Example:
        >>> uid_of("latest")
        'sink_latest'
    """
    return f"sink_{sink}"


def last_rows(
    name: str, sink: KeyedSink, declared: OutputType | None, of_feeds: str | None = None
) -> TypedByInput:
    """The function of a keyed sink's operator.

    Args:
        declared: type of its stream; None where only rows show it.
        of_feeds: the column that orders the changes of the stream's sources.
    """
    # its names are known, whatever the rows have
    sink.check_columns(pa.schema([(column, pa.null()) for column in sink.key or ()]), name=name)
    function = TypedByInput(partial(_function, name, sink, of_feeds), accepts_changes=True)
    if declared is not None:
        function.bound(declared)  # what does not fit is refused here and now
    return function


def table_of(sink: KeyedSink) -> StateTable:
    if isinstance(sink, SqlSink):
        return SqlStateTable(
            sink.url, sink.table, schema=sink.schema, password_env=sink.password_env, adopt=sink.adopt
        )
    return DeltaStateTable(
        sink.path, deletion_vectors=sink.deletion_vectors, adopt=sink.adopt, table=sink.table
    )


def _function(name: str, sink: KeyedSink, of_feeds: str | None, kind: OutputType) -> LastRow:
    if kind.scalar:
        raise ConfigurationError(
            f"sink '{name}': its stream has bare values, and a {type(sink).__name__} with key= needs rows with named "
            "columns: make rows of them in a map first"
        )
    sink.check_columns(pa.schema(list(kind.columns.arrow)), name=name)
    key = tuple(sink.key or ())
    sequence = (sink.sequence,) if isinstance(sink.sequence, str) else sink.sequence
    if not sequence and of_feeds in kind.columns.names and of_feeds not in key:
        sequence = (of_feeds,)
    try:
        return LastRow(
            kind.columns,
            key=key,
            sequence=sequence,
            of_changes=tuple(sequence) == (of_feeds,),
            ttl=sink.ttl,
            deleted_ttl=sink.ttl if sequence else None,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"sink '{name}': {error}") from None
