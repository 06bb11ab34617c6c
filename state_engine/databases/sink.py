"""``SqlSink``: outputs into a table of an SQLite or PostgreSQL database, exactly once.

Subtasks stage Parquet files in the job's root. Publishing writes their rows in one transaction of the database,
together with the application's row of the ledger beside the table, see ``ledger``. So either all of a checkpoint is in
the table and in the ledger, or nothing is; a second publish finds the ledger's row and does nothing; and one with other
files under the same number is refused. The row also holds the table's identity, which changes when the sink makes the
table again, and a mark of the table, so that another one under its name is noticed, see ``identity``.

Rows are appended; with ``key``, nothing of this happens: the table shows a state, see ``sinks.keyed``. Plays the part
of the exactly-once sink of Flink's JDBC connector, with a ledger in place of XA transactions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.core.errors import ConfigurationError, SinkError
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.spark_types import spark_schema
from state_engine.databases.target import SqlTarget, check_names, checked_table, checked_url, lineage_of
from state_engine.sinks.base import (
    DROP_ROWS,
    Publisher,
    Sink,
    SinkRequest,
    SinkTarget,
    verify_files,
    with_lineage,
)
from state_engine.sinks.keyed import check_keyed
from state_engine.sinks.staging import Staging, record_target, recorded_target
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import open_recorded

if TYPE_CHECKING:
    from state_engine.databases.sink_table import SinkTable


@dataclass(frozen=True)
class SqlSink(Sink):
    """A table of an SQLite or PostgreSQL database that outputs are appended to; created on first use.

    It has the columns of the output type. With ``key`` it holds the last row of each key instead, see
    ``DataStream.sink``.

    Args:
        url: ``sqlite:////absolute/path`` or ``postgresql://user@host/database``, as SQLAlchemy writes it, without a
            password.
        table: its name.
        key: columns that identify a row; empty to append. An existing table needs a primary key or unique constraint of
            exactly these.
        schema: of the database; None for its default.
        lineage: whether every row also gets a column ``_write_id``, text, which names the attempt and the sink that
            wrote it: then outputs can be withdrawn. Not with ``key``.
        password_env: name of the environment variable that holds the password.
        shared: whether the same job of another root may have written to the table, too, or still does. Not with
            ``key``.
        sequence: columns that say which row of a key is the last, the greatest; by default the ``sequence`` of the
            stream's ``ChangeFormat``, else the total order.
        ttl: lets rows that nobody wrote for this time leave the table, with the publish after the next compaction; with
            a sequence, deletions are remembered as long.
        adopt: with ``key``, whether an existing table, which belongs to nobody or to another job, is taken over: its
            rows are compared with the last rows of this job, and become those.

    Raises:
        ConfigurationError: the URL holds a password, or is of a database that this was not tested with; or arguments do
            not go together.

    Example:
        >>> SqlSink("sqlite:////data/reports.db", "delays", key=["flight"]).key
        ('flight',)
    """

    url: str
    table: str
    key: Sequence[str] | None = None
    schema: str | None = None
    lineage: bool = False
    password_env: str | None = None
    shared: bool = False
    _: KW_ONLY
    sequence: Sequence[str] = ()
    ttl: StateTtlConfig | None = None
    adopt: bool = False
    kind = SinkKind.SQL.value

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checked_url(self.url))
        check_keyed(self)
        checked_table(self.table)

    def check_columns(self, columns: pa.Schema, *, name: str) -> None:
        check_names(self._target(), columns.names, what=f"sink '{name}'")

    def place(self, app: str, staging: Staging) -> str:
        return staging.directory(app, self._target().digest)

    def _target(self) -> SqlTarget:
        return SqlTarget(
            url=self.url,
            table=self.table,
            schema=self.schema,
            lineage=self.lineage,
            password_env=self.password_env,
        )

    def check_target(self, columns: pa.Schema, *, name: str, place: str | None) -> None:
        # loaded by runs and plans that have such a sink only, see ``target``
        from state_engine.databases.sink_table import SinkTable

        target = self._target()
        if target.is_new_file:
            return
        with ExitStack() as stack:
            try:
                table = stack.enter_context(SinkTable(target, f"sink '{name}'").connected())
            except SinkError as error:
                raise ConfigurationError(error.args[0]) from error
            table.check_existing(
                with_lineage(columns, sink=name) if self.lineage else columns, known=place is not None
            )

    def prepare(self, request: SinkRequest) -> SinkTarget:
        name, schema, write_id = request.name, request.schema, request.write_id
        if self.lineage:
            schema = with_lineage(schema, sink=name)
        target = self._target()
        with _connected(target, name, request.app) as table:
            identity = table.prepare(schema, known=request.known)
            rules, checks = table.row_rules(schema)
            if not self.shared:
                request.refuse_other_roots(table.writers(), where=target.shown)
        uri = self.place(request.app, request.staging)
        note = target.to_json()
        record_target(uri, note)
        return SinkTarget(
            name=name,
            kind=SinkKind.SQL.value,
            uri=uri,
            identity=identity,
            schema=schema,
            schema_text=json.dumps({**spark_schema(schema), "target": note}),
            directory=join(uri, write_id),
            owner=owner_mark(request.app),
            lineage=lineage_of(write_id, name) if self.lineage else None,
            rules=tuple(rules),
            checks=tuple(checks),
            shown=target.shown,
        )

    def broken_checks(
        self, kernel: DeltaKernel, target: SinkTarget, files: Sequence[DataFile]
    ) -> dict[str, dict[int, str]]:
        from state_engine.databases.rows import BATCH_ROWS

        what = f"sink '{target.name}'"
        opened = ((f.path, open_recorded(join(target.uri, f.path), f, of=what)) for f in files)
        with _connected(self._target(), target.name) as table:
            return table.broken_checks((path, file.batches(BATCH_ROWS)) for path, file in opened)


class SqlPublisher(Publisher):
    """Publishes to databases, from the files that are staged in a root."""

    def seen(self, uri: str, app: str) -> int:
        note = recorded_target(uri)
        if note is None:
            return 0
        with _connected(SqlTarget.from_json(note), app.rsplit("/", 1)[-1], app) as table:
            return table.seen()

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        target = target_of(staged)
        with _connected(target, staged.name, app) as table:
            if table.is_published(staged, checkpoint_id):
                return
            what = f"sink '{staged.name}', checkpoint {checkpoint_id}"
            if target.key:
                raise SinkError(
                    f"{what}: version 0.2.0 staged rows by key for {target.shown}. This version does not publish "
                    "them. "
                    f"Publish them with 0.2.0: run the job once; or {DROP_ROWS}"
                )
            verify_files(staged.path, staged.files, what=what, footers=True)
            _check_withdrawals(staged, target)
            table.publish(staged, checkpoint_id)

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        with _connected(target_of(staged), staged.name, app) as table:
            table.check_seen(staged, checkpoint_id)

    def loss(self, staged: StagedSink) -> str:
        target = target_of(staged)
        with _connected(target, staged.name) as table:
            loss = table.loss(staged)
        return f"{target.shown} {loss}" if loss else ""

    def accept(self, staged: StagedSink, app: str) -> None:
        with _connected(target_of(staged), staged.name, app) as table:
            table.accept(staged)

    def withdraws(self, staged: StagedSink) -> bool:
        return target_of(staged).lineage

    def check_withdrawable(self, staged: StagedSink) -> None:
        target = target_of(staged)
        _check_withdrawals(staged, target)
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}'")
        with _connected(target, staged.name) as table:
            table.check(staged)
            table.check_withdrawable(staged)


def target_of(staged: StagedSink) -> SqlTarget:
    """The table, recorded beside the columns."""
    return SqlTarget.from_json(json.loads(staged.schema)["target"])


def _check_withdrawals(staged: StagedSink, target: SqlTarget) -> None:
    if not staged.withdrawn or target.lineage:
        return
    raise SinkError(
        f"sink '{staged.name}': outputs cannot be withdrawn from {target.shown}: only a lineage column could identify "
        "its rows (SqlSink(…, lineage=True), from the first row on). Keep the outputs with "
        'outputs="keep" (--outputs keep)'
    )


@contextmanager
def _connected(target: SqlTarget, sink: str, app: str = "") -> Iterator[SinkTable]:
    # loaded by runs that have such a sink only, see ``target``
    from state_engine.databases.sink_table import SinkTable

    with SinkTable(target, f"sink '{sink}'", app).connected() as table:
        yield table
