"""``DeltaStateTable``: a Delta table that shows a keyed state, row for row, and follows the head.

A publish is one commit, with transaction id ``<root id>/<job>/<name>`` and version = checkpoint id: the file with the
new rows, and for each file that held rows of their keys the same file again with a deletion vector; or, with
``deletion_vectors=False``, rewritten without them. A second transaction id, with ``/write`` at its end, says which
checkpoint of that number it is. The commit is made for exactly the version that was looked at. Commits of others that
only rearrange rows are followed; any that changed rows since the last publish stops with ``TableChangedError``.
Decision 0059.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa

from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import (
    CommitFailedError,
    MissingFilesError,
    RootError,
    SinkError,
    SinkIdentityError,
    TableChangedError,
)
from state_engine.core.types.column_names import check_delta_names, check_distinct
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.delta_tables import (
    as_expectations,
    canonical,
    column_rules,
    plain_problems,
    rules_in,
    short_schema,
)
from state_engine.sinks.row_rules import RowRule, refused_rows
from state_engine.spark.catalog import checked_place, location_or_new, register_table
from state_engine.state_tables.base import (
    KeysInTable,
    PublishedTable,
    ShownCheckpoint,
    StateTable,
    TableChange,
    TableColumns,
    TableTarget,
)
from state_engine.state_tables.delta_erasure import WantedKeys, hits_of, older_files
from state_engine.state_tables.delta_files import (
    FileHits,
    changed_rows,
    deleted_share,
    marked,
    now_ms,
    parts_of,
    remove_action,
    rows_but,
    rows_left,
)
from state_engine.state_tables.key_columns import sorted_with_hashes
from state_engine.storage.delta.action_json import Action, added_file
from state_engine.storage.delta.commit_ends import OvertakenError
from state_engine.storage.delta.kernel import DeltaKernel, TableFacts, TableFiles, Transaction
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.delta.snapshots import LogEntry
from state_engine.storage.stores.files import join, open_location, write_parquet
from state_engine.storage.stores.locks import table_lock

OWNER = "statelake.published"
"""Property of a table: application id of whom it belongs to."""
SMALL_BYTES, SMALL_FILES = 2**25, 16
"""From so many files below this size on, they are put together."""
DELETED_SHARE = 0.2
"""A file of whose rows so many are deleted is rewritten."""
_ATTEMPTS = 10
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeltaStateTable(StateTable):
    """A Delta table that shows a keyed state; made on the first publish.

    Args:
        path: local path or URI of the table.
        deletion_vectors: whether rows go by deletion vectors, which readers must know (Spark, polars); without them,
            the files that held the rows are rewritten, for readers that do not (delta-rs).
        adopt: whether an existing table, which belongs to nobody or to another job, is taken over.
        table: instead of a path, its name in Spark's catalog, see ``DeltaSink``.

    Example:
        >>> DeltaStateTable("/data/balances").options()
        {'deletion_vectors': True, 'adopt': False}
    """

    path: str = ""
    deletion_vectors: bool = True
    adopt: bool = False
    table: str = ""
    kind = SinkKind.DELTA_STATE.value

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_place("DeltaStateTable", self.path, self.table))

    @property
    def place(self) -> str:
        return location_or_new(self.table) if self.table else self.path

    @property
    def shown(self) -> str:
        return self.table or self.path

    def check_names(self, columns: Sequence[pa.Field], *, what: str) -> None:
        check_delta_names(columns, what=what)
        check_distinct([field.name for field in columns], what=what, of="Delta")

    def row_rules(self, schema: pa.Schema, offered: Callable[[], pa.Table]) -> Sequence[RowRule]:
        """What its columns must not hold; a table with other rules is refused, as plain files are written to it."""
        newest = DeltaLog(self.place).newest() if self.adopt else None  # others are made without
        if newest is None:
            return ()
        declared = json.loads(newest.schema)
        problems = rules_in(declared, newest.properties, judged=True)
        _refuse_problems(self.shown, problems, declared, newest.properties)
        return column_rules(declared, schema)

    def options(self) -> dict[str, Any]:
        named = {"table": self.table} if self.table else {}
        return {"deletion_vectors": self.deletion_vectors, "adopt": self.adopt, **named}


class DeltaStateTarget(TableTarget):
    """Writes a Delta table that shows a state."""

    def __init__(self, kernel: DeltaKernel, table: PublishedTable) -> None:
        self._kernel, self.table = kernel, table
        self._seen: tuple[LogEntry | None, str] | None = None
        """The newest entry of the log when it was looked at, and why not all before it was."""
        self._is_named = False
        """Whether the catalog was seen to have the table under its name."""

    # -- looking ---------------------------------------------------------------------------------------------------

    def shown(self, *, changed: bool = False) -> ShownCheckpoint | None:
        inspected = self._kernel.inspect_all(self.table.place, self.table.app, _writing(self.table))
        if inspected is None:
            return None
        facts, transactions = inspected
        _check_owner(self.table, facts.properties)
        shown = _shown_by(self.table, transactions)
        return shown if changed else replace(shown, unseen=self._check_unchanged(facts.version))

    def check_columns(self, columns: TableColumns) -> str:
        facts = self._kernel.facts(self.table.place)
        return "" if facts is None else _check_fits(self.table, facts, columns)

    def content(self, columns: TableColumns) -> Iterator[pa.RecordBatch]:
        files = self._files()
        for add in files.adds:
            rows = rows_left(files.uri, add, columns.schema)
            yield from rows.to_batches()

    # -- writing ---------------------------------------------------------------------------------------------------

    def create(self, columns: TableColumns) -> None:
        vectors = self.table.options.get("deletion_vectors", True)
        properties = {OWNER: self.table.app, "delta.enableDeletionVectors": str(bool(vectors)).lower()}
        self._kernel.create_table(self.table.place, columns.schema, properties=properties)
        self._name()

    def adopt(self, columns: TableColumns) -> None:
        files = self._files()
        if _check_fits(self.table, files.facts, columns):
            raise _other_columns(self.table, files.facts.schema, columns, is_ours=False)
        properties = {OWNER: self.table.app}
        if self.table.options.get("deletion_vectors", True):
            properties["delta.enableDeletionVectors"] = "true"
        transactions = [_accepted(self.table, files), *_shows(self.table, ShownCheckpoint(0))]
        self._commit(files, [], transactions=transactions, properties=properties)

    def accept(self) -> None:
        files = self._files()
        self._commit(files, [], transactions=[_accepted(self.table, files)])

    def apply(
        self, columns: TableColumns, change: TableChange, *, since: ShownCheckpoint, to: ShownCheckpoint
    ) -> None:
        self._name()

        def attempt() -> None:
            files = self._files_at(since, to)
            if files is not None:
                self._commit_change(files, columns, change, to)

        _retried(attempt)

    def replace(
        self,
        columns: TableColumns,
        rows: Iterable[pa.RecordBatch],
        *,
        to: ShownCheckpoint,
        since: ShownCheckpoint | None = None,
    ) -> None:
        files = self._files_anyway(columns) if since is None else self._files_at(since, to)
        if files is None:
            return
        _check_rules(self.table, files.facts)
        is_ours = _is_ours(self.table, files.facts)
        fits = _has_columns(files.facts.schema, columns)
        if not (fits or is_ours):
            raise _other_columns(self.table, files.facts.schema, columns, is_ours=is_ours)
        gone = [remove_action(add) for add in files.adds] if fits else []
        rules = column_rules(files.facts.schema, columns.schema) if fits else []
        self._commit(
            files,
            [*gone, *self._new_files(rows, columns, rules)],
            transactions=_shows(self.table, to),
            properties=None if is_ours else {OWNER: self.table.app},
            schema=None if fits else columns.schema,
        )

    # -- erasing keys ----------------------------------------------------------------------------------------------

    def keys_in(self, columns: TableColumns, keys: pa.Table) -> KeysInTable:
        files, wanted = self._files(), WantedKeys.of(columns, keys)
        hits, older = list(hits_of(files, wanted)), older_files(files, wanted)
        left_ms = [*older.values(), *([now_ms()] if hits else [])]
        if not left_ms:
            return KeysInTable(0, 0)
        kept_until = _moment(max(left_ms) + self._kernel.file_retention_ms(files))
        return KeysInTable(
            rows=sum(len(hit.shown) for hit in hits),
            files=len(hits),
            older_files=len(older),
            kept_until=kept_until,
            remedy=f"VACUUM delta.`{self.table.place}`, from {kept_until:%Y-%m-%d %H:%M:%S} UTC on",
        )

    def erase(self, columns: TableColumns, keys: pa.Table) -> None:
        wanted = WantedKeys.of(columns, keys)

        def attempt() -> None:
            files = self._files()
            _check_owner(self.table, files.facts.properties)
            self._check_unchanged(files.facts.version)
            hits = list(hits_of(files, wanted))
            if not hits:
                return
            actions = self._rewritten(files, columns, hits)
            if any(hit.shown for hit in hits):  # rows that the state did not have
                self._commit(files, actions, transactions=[_accepted(self.table, files)])
            else:
                self._commit(files, _rearranging(actions))

        _retried(attempt)

    def tidy(self, columns: TableColumns) -> int:
        files = self._files()
        small = [add for add in files.adds if int(add["size"]) < SMALL_BYTES]
        chosen = small if len(small) >= SMALL_FILES else []
        chosen += [add for add in files.adds if add not in chosen and deleted_share(add) > DELETED_SHARE]
        if not chosen:
            return 0
        rows = (b for add in chosen for b in rows_left(files.uri, add, columns.schema).to_batches())
        actions = [*(remove_action(add) for add in chosen), *self._new_files(rows, columns)]
        self._commit(files, _rearranging(actions))
        return len(chosen)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _name(self) -> None:
        """See to it that the catalog has a table under the name that the job gave it."""
        name = self.table.options.get("table")
        if name and not self._is_named:
            register_table(self._kernel.spark, name, self.table.place)
            self._is_named = True

    def _files(self) -> TableFiles:
        files = self._kernel.files_of(self.table.place, self.table.app, _writing(self.table))
        if files is None:
            raise SinkError(
                f"table '{self.table.name}': {self.table.place} is gone. Nothing was written; the next run builds it "
                "from the state"
            )
        return files

    def _files_anyway(self, columns: TableColumns) -> TableFiles:
        """A table, whatever it is: one that there is not is made, and so is one whose log cannot be read."""
        try:
            self.create(columns)
            return self._files()
        except (MissingFilesError, RootError):
            self._set_log_aside()
            self.create(columns)
            return self._files()

    def _set_log_aside(self) -> None:
        """Move the log of a damaged table to where no reader looks; its data files belong to no table then."""
        at, aside = open_location(self.table.place), f"_damaged_log-{uuid4().hex}"
        with table_lock(self.table.place):
            for path in list(at.inside("_delta_log").files()):
                file = at.inside(join("_delta_log", path))
                at.inside(aside).make_directory()
                file.move(join(at.path, aside, path.replace("/", "-")))
        self._kernel.forget(self.table.place)
        _LOG.warning(
            "table '%s': the log of %s could not be read. It was moved to %s there, and the table is rebuilt",
            self.table.name, self.table.place, aside, extra={"sink": self.table.name},
        )  # fmt: skip

    def _files_at(self, since: ShownCheckpoint, to: ShownCheckpoint) -> TableFiles | None:
        """A table that is to be brought from one checkpoint to another; None where another runner did so.

        Raises:
            CommitFailedError: it shows neither.
        """
        files = self._files()
        _check_owner(self.table, files.facts.properties)
        shown = _shown_by(self.table, files.transactions)
        if shown.is_same(since):
            unseen = self._check_unchanged(files.facts.version)
            if not unseen or since.unseen:
                return files
            raise CommitFailedError(f"table '{self.table.name}': {unseen}. Nothing was written; run again")
        if shown.checkpoint_id >= to.checkpoint_id:
            return None
        raise CommitFailedError(
            f"table '{self.table.name}': {self.table.place} shows checkpoint {shown.checkpoint_id} and not "
            f"{since.checkpoint_id}: another runner published meanwhile. Nothing was written; run again"
        )

    def _check_unchanged(self, version: int) -> str:
        """Raise TableChangedError if another writer committed since; the reason, if that cannot be determined."""
        entry = self._kernel.newest_entry(self.table.place, version)
        if self._seen is None or entry is None or self._seen[0] != entry:
            self._seen = entry, _look_back(self.table, DeltaLog(self.table.place))
        return self._seen[1]

    def _commit_change(
        self, files: TableFiles, columns: TableColumns, change: TableChange, to: ShownCheckpoint
    ) -> None:
        hits = list(changed_rows(files, columns, change))
        if self.table.options.get("deletion_vectors", True):
            actions, written_files = marked(files.uri, hits)
        else:
            actions, written_files = self._rewritten(files, columns, hits), []
        rules = column_rules(files.facts.schema, columns.schema)
        actions += self._new_files(change.rows.to_batches(), columns, rules)
        self._commit(files, actions, transactions=_shows(self.table, to), written_files=written_files)

    def _commit(
        self,
        files: TableFiles,
        actions: Sequence[Action],
        *,
        transactions: Sequence[Transaction] = (),
        properties: dict[str, str] | None = None,
        schema: pa.Schema | None = None,
        written_files: Sequence[str] = (),
    ) -> None:
        known = {add["path"] for add in files.adds}
        added = (action["add"]["path"] for action in actions if "add" in action)
        new = [unquote(path) for path in added if path not in known]
        version = self._kernel.commit_upon(
            files,
            actions,
            transactions=transactions,
            properties=properties,
            schema=schema,
            written=[*new, *written_files],
        )
        _, unseen = self._seen or (None, "")
        entry = self._kernel.newest_entry(self.table.place, version)
        self._seen = entry, "" if transactions else unseen

    def _rewritten(self, files: TableFiles, columns: TableColumns, hits: Sequence[FileHits]) -> list[Action]:
        actions: list[Action] = []
        for hit in hits:
            actions.append(remove_action(hit.add))
            rows = rows_but(files.uri, hit.add, columns.schema, hit.vector)
            if rows.num_rows:
                actions.append(self._new_file(rows, columns))
        return actions

    def _new_files(
        self, rows: Iterable[pa.RecordBatch], columns: TableColumns, rules: Sequence[RowRule] = ()
    ) -> list[Action]:
        return [self._new_file(part, columns, rules) for part in parts_of(rows)]

    def _new_file(self, rows: pa.Table, columns: TableColumns, rules: Sequence[RowRule] = ()) -> Action:
        for row, why in refused_rows(rules, rows).items():
            raise _refused_row(self.table, rows.slice(row, 1).to_pylist()[0], why)
        name = f"part-{uuid4().hex}.parquet"
        stored = sorted_with_hashes(rows.cast(columns.schema), columns.key)
        file = write_parquet(stored, join(self.table.place, name))
        stats = {"numRecords": rows.num_rows, "tightBounds": True}
        return added_file(name, size=file.bytes, stats=json.dumps(stats))


def shown_in_log(
    table: PublishedTable, columns: TableColumns, *, changed: bool = False
) -> ShownCheckpoint | None:
    """The checkpoint that a table shows, without Java; see ``TableTarget.shown``.

    Raises:
        TableChangedError: also where somebody dropped a column that identifies its rows.
    """
    log = DeltaLog(table.place)
    newest = log.newest()
    if newest is None:
        return None
    _check_owner(table, newest.properties)
    unseen = "" if changed else _look_back(table, log)
    there = {field["name"] for field in json.loads(newest.schema)["fields"]}
    gone = [name for name in columns.identity if name not in there]
    if gone and not changed:
        raise TableChangedError(
            f"table '{table.name}': {table.place} has no column '{gone[0]}', which identifies its rows: somebody "
            f"dropped it. Rebuild the table from the state with {table.rebuild}; or delete it, and the next run "
            "builds it"
        )
    seen = {app: newest.transactions.get(app, 0) for app in (table.app, _writing(table))}
    return replace(_shown_by(table, seen), unseen=unseen)


def _check_owner(table: PublishedTable, properties: Mapping[str, str]) -> None:
    owner = properties.get(OWNER)
    if owner == table.app:
        return
    whose = f"belongs to '{owner}'" if owner else "is not one that a state was published to"
    raise SinkIdentityError(
        f"table '{table.name}': {table.place} {whose}. Nothing was written. Publish to another table; or, if "
        "this job takes it over, set adopt=True: its rows are then compared with the state"
    )


def _look_back(table: PublishedTable, log: DeltaLog) -> str:
    """Raise TableChangedError if another writer committed since; the reason, if that cannot be determined."""
    oldest = None
    for number in reversed(log.versions):
        try:
            commit = log.commit(number)
        except FileNotFoundError:  # cleaned up this moment
            break
        if {table.app, _accepting(table)} & commit.transactions.keys():
            return ""
        if commit.changes_data:
            raise TableChangedError(
                f"table '{table.name}': version {number} of {table.place}, {commit.operation or 'a change'} by "
                f"{commit.maker or 'an unknown writer'}, changed rows that the state published. Nothing was "
                f"written. {table.ways_out}"
            )
        oldest = number
    if oldest == 0:
        return ""
    return (
        f"the log of {table.place} was cleaned up and does not reach back to the last publish, so what others "
        "changed since cannot be seen"
    )


def _retried(attempt: Callable[[], None]) -> None:
    """Retry a commit after each conflict."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            attempt()
            break
        except OvertakenError:
            if not left:
                raise


