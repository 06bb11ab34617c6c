"""``DeltaSink``: appends outputs to a Delta table, exactly once, and withdraws them when the head moves away.

Subtasks write Parquet files straight into the table's directory, where no reader sees them; publishing adds them to
the log, and removes withdrawn ones, in one Kernel commit with transaction id ``<root id>/<job>/<sink>`` and version =
checkpoint id. Files that a user has rewritten (OPTIMIZE, UPDATE) cannot be removed by name: with ``lineage=True`` the
rows are found by their column ``_write_id`` instead, and Spark replaces them, in one commit as well. A row that a user
changed or deleted in between goes with its file, and comes back as it was written.

A table with features that Kernel does not honour for plain files (partitions, column mapping, NOT NULL, constraints,
generated or identity columns, …) is written by Spark altogether, see ``spark_writer``.

Kernel's commits do not claim to be blind appends, so a concurrent MERGE or DELETE of a user with a predicate on
non-partition columns may conflict beside a publish and must be retried by its own writer; publishes themselves never
fail that way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.core.errors import (
    CommitUnknownError,
    ConfigurationError,
    SinkError,
    SinkIdentityError,
    StatelakeError,
)
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.column_names import check_delta_names, check_distinct
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.base import (
    DROP_ROWS,
    MAKE_AGAIN,
    Publisher,
    Sink,
    SinkRequest,
    SinkTarget,
    check_shown,
    verify_files,
    with_lineage,
)
from state_engine.sinks.delta_tables import (
    canonical,
    check_plain,
    check_spark_columns,
    check_withdrawals,
    generated_columns,
    has_lineage,
    plain_problems,
    row_rules,
    sql_checks,
)
from state_engine.sinks.keyed import check_keyed
from state_engine.sinks.spark_writer import STAGED, note_of, rows_that_break, write_once
from state_engine.sinks.staging import Staging
from state_engine.spark.catalog import checked_place, location_or_new, register_table
from state_engine.storage.delta.commit_ends import shown
from state_engine.storage.delta.kernel import (
    ENGINE_INFO,
    DeltaKernel,
    FileGroup,
    InactiveFilesError,
    TableFacts,
    Transaction,
    TransactionTakenError,
)
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.locks import table_lock

_LOG = "_delta_log"
_FIRST = "00000000000000000000"

_MAPPED = ", or create the table before the first run, with the property delta.columnMapping.mode = 'name'"


@dataclass(frozen=True)
class DeltaSink(Sink):
    """A Delta table that outputs are appended to; created on first use, with the columns of the output type.

    With ``key`` the table holds the last row of each key instead, see ``DataStream.sink``.

    Args:
        path: local path or URI of the table.
        table: instead of a path, its name in Spark's catalog, ``schema.table`` or ``catalog.schema.table``. Where
            there is none, it is made as an external table in the directory of its schema.
        lineage: whether every row also gets a column ``_write_id``, text, which names the attempt that wrote it: then
            outputs can be withdrawn even after the table was rewritten. Not with ``key``.
        shared: whether the same job of another root may have written to the table, too, or still does. Not with
            ``key``.
        key: columns that identify a row; empty to append.
        sequence: columns that say which row of a key is the last, the greatest; by default the ``sequence`` of the
            stream's ``ChangeFormat``, else the total order.
        ttl: lets rows that nobody wrote for this time leave the table, with the publish after the next compaction; with
            a sequence, deletions are remembered as long.
        adopt: whether an existing table, which belongs to nobody or to another job, is taken over: its rows are
            compared with the last rows of this job, and become those.
        deletion_vectors: of a table with ``key``, see ``DeltaStateTable``.

    Raises:
        ConfigurationError: arguments do not go together.

    Example:
        >>> DeltaSink("/data/latest", key=["id"], sequence=["version"]).key
        ('id',)
    """

    path: str = ""
    lineage: bool = False
    shared: bool = False
    _: KW_ONLY
    key: Sequence[str] = ()
    sequence: Sequence[str] = ()
    ttl: StateTtlConfig | None = None
    adopt: bool = False
    deletion_vectors: bool = True
    table: str = ""
    kind = SinkKind.DELTA.value

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_place("DeltaSink", self.path, self.table))
        check_keyed(self)

    def check_columns(self, columns: pa.Schema, *, name: str) -> None:
        check_distinct(columns.names, what=f"sink '{name}'", of="Delta")
        try:
            check_delta_names(columns, what=f"sink '{name}'", otherwise="" if self.key else _MAPPED)
        except ConfigurationError:
            if self.key or not self._may_be_mapped():
                raise

    def _may_be_mapped(self) -> bool:
        """Whether there may be a table with column mapping, which has any name; the catalog is not asked here."""
        try:
            return bool(self.table) or DeltaLog(self.path).newest() is not None
        except (StatelakeError, OSError, pa.ArrowException):  # from here, the store cannot be reached
            return True

    def place(self, app: str, staging: Staging) -> str:
        return self.location

    @property
    def location(self) -> str:
        """Where the table is now, or is going to be made.

        Raises:
            ConfigurationError: what has that name is not a Delta table, or there is no such schema.
        """
        return location_or_new(self.table) if self.table else self.path

    def check_target(self, columns: pa.Schema, *, name: str, place: str | None) -> None:
        path = self.path or place
        if path is None:
            raise ConfigurationError(f"where {self.table} is, only Spark's catalog knows")
        facts = DeltaLog(path).facts()
        if facts is not None and (place or not _made_empty(path, facts.version)):
            schema = with_lineage(columns, sink=name) if self.lineage else columns
            _check_takes(path, facts, canonical(spark_schema(schema)))

    def prepare(self, request: SinkRequest) -> SinkTarget:
        kernel, schema, write_id = request.kernel, request.schema, request.write_id
        uri = self.location
        if self.lineage:
            schema = with_lineage(schema, sink=request.name)
        kernel.check_store(uri)  # Spark may commit to it
        facts, text = kernel.facts(uri), canonical(spark_schema(schema))
        if facts is not None and not request.known and canonical(facts.schema) != text:
            kernel.join_hooks()
            if _drop_unused(uri, owner_mark(request.app)):
                kernel.forget(uri)
                facts = None
        if facts is None:
            check_delta_names(schema, what=f"sink '{request.name}'", otherwise=_MAPPED)
            kernel.create_table(uri, schema)
            facts = kernel.facts(uri)
            assert facts is not None
        elif not (self.shared or request.known):
            request.refuse_other_roots(DeltaLog(uri).writers(), where=uri)
        if self.table:
            register_table(kernel.spark, self.table, uri)
        kind, directory = self.kind, uri
        checks: tuple[tuple[str, str], ...] = ()
        _check_takes(uri, facts, text)
        if plain_problems(facts):
            kind, directory = SinkKind.DELTA_SPARK.value, join(uri, STAGED, write_id)
            checks = tuple(sql_checks(facts, schema))
        return SinkTarget(
            name=request.name,
            kind=kind,
            uri=uri,
            identity=facts.identity,
            schema=schema,
            schema_text=text,
            directory=directory,
            owner=owner_mark(request.app),
            lineage=write_id if self.lineage else None,
            rules=tuple(row_rules(uri, facts, schema)),
            checks=checks,
        )

    def broken_checks(
        self, kernel: DeltaKernel, target: SinkTarget, files: Sequence[DataFile]
    ) -> dict[str, dict[int, str]]:
        facts = kernel.facts(target.uri)
        return {} if facts is None else rows_that_break(kernel.spark, target, files, generated_columns(facts))


def _check_takes(uri: str, facts: TableFacts, schema_text: str) -> None:
    """Refuse a table that takes no rows with these columns, by the rules of whoever writes to it."""
    (check_spark_columns if plain_problems(facts) else check_plain)(uri, facts, schema_text)


def _drop_unused(uri: str, owner: str) -> bool:
    """Take a table away that the engine made and nobody has used; False, and nothing is done, where it is another.

    A table is made before the first batch runs, so that subtasks know where to write. Where that batch fails and its
    author changes what it emits, the empty table has columns that nobody ever wrote, and would stand in the way.
    Unused means: its log has one entry, which the engine wrote and which lists no file, and all data files that lie in
    its directory are leftovers of the sink itself. Decision 0004.

    Args:
        owner: mark of the sink in the names of its files.
    """
    with table_lock(uri):
        log = open_location(join(uri, _LOG))
        names = list(log.files())
        entries = [n for n in names if not n.startswith(".") and n.endswith(".json")]
        if entries != [f"{_FIRST}.json"] or not _made_empty(uri) or _others(uri, owner):
            return False
        log.inside(f"{_FIRST}.json").delete()  # without it, there is no table
        for name in names:
            with suppress(FileNotFoundError):
                log.inside(name).delete()
        return True


def _made_empty(uri: str, version: int = 0) -> bool:
    """Whether the engine made a table, at its first version, and no row came since."""
    if version:
        return False
    first = DeltaLog(uri).commit(0)
    return ENGINE_INFO in first.maker and not first.added


def _others(uri: str, owner: str) -> bool:
    """Whether files lie there that another sink, or somebody else, has written."""
    paths = [path.split("/") for path in open_location(uri).files()]
    names = [path[-1] for path in paths if _LOG not in path and not path[-1].startswith(".")]
    return any(f"-{owner}-" not in name for name in names)


class LogPublisher(Publisher):
    """What all publishers to Delta tables have in common: the table's log records what was published."""

    def __init__(self, kernel: DeltaKernel) -> None:
        self._kernel = kernel

    def seen(self, uri: str, app: str) -> int:
        return self._kernel.latest_transaction(uri, app) or 0

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        check_published(staged, app, checkpoint_id, active=None)
        entry = DeltaLog(staged.path).transaction(app, checkpoint_id)
        check_shown(staged, {} if entry is None else entry.sizes, checkpoint_id=checkpoint_id)


