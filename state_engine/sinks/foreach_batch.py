"""``ForeachBatchSink``: gives the outputs of every checkpoint to a function, **at least once**.

Subtasks stage Parquet files in the job's root; publishing reads them in the driver and calls the function with their
rows and the checkpoint's id. A marker is written when the function has returned:

    <root>/<job>/sinks/<sink>/<name>/done-<checkpoint id>.json

A checkpoint with a marker is not given again, so that the function is normally called once. A crash after the function
has begun and before its marker is written calls it again, with the same rows and the same id: it should ignore an id
that it has seen, or do what may be done twice. What it has done cannot be withdrawn. Mirrors ``foreachBatch`` of
Spark's Structured Streaming, which gives the same promise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.core.errors import ConfigurationError, SinkError, SinkIdentityError
from state_engine.core.names import check_name
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.base import Publisher, Sink, SinkRequest, SinkTarget, verify_files
from state_engine.sinks.spark_writer import note_of
from state_engine.sinks.staging import Staging, read_note, write_note
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.locks import table_lock
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES, open_recorded

_DONE = "done-"

BatchFunction = Callable[[Any, int], object]
"""Takes the rows and the checkpoint's id; what it returns is ignored."""


@dataclass(frozen=True)
class ForeachBatchSink(Sink):
    """A function that is given the outputs of every checkpoint, at least once, in the driver.

    **At least once**: a crash while the function runs, or before its marker is written, gives it the same rows with the
    same id again. For exactly once, use a ``SqlSink``, ``DeltaSink`` or ``FileSink``.

    Args:
        function: ``function(rows, checkpoint_id)``; whatever it raises stops the job, and the next run calls it again.
        name: ``[a-z][a-z0-9_]*``: identifies the function that the rows wait for, in later processes, too; keep it
            when the function changes.
        as_dataframe: whether the rows come as a Spark DataFrame and not as an Arrow table, which is in memory whole.
        accepts_changes: whether the function takes the rows of a stream that changes: then these have a last column
            ``_statelake_row_kind``, with the number of their kind, ``RowKind(number)``.

    Example:
        >>> received = []
        >>> sink = ForeachBatchSink(lambda rows, checkpoint_id: received.append(checkpoint_id), name="example_received")
    """

    function: BatchFunction
    name: str = field(kw_only=True)
    as_dataframe: bool = field(default=False, kw_only=True)
    accepts_changes: bool = field(default=False, kw_only=True)
    kind = SinkKind.FOREACH_BATCH.value

    def __post_init__(self) -> None:
        check_name(self.name, what="function of a ForeachBatchSink")
        if not callable(self.function):
            raise ConfigurationError(f"ForeachBatchSink '{self.name}': {self.function!r} cannot be called")

    def place(self, app: str, staging: Staging) -> str:
        return staging.directory(app, self.name)

    def prepare(self, request: SinkRequest) -> SinkTarget:
        uri = self.place(request.app, request.staging)
        return SinkTarget(
            name=request.name,
            kind=SinkKind.FOREACH_BATCH.value,
            uri=uri,
            identity=self.name,
            schema=request.schema,
            schema_text=json.dumps(spark_schema(request.schema)),
            directory=join(uri, request.write_id),
            owner=owner_mark(request.app),
        )


class ForeachBatchPublisher(Publisher):
    """Calls the functions.

    Args:
        kernel: of the session that makes DataFrames; None for those who only ask what was seen.

    Attributes:
        sinks: of the job's code, by their places: a committed row names a function, and does not hold it.
    """

    def __init__(self, kernel: DeltaKernel | None) -> None:
        self._kernel = kernel
        self.sinks: dict[str, ForeachBatchSink] = {}

    def seen(self, uri: str, app: str) -> int:
        return _newest(uri)

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        with table_lock(staged.path):
            if self._is_done(staged, checkpoint_id):
                return
            _check_withdrawals(staged)
            what = f"sink '{staged.name}', checkpoint {checkpoint_id}"
            verify_files(staged.path, staged.files, what=what, footers=True)
            self._call(staged, checkpoint_id)
            write_note(_marker(staged.path, checkpoint_id), {"files": note_of(staged)})

    def withdraws(self, staged: StagedSink) -> bool:
        return False

    def check_withdrawable(self, staged: StagedSink) -> None:
        _check_withdrawals(staged)
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}'")

    def _is_done(self, staged: StagedSink, checkpoint_id: int) -> bool:
        done, newest = read_note(_marker(staged.path, checkpoint_id)), _newest(staged.path)
        if done == {"files": note_of(staged)}:
            return True
        if done is not None or newest > checkpoint_id:
            raise SinkIdentityError(
                f"sink '{staged.name}': '{staged.identity}' was called for other rows of checkpoint {checkpoint_id}, "
                f"or for checkpoint {newest} without them: the job was re-created in its root. Give this sink, or the "
                "function, another name"
            )
        return False

    def _call(self, staged: StagedSink, checkpoint_id: int) -> None:
        sink = self.sinks.get(staged.path)
        if sink is None:
            raise SinkError(
                f"sink '{staged.name}': rows of checkpoint {checkpoint_id} wait for the function '{staged.identity}', "
                "which this call was not given: run the job, or give it to the call, with its ForeachBatchSink of that "
                "name"
            )
        files = [join(staged.path, f.path) for f in staged.files]
        rows: Any
        if sink.as_dataframe:
            assert self._kernel is not None, "publishing needs a session"
            rows = self._kernel.spark.read.options(**SPARK_VERIFIES).parquet(*files)
        else:
            of = f"sink '{staged.name}', checkpoint {checkpoint_id}"
            rows = pa.concat_tables(
                [open_recorded(join(staged.path, f.path), f, of=of).read() for f in staged.files]
            )
        try:
            sink.function(rows, checkpoint_id)
        except Exception as error:
            raise SinkError(
                f"sink '{staged.name}': the function '{staged.identity}' failed on the rows of checkpoint "
                f"{checkpoint_id}: {type(error).__name__}: {error}. The checkpoint is committed and its rows wait: "
                "repair the function and run again, which gives them to it again"
            ) from error


def _check_withdrawals(staged: StagedSink) -> None:
    if staged.withdrawn:
        raise SinkError(
            f"sink '{staged.name}': calls of the function '{staged.identity}' cannot be withdrawn. Keep its "
            'outputs with outputs="keep" (--outputs keep)'
        )


def _marker(uri: str, checkpoint_id: int) -> str:
    return join(uri, f"{_DONE}{checkpoint_id}.json")


def _newest(uri: str) -> int:
    """The highest checkpoint with a marker; 0 where there is none."""
    at = open_location(uri)
    names = at.names(missing_ok=True)
    ids = [n.removeprefix(_DONE).removesuffix(".json") for n in names if n.startswith(_DONE)]
    # beside a marker may lie one that a crash left half written, under a longer name
    return max((int(i) for i in ids if i.isdigit()), default=0)