def _rearranging(actions: Sequence[Action]) -> Sequence[Action]:
    """Actions that change no row that readers see."""
    for action in actions:
        next(iter(action.values()))["dataChange"] = False
    return actions


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _accepting(table: PublishedTable) -> str:
    """The application of commits of ours that bring a table to no other checkpoint."""
    return f"{table.app}/accepted"


def _writing(table: PublishedTable) -> str:
    """The application whose version is the number of the write that made the checkpoint which a table shows."""
    return f"{table.app}/write"


def _shows(table: PublishedTable, to: ShownCheckpoint) -> list[Transaction]:
    return [Transaction(table.app, to.checkpoint_id), Transaction(_writing(table), to.write_number)]


def _shown_by(table: PublishedTable, transactions: Mapping[str, int]) -> ShownCheckpoint:
    return ShownCheckpoint(transactions[table.app], transactions[_writing(table)])


def _accepted(table: PublishedTable, files: TableFiles) -> Transaction:
    return Transaction(_accepting(table), files.facts.version + 1)


def _check_fits(table: PublishedTable, facts: TableFacts, columns: TableColumns) -> str:
    """Refuse a table with other columns, or with rules that plain files break; what a replace changes in them."""
    _check_rules(table, facts)
    return changed_columns(table, facts.schema, columns, is_ours=_is_ours(table, facts))