class DeltaPublisher(LogPublisher):
    """Publishes to Delta tables through Kernel."""

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        facts, seen = same_table(self._kernel, staged, app)
        check_plain(staged.path, facts, staged.schema)
        if seen < checkpoint_id:
            check_withdrawals(staged, facts)
            try:
                if change_once(self._kernel, staged, app, checkpoint_id, [FileGroup(staged.files)]):
                    return
            except InactiveFilesError as error:
                if not has_lineage(staged.schema):
                    raise rewritten(staged, error.paths) from error
                write_once(self._kernel, staged, app, checkpoint_id)
        check_published(staged, app, checkpoint_id, active=self._kernel.active_files)

    def check_withdrawable(self, staged: StagedSink) -> None:
        facts, _ = same_table(self._kernel, staged)
        check_plain(staged.path, facts, staged.schema)
        check_withdrawals(staged, facts)
        check_active(self._kernel, staged, lineage=has_lineage(staged.schema))


def same_table(kernel: DeltaKernel, staged: StagedSink, app: str = "") -> tuple[TableFacts, int]:
    """Facts of the table that files were staged for, and the highest checkpoint that it has of an application."""
    inspected = kernel.inspect(staged.path, app)
    if inspected is None or inspected[0].identity != staged.identity:
        raise SinkIdentityError(
            f"sink '{staged.name}': {staged.path} "
            f"{'is gone' if inspected is None else 'was re-created'} since rows were staged for it. "
            f"Put the old table back; {MAKE_AGAIN}; or {DROP_ROWS}"
        )
    return inspected


