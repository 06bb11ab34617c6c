"""``DeltaStateTable``: a Delta table that shows a keyed state, row for row, and follows the head.

A publish is one commit, with transaction id ``<root id>/<job>/<name>`` and version = checkpoint id: the file with the
new rows, and for each file that held rows of their keys the same file again with a deletion vector; or, with
``deletion_vectors=False``, rewritten without them. It is made for exactly the version that was looked at. Commits of
others that only rearrange rows are followed; any that changed rows since the last publish stops with
``TableChangedError``. Decision 0059.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import CommitFailedError, SinkError, SinkIdentityError, TableChangedError
from state_engine.core.types.spark_types import spark_schema
from state_engine.published.base import PublishedTable, StateTable, TableChange, TableColumns, TableTarget
from state_engine.published.key_columns import (
    hashes_in,
    key_hashes,
    may_hold,
    read_columns,
    same_rows,
    sorted_with_hashes,
)
from state_engine.sinks.delta_tables import canonical, plain_problems, short_schema
from state_engine.storage.delta.action_json import Action, recorded_rows, uri_of
from state_engine.storage.delta.commit_ends import OvertakenError, TransactionTakenError
from state_engine.storage.delta.deletion_vectors import INLINE_BYTES, inline, read_vector, written
from state_engine.storage.delta.kernel import DeltaKernel, TableFacts, TableFiles, Transaction
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.files import join, normal_uri, write_parquet
from state_engine.storage.parquet_reading import OpenParquet, open_parquet
from state_engine.storage.state.changelog import KeyHashes

OWNER = "statelake.published"
"""Property of a table: application id of whom it belongs to."""
ROWS_OF_A_FILE = 200_000
SMALL_BYTES, SMALL_FILES = 2**25, 16
"""From so many files below this size on, they are put together."""
DELETED_SHARE = 0.2
"""A file of whose rows so many are deleted is rewritten."""
_ATTEMPTS = 10


@dataclass(frozen=True)
class DeltaStateTable(StateTable):
    """A Delta table that shows a keyed state; made on the first publish.

    Args:
        path: local path or URI of the table.
        deletion_vectors: whether rows go by deletion vectors, which readers must know (Spark, polars); without them,
            the files that held the rows are rewritten, for readers that do not (delta-rs).
        adopt: whether a table that is there, and belongs to nobody or to another job, is taken over.

    Example:
        >>> DeltaStateTable("/data/balances").options()
        {'deletion_vectors': True, 'adopt': False}
    """

    path: str
    deletion_vectors: bool = True
    adopt: bool = False
    kind = SinkKind.DELTA_STATE.value

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", normal_uri(self.path))

    @property
    def place(self) -> str:
        return self.path

    def options(self) -> dict[str, Any]:
        return {"deletion_vectors": self.deletion_vectors, "adopt": self.adopt}


@dataclass(frozen=True)
class _Hits:
    """Rows of one file that go.

    Attributes:
        add: what the log says of the file.
        gone: positions of rows that went before.
        positions: of the rows.
    """

    add: Action
    gone: BitMap64
    positions: BitMap64

    @property
    def vector(self) -> BitMap64:
        """Positions of all rows that do not count afterwards."""
        return self.gone | self.positions


class DeltaStateTarget(TableTarget):
    """Writes Delta tables that show a state."""

    def __init__(self, kernel: DeltaKernel) -> None:
        self._kernel = kernel
        self._ours: dict[str, int] = {}

    # -- looking ---------------------------------------------------------------------------------------------------

    def shown(self, table: PublishedTable) -> int | None:
        inspected = self._kernel.inspect(table.place, table.app)
        if inspected is None:
            return None
        facts, seen = inspected
        self._check_owner(table, facts)
        self._check_unchanged(table, facts.version)
        return seen

    def check_columns(self, table: PublishedTable, columns: TableColumns) -> None:
        facts = self._kernel.facts(table.place)
        if facts is not None:
            _check_fits(table, facts, columns)

    def content(self, table: PublishedTable, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        files = self._files(table)
        for add in files.adds:
            rows = _rows_left(files.uri, add, columns.schema)
            yield from rows.to_batches()

    # -- writing ---------------------------------------------------------------------------------------------------

    def create(self, table: PublishedTable, columns: TableColumns) -> None:
        vectors = table.options.get("deletion_vectors", True)
        properties = {OWNER: table.app, "delta.enableDeletionVectors": str(bool(vectors)).lower()}
        self._kernel.create_table(table.place, columns.schema, properties=properties)

    def adopt(self, table: PublishedTable, columns: TableColumns, *, own: bool = False) -> None:
        files = self._files(table)
        _check_fits(table, files.facts, columns)
        properties = {OWNER: table.app}
        if table.options.get("deletion_vectors", True):
            properties["delta.enableDeletionVectors"] = "true"
        self._commit(table, files, [], transaction=_accepted(table, files), properties=properties)

    def accept(self, table: PublishedTable) -> None:
        files = self._files(table)
        self._commit(table, files, [], transaction=_accepted(table, files))

    def apply(
        self,
        table: PublishedTable,
        columns: TableColumns,
        change: TableChange,
        *,
        since: int,
        checkpoint_id: int,
    ) -> None:
        for left in reversed(range(_ATTEMPTS)):
            files = self._files(table)
            self._check_owner(table, files.facts)
            if files.transaction >= checkpoint_id:
                return
            self._check_unchanged(table, files.facts.version)
            if files.transaction != since:
                raise CommitFailedError(
                    f"table '{table.name}': {table.place} shows checkpoint {files.transaction} and not {since}: "
                    "another runner published meanwhile. Nothing was written; run again"
                )
            try:
                self._commit_change(table, files, columns, change, checkpoint_id)
                return
            except TransactionTakenError:
                return
            except OvertakenError:
                if not left:
                    raise

    def replace(
        self,
        table: PublishedTable,
        columns: TableColumns,
        rows: Iterable[pa.RecordBatch],
        *,
        checkpoint_id: int,
    ) -> None:
        self.create(table, columns)
        files = self._files(table)
        _check_fits(table, files.facts, columns)
        if files.transaction > checkpoint_id:
            raise SinkError(
                f"table '{table.name}': {table.place} shows checkpoint {files.transaction}, which this root does not "
                "have: it was put back from a backup. Publish to a new table, or delete this one"
            )
        again = files.transaction == checkpoint_id
        transaction = _accepted(table, files) if again else Transaction(table.app, checkpoint_id)
        owner = {} if files.facts.properties.get(OWNER) == table.app else {OWNER: table.app}
        actions = [*(_removed(add) for add in files.adds), *self._new_files(table, rows, columns)]
        self._commit(table, files, actions, transaction=transaction, properties=owner)

    def tidy(self, table: PublishedTable, columns: TableColumns) -> int:
        files = self._files(table)
        small = [add for add in files.adds if int(add["size"]) < SMALL_BYTES]
        chosen = small if len(small) >= SMALL_FILES else []
        chosen += [add for add in files.adds if add not in chosen and _deleted_share(add) > DELETED_SHARE]
        if not chosen:
            return 0
        rows = (b for add in chosen for b in _rows_left(files.uri, add, columns.schema).to_batches())
        actions = [*(_removed(add) for add in chosen), *self._new_files(table, rows, columns)]
        for action in actions:
            next(iter(action.values()))["dataChange"] = False
        self._commit(table, files, actions)
        return len(chosen)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _files(self, table: PublishedTable) -> TableFiles:
        files = self._kernel.files_of(table.place, table.app)
        if files is None:
            raise SinkError(
                f"table '{table.name}': {table.place} is gone. Nothing was written; the next run builds it from the "
                "state"
            )
        return files

    def _check_owner(self, table: PublishedTable, facts: TableFacts) -> None:
        owner = facts.properties.get(OWNER)
        if owner == table.app:
            return
        whose = f"belongs to '{owner}'" if owner else "is not one that a state was published to"
        raise SinkIdentityError(
            f"table '{table.name}': {table.place} {whose}. Nothing was written. Publish to another table; or, where "
            "this job takes it over, say so with adopt=True: its rows are then compared with the state"
        )

    def _check_unchanged(self, table: PublishedTable, version: int) -> None:
        """Refuse where somebody else changed rows since our last commit."""
        if self._ours.get(table.place) == version:
            return
        log = DeltaLog(table.place)
        for number in reversed(log.versions):
            commit = log.commit(number)
            if {table.app, _accepting(table)} & commit.transactions.keys():
                break
            if commit.changes_data:
                raise TableChangedError(
                    f"table '{table.name}': version {number} of {table.place}, {commit.operation or 'a change'} by "
                    f"{commit.maker or 'an unknown writer'}, changed rows that the state published. Nothing was "
                    f"written. {table.ways_out}"
                )
        self._ours[table.place] = version

    def _commit_change(
        self,
        table: PublishedTable,
        files: TableFiles,
        columns: TableColumns,
        change: TableChange,
        checkpoint_id: int,
    ) -> None:
        hits = list(_hits(files, columns, change))
        if table.options.get("deletion_vectors", True):
            actions, written_files = _marked(files.uri, hits)
        else:
            actions, written_files = self._rewritten(table, files, columns, hits), []
        actions += self._new_files(table, change.rows.to_batches(), columns)
        transaction = Transaction(table.app, checkpoint_id)
        self._commit(table, files, actions, transaction=transaction, written_files=written_files)

    def _commit(
        self,
        table: PublishedTable,
        files: TableFiles,
        actions: Sequence[Action],
        *,
        transaction: Transaction | None = None,
        properties: dict[str, str] | None = None,
        written_files: Sequence[str] = (),
    ) -> None:
        known = {add["path"] for add in files.adds}
        added = (action["add"]["path"] for action in actions if "add" in action)
        new = [unquote(path) for path in added if path not in known]
        self._ours[table.place] = self._kernel.commit_upon(
            files,
            actions,
            transaction=transaction,
            properties=properties,
            written=[*new, *written_files],
        )

    def _rewritten(
        self, table: PublishedTable, files: TableFiles, columns: TableColumns, hits: Sequence[_Hits]
    ) -> list[Action]:
        actions: list[Action] = []
        for hit in hits:
            actions.append(_removed(hit.add))
            rows = _rows_but(files.uri, hit.add, columns.schema, hit.vector)
            if rows.num_rows:
                actions.append(self._new_file(table, rows, columns))
        return actions

    def _new_files(
        self, table: PublishedTable, rows: Iterable[pa.RecordBatch], columns: TableColumns
    ) -> list[Action]:
        return [self._new_file(table, part, columns) for part in _parts(rows)]

    def _new_file(self, table: PublishedTable, rows: pa.Table, columns: TableColumns) -> Action:
        name = f"part-{uuid4().hex}.parquet"
        stored = sorted_with_hashes(rows.cast(columns.schema), columns.key)
        file = write_parquet(stored, join(table.place, name))
        return {
            "add": {
                "path": quote(name),
                "partitionValues": {},
                "size": file.bytes,
                "modificationTime": _now_ms(),
                "dataChange": True,
                "stats": f'{{"numRecords": {rows.num_rows}, "tightBounds": true}}',
            }
        }


def _accepting(table: PublishedTable) -> str:
    """The application of commits of ours that bring a table to no other checkpoint."""
    return f"{table.app}/accepted"


def _accepted(table: PublishedTable, files: TableFiles) -> Transaction:
    return Transaction(_accepting(table), files.facts.version + 1)


def _check_fits(table: PublishedTable, facts: TableFacts, columns: TableColumns) -> None:
    """Refuse a table with other columns, or with rules that plain files break."""
    problems = plain_problems(facts)
    if facts.properties.get("delta.enableChangeDataFeed") == "true":
        problems.append(
            "a change data feed (delta.enableChangeDataFeed=true), which deletion vectors leave out"
        )
    if facts.properties.get("delta.appendOnly") == "true":
        problems.append("delta.appendOnly=true")
    if problems:
        raise SinkError(
            f"table '{table.name}': {table.place} cannot show a state because of {'; '.join(problems)}. Nothing was "
            "written. Take that back, or publish to a table without"
        )
    wanted = spark_schema(columns.schema)
    if canonical(facts.schema) != canonical(wanted):
        raise SinkError(
            f"table '{table.name}': {table.place} has the columns {short_schema(facts.schema)}, the state has "
            f"{short_schema(wanted)}. Nothing was written. Publish to another table, or delete this one: the next run "
            "builds it from the state"
        )


def _hits(files: TableFiles, columns: TableColumns, change: TableChange) -> Iterator[_Hits]:
    """The rows that a change takes away or replaces, file by file."""
    parts = [change.cleared, change.deleted.select(columns.key), change.rows.select(columns.key)]
    wanted = KeyHashes.of(np.concatenate([key_hashes(part, columns.key) for part in parts]))
    replaced = change.rows.select(columns.identity)
    for add in files.adds:
        uri = uri_of(add, files.uri)
        file = _opened(uri, add)
        if not may_hold(file, wanted):
            continue
        places = np.flatnonzero(wanted.hold(hashes_in(file, columns.key, columns.schema)))
        gone = _vector(files.uri, add) if len(places) else BitMap64()
        places = np.array([p for p in places.tolist() if p not in gone], np.int64)
        if not len(places):
            continue
        rows = read_columns(file, columns.identity, columns.schema).take(pa.array(places))
        doomed = same_rows(rows, change.cleared, columns.key)
        doomed |= same_rows(rows, change.deleted, columns.identity)
        doomed |= same_rows(rows, replaced, columns.identity)
        if doomed.any():
            yield _Hits(add, gone, BitMap64(places[doomed].tolist()))


def _marked(table: str, hits: Sequence[_Hits]) -> tuple[list[Action], list[str]]:
    """Actions that take rows away by deletion vectors, and the file of these if they do not stand in the log."""
    actions = [_removed(hit.add) for hit in hits]
    counts = [_rows_in(table, hit.add) for hit in hits]
    left = [(hit.add, rows, hit.vector) for hit, rows in zip(hits, counts, strict=True)]
    left = [(add, rows, vector) for add, rows, vector in left if len(vector) < rows]
    vectors = [vector for _, _, vector in left]
    descriptors = [inline(vector) for vector in vectors]
    files: list[str] = []
    if sum(one["sizeInBytes"] for one in descriptors) > INLINE_BYTES:
        descriptors, path = written(table, vectors)
        files = [path]
    for (add, rows, _), descriptor in zip(left, descriptors, strict=True):
        actions.append(_added_again(add, rows, descriptor))
    return actions, files


def _rows_in(table: str, add: Action) -> int:
    """Rows of a file, deleted ones included."""
    left = recorded_rows(add)
    return _opened(uri_of(add, table), add).metadata.num_rows if left is None else left + _deleted(add)


def _deleted(add: Action) -> int:
    return int((add.get("deletionVector") or {}).get("cardinality", 0))


def _removed(add: Action) -> Action:
    extra = {"deletionTimestamp": _now_ms(), "dataChange": True, "extendedFileMetadata": True}
    return {"remove": _kept(add, "deletionVector") | extra}


def _added_again(add: Action, rows: int, descriptor: Action) -> Action:
    """A file of so many rows, deleted ones included, with another deletion vector."""
    stats = f'{{"numRecords": {rows}, "tightBounds": false}}'
    extra = {"dataChange": True, "deletionVector": descriptor, "stats": stats}
    return {"add": _kept(add, "modificationTime") | extra}


def _kept(add: Action, more: str) -> Action:
    """What stays of an action on a file, whatever becomes of it, and one field more."""
    names = ("path", "partitionValues", "size", "tags", "baseRowId", "defaultRowCommitVersion", more)
    return {name: add[name] for name in names if add.get(name) is not None}


def _vector(table: str, add: Action) -> BitMap64:
    """Positions of the rows of a file that do not count."""
    descriptor = add.get("deletionVector")
    return read_vector(table, descriptor) if descriptor else BitMap64()


def _rows_left(table: str, add: Action, schema: pa.Schema) -> pa.Table:
    """The rows of a file that count."""
    return _rows_but(table, add, schema, _vector(table, add))


def _rows_but(table: str, add: Action, schema: pa.Schema, gone: BitMap64) -> pa.Table:
    """The rows of a file without those at some positions."""
    rows = read_columns(_opened(uri_of(add, table), add), schema.names, schema)
    if not gone:
        return rows
    mask = np.ones(rows.num_rows, bool)
    mask[np.fromiter(gone, np.int64, len(gone))] = False
    return rows.filter(pa.array(mask))


def _opened(uri: str, add: Action) -> OpenParquet:
    return open_parquet(uri, size=int(add["size"]), of="a published table")


def _deleted_share(add: Action) -> float:
    left = recorded_rows(add)
    return _deleted(add) / (left + _deleted(add)) if left is not None and left + _deleted(add) else 0.0


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows in portions of a file each."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= ROWS_OF_A_FILE:
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
    if count:
        yield pa.Table.from_batches(waiting)


def _now_ms() -> int:
    return int(time.time() * 1000)