def changed_columns(table: PublishedTable, old: Action, columns: TableColumns, *, is_ours: bool) -> str:
    """What a replace changes in the columns of a table; raises SinkError where it cannot."""
    if _has_columns(old, columns):
        return ""
    new = spark_schema(columns.schema)
    if any(_type_of(old, name) != _type_of(new, name) for name in columns.identity):
        raise _other_columns(table, old, columns, is_ours=is_ours)
    if _is_within(old, new):
        return f"the state has more columns than the table: {short_schema(new)}"
    if _is_within(new, old):
        return f"the state has fewer columns than the table: {short_schema(new)}"
    raise _other_columns(table, old, columns, is_ours=is_ours)


def _is_ours(table: PublishedTable, facts: TableFacts) -> bool:
    return facts.properties.get(OWNER) == table.app


def _check_rules(table: PublishedTable, facts: TableFacts) -> None:
    _refuse_problems(
        f"table '{table.name}': {table.place}",
        plain_problems(facts, judged=True),
        facts.schema,
        facts.properties,
    )


def _refuse_problems(
    what: str, problems: Sequence[str], schema: Action, properties: Mapping[str, str]
) -> None:
    """Refuse a table for these, and where its rows may not go; raises SinkError."""
    problems = list(problems)
    if properties.get("delta.enableChangeDataFeed") == "true":
        problems.append(
            "a change data feed (delta.enableChangeDataFeed=true), which deletion vectors leave out"
        )
    if properties.get("delta.appendOnly") == "true":
        problems.append("delta.appendOnly=true")
    if problems:
        rules = as_expectations(schema, properties)
        in_the_job = "".join(f'; .expect("{name}", {sql!r}, "dead_letter")' for name, sql in rules.items())
        raise SinkError(
            f"{what} cannot show a state because of {'; '.join(problems)}. Nothing was written. Take that back, or "
            "publish to a table without"
            + (f". The stream before the sink can have the rules of the table{in_the_job}" if rules else "")
        )