def change_once(
    kernel: DeltaKernel, staged: StagedSink, app: str, checkpoint_id: int, add: Sequence[FileGroup]
) -> bool:
    """Add staged files and remove withdrawn ones in one commit; False where the transaction version is in the log.

    Raises:
        InactiveFilesError: withdrawn files are not in the table any more.
        CommitError: the commit failed, or its outcome is unknown and the log does not show it.
    """
    verify_files(staged.path, staged.files, what=f"sink '{staged.name}', checkpoint {checkpoint_id}")
    try:
        kernel.change(
            staged.path,
            add=[group for group in add if group.files],
            remove=[f.path for f in staged.withdrawn],
            transaction=Transaction(app, checkpoint_id),
        )
    except TransactionTakenError:
        return False
    except CommitUnknownError as error:
        if (kernel.latest_transaction(staged.path, app) or 0) < checkpoint_id:
            raise error
        return False
    return True


def check_published(
    staged: StagedSink,
    app: str,
    checkpoint_id: int,
    *,
    active: Callable[[str], Iterable[str]] | None,
) -> None:
    """Refuse where the log entry that took this transaction version does not hold this row's files.

    Args:
        active: gives the files that the table lists, which decide where the log has forgotten the entry; without it,
            such an entry counts as this row's.
    """
    mine, withdrawn = {f.path for f in staged.files}, {f.path for f in staged.withdrawn}
    entry = DeltaLog(staged.path).transaction(app, checkpoint_id)
    if entry is None:
        listed = set(active(staged.path)) if active else mine
        same = mine <= listed and not (active and withdrawn & listed)
    else:
        same = entry.note == note_of(staged) or (mine <= entry.added and withdrawn <= entry.removed)
    if not same:
        raise SinkIdentityError(
            f"sink '{staged.name}': {staged.path} already holds other rows of checkpoint {checkpoint_id} by "
            f"'{app}': a copy of this root, or a re-created job, writes to the same table. Give each its own "
            "table, or restore the checkpoint's parent"
        )


def check_active(kernel: DeltaKernel, staged: StagedSink, *, lineage: bool) -> None:
    """Refuse where files to add are gone, or those to withdraw left the table and nothing else identifies its rows."""
    verify_files(staged.path, staged.files, what=f"sink '{staged.name}'")
    if staged.withdrawn and not lineage:
        gone = {f.path for f in staged.withdrawn} - set(kernel.active_files(staged.path))
        if gone:
            raise rewritten(staged, sorted(gone))


def rewritten(staged: StagedSink, paths: Sequence[str]) -> SinkError:
    """Withdrawn files that a user has rewritten."""
    return SinkError(
        f"sink '{staged.name}': outputs cannot be withdrawn from {staged.path}, because {len(paths)} of their files "
        f"were rewritten or removed there (OPTIMIZE, UPDATE, DELETE?): {shown(paths)}. Keep the outputs with "
        'outputs="keep" (--outputs keep), or put the table back with RESTORE. A DeltaSink with lineage=True does not '
        "depend on files"
    )
