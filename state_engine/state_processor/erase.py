"""``Erasure``: takes keys out of a job's state for good, and says what still holds them.

    transform  all entries and timers of the keys, in every operator keyed by these columns, in one row
    tables     that show their states: the rows go with that row, and then the files that held them (``erase_tables``)
    look       files that older checkpoints need, branches, savepoints, dead letters, sinks (``key_traces``)
    purge      compact, expire the checkpoints that would bring the keys back, delete dead letters, vacuum

A purge removes nothing at once that a reader may still have open: files leave the logs a day after they were expired,
and the disk a day later, so call it, or a vacuum, again. Sinks and branches are touched only where named.
Where a step breaks off, erasing the same keys again finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.updates import Expire
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.operations.file_collector import ORPHAN_AGE, VacuumReport
from state_engine.operations.head_operations import HeadOperations
from state_engine.queries.state_rows import KEY, KEY_HASH
from state_engine.queries.stored_entries import key_schema, keys_frame
from state_engine.state_processor.erase_tables import ErasedTable, KeysOfTables, StoredKeys, erased_tables
from state_engine.state_processor.key_traces import (
    Key,
    KeyTraces,
    Trace,
    Wanted,
    letter_condition,
    row_condition,
)
from state_engine.state_processor.state_transform import StateTransform, TransformReport
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.stores.files import join, open_location, parquet_files
from state_engine.storage.stores.locks import table_lock


@dataclass(frozen=True)
class EraseReport:
    """What was erased, and what still holds the keys.

    Attributes:
        job: name.
        keys: that were asked for.
        transform: what left the state at the head, or would.
        tables: what left the tables that show states of these operators, or would.
        traces: where the keys still are, with what takes them away there.
        not_looked_at: what holds no keys by column: operator state, sinks without these columns.
        expired: checkpoints that a purge expired.
        collection: what a purge collected; None without one.
    """

    job: str
    keys: list[Key]
    transform: TransformReport
    tables: list[ErasedTable]
    traces: list[Trace]
    not_looked_at: list[str]
    expired: list[int]
    collection: VacuumReport | None = None


@dataclass(frozen=True)
class Purge:
    """How far a purge goes.

    Attributes:
        sinks: whether rows are deleted from Delta sinks, too.
        now_ms: time of the vacuum, in milliseconds since 1970.
    """

    drop_branches: Collection[str] = ()
    sinks: bool = False
    now_ms: int = 0


@dataclass(frozen=True)
class Erasure:
    """Erases keys of one job.

    Attributes:
        traces: looks for keys; of the rows as they are by then.
        vacuum: deletes files, as of a time in milliseconds since 1970.
    """

    traces: Callable[[History], KeyTraces]
    transform: StateTransform
    tables: KeysOfTables
    operations: HeadOperations
    compact: Callable[[Collection[str]], Any]
    vacuum: Callable[[int], VacuumReport]
    load: Callable[[], History]

    def erase(
        self, keys: Sequence[Key], *, operator: str | None = None, purge: Purge | None = None
    ) -> EraseReport:
        columns = sorted(set(keys[0])) if keys else []
        if not columns or any(sorted(set(k)) != columns for k in keys):
            raise ConfigurationError(
                f"erase_keys takes keys as dicts of the same columns, not {list(keys)!r}"
            )
        look = self.traces(self.load())
        uids = look.operators(columns, operator)
        stored = self._stored(look, uids, keys)
        wanted = _by_hash(stored)
        if purge is not None:
            self._check(look, purge)
        history, head = self.operations.published_head()
        before = self.tables.held(history, stored)
        done = self.transform.without_keys({u: keys for u in uids if head.operator(u) is not None})
        if not self.transform.dry_run:
            self.tables.erase(self.load(), stored)
        expired: list[int] = []
        collection = None
        if purge is not None:
            expired, collection = self._purge(uids, keys, wanted, purge)
        look = self.traces(self.load())
        after = self.tables.held(look.history, stored)
        sinks, unseen = look.of_sinks(keys)
        others, unseen_tables = look.of_other_tables(keys, before, self.tables.following(look.history))
        traces = [*look.of_state(wanted)[0], *look.of_savepoints(wanted), *look.of_exchange(keys)]
        traces += [*look.of_dead_letters(uids, keys), *sinks, *others]
        return EraseReport(
            look.job,
            list(keys),
            done,
            erased_tables(before, after, dry_run=self.transform.dry_run),
            traces,
            [*_without_keys(look), *_of_other_keys(look, uids), *unseen, *unseen_tables],
            expired,
            collection,
        )

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _stored(self, look: KeyTraces, uids: Sequence[str], keys: Sequence[Key]) -> StoredKeys:
        stored = {}
        for uid in uids:
            last = next(
                o for _, r in sorted(look.history.items(), reverse=True) if (o := r.operator(uid)) is not None
            )
            frame = keys_frame(look.spark, keys, key_schema(last), what=f"job '{look.job}', operator '{uid}'")
            stored[uid] = frame.toArrow()
        return stored

    def _check(self, look: KeyTraces, purge: Purge) -> None:
        known = {n for n in look.history.open_branches if n != MAIN}
        unknown = sorted(set(purge.drop_branches) - known)
        if unknown:
            raise ConfigurationError(
                f"job '{look.job}': there are no open branches {unknown} to drop; there are {sorted(known)}"
            )

    def _purge(
        self, uids: Sequence[str], keys: Sequence[Key], wanted: Wanted, purge: Purge
    ) -> tuple[list[int], VacuumReport]:
        look = self.traces(self.load())
        head = look.history.head
        assert head is not None
        if head.checkpoint_id in look.of_state(wanted)[1]:
            self.compact([u for u in uids if head.operator(u) is not None])
        expired = self._expire(wanted, purge)
        self._delete_letters(look, uids, keys, purge.now_ms)
        if purge.sinks:
            for kind, path in look.sinks().values():
                self._delete_from_sink(look, kind, path, keys)
        return expired, self.vacuum(purge.now_ms)

    def _expire(self, wanted: Wanted, purge: Purge) -> list[int]:
        """Commit which checkpoints are expired, whatever the head is by then; their ids."""
        while True:
            history, head = self.operations.published_head()
            chosen = self._to_expire(history, wanted, purge)
            if not chosen:
                return []
            with suppress(StaleParentError):
                done = self.operations.commit(CheckpointKind.RETENTION, head, history, Expire(chosen))
                return done.retired

    def _to_expire(self, history: History, wanted: Wanted, purge: Purge) -> list[int]:
        """Checkpoints that would bring the keys back, but the head, what savepoints pin, and branches not named."""
        head = history.head
        assert head is not None
        stay = {head.checkpoint_id} | {pin.checkpoint_id for pin in history.pins.values()}
        for name, row in history.open_branches.items():
            if name == MAIN or name not in purge.drop_branches:
                stay.add(row.checkpoint_id)
        holding = self.traces(history).of_state(wanted)[1]
        named = {r.checkpoint_id for n, r in history.open_branches.items() if n in purge.drop_branches}
        return sorted((holding | named) - stay)

    def _delete_letters(self, look: KeyTraces, uids: Sequence[str], keys: Sequence[Key], now_ms: int) -> None:
        """Delete dead letters, and the files that an earlier purge took out of their table a day ago."""
        if not look.kernel.exists(look.layout.dead_letters):
            return
        uri, condition = look.layout.dead_letters, letter_condition(uids, keys)
        if look.of_dead_letters(uids, keys):
            _delete_rows(look, uri, condition)
        published = {f.path for row in look.history.values() for f in row.dead_letters}
        before_ms = now_ms - int(ORPHAN_AGE / timedelta(milliseconds=1))
        active, lately = look.kernel.active_files(uri), DeltaLog(uri).removed_since(before_ms)
        for path in parquet_files(uri):
            if path not in active and path not in lately and path in published:
                at = open_location(join(uri, path))
                with suppress(FileNotFoundError):
                    at.delete()

    def _delete_from_sink(self, look: KeyTraces, kind: str, path: str, keys: Sequence[Key]) -> None:
        traces, _ = look.of_sinks(keys)
        if any(t.kind == "sink" and look.sinks()[t.name] == (kind, path) for t in traces):
            table = look.spark.read.format("delta").load(path)
            _delete_rows(look, path, row_condition(table, keys))


def _delete_rows(look: KeyTraces, uri: str, condition: Any) -> None:
    from delta.tables import DeltaTable

    with table_lock(uri):
        DeltaTable.forPath(look.spark, uri).delete(condition)


def _by_hash(stored: StoredKeys) -> Wanted:
    by_operator: dict[str, dict[int, list[Any]]] = {}
    for uid, keys in stored.items():
        by_hash = by_operator.setdefault(uid, {})
        for row in keys.to_pylist():
            by_hash.setdefault(row[KEY_HASH], []).append(row[KEY])
    return by_operator


def _of_other_keys(look: KeyTraces, uids: Sequence[str]) -> list[str]:
    """What is kept by keys of a type that a later checkpoint changed."""
    gone, unseen = look.history.expired, []
    for uid in uids:
        known = [
            (i, key_schema(o)) for i, r in sorted(look.history.items()) if (o := r.operator(uid)) is not None
        ]
        others = [i for i, key in known if i not in gone and not key.is_stored_like(known[-1][1])]
        if others:
            ids = ", ".join(map(str, others))
            unseen.append(f"state of {uid} at checkpoints {ids}, where its key is of another type")
    return unseen


def _without_keys(look: KeyTraces) -> list[str]:
    head = look.history.head
    refs = head.operator_state if head else []
    return [
        f"operator state '{state.name}' of {ref.operator} ({state.scheme})"
        for ref in refs
        for state in ref.states
        if any(part.elements for part in state.parts)
    ]