def _refused_row(table: PublishedTable, row: dict[str, Any], why: str) -> SinkError:
    return SinkError(
        f"table '{table.name}': {table.place} does not take the row {row}: {why}. Nothing was written. Drop that rule "
        "of the table, or publish to a table without"
    )


def _has_columns(schema: Action, columns: TableColumns) -> bool:
    return canonical(schema) == canonical(spark_schema(columns.schema))


def _other_columns(table: PublishedTable, old: Action, columns: TableColumns, *, is_ours: bool) -> SinkError:
    way = "Publish to another table, or delete this one: the next run builds it from the state"
    if is_ours:
        way = f"Rebuild the table with the columns of the state: {table.rebuild}; or publish to another table"
    return SinkError(
        f"table '{table.name}': {table.place} has the columns {short_schema(old)}, the state has "
        f"{short_schema(spark_schema(columns.schema))}. Nothing was written. {way}"
    )


def _type_of(schema: Action, name: str) -> Any:
    return next((field["type"] for field in schema["fields"] if field["name"] == name), None)


def _is_within(narrow: Any, wide: Any) -> bool:
    """Whether a type in Spark's JSON form is another one but for fields of records that it lacks."""
    if isinstance(narrow, str) or isinstance(wide, str) or narrow["type"] != wide["type"]:
        return bool(narrow == wide)
    if narrow["type"] == "struct":
        return all(
            _is_within(field["type"], _type_of(wide, field["name"]) or "") for field in narrow["fields"]
        )
    inner = ("elementType", "keyType", "valueType")
    return all(_is_within(narrow[name], wide[name]) for name in inner if name in narrow)
