"""Operator state as files of the table ``operator_state``: written by subtasks, found again through the checkpoints.

    write_subtask_state   in a subtask, at its end: one file with the lists that changed, or none
    build_ref             on the driver: where all lists lie now, for the checkpoint row (core.operator_state_ref)
    files_of              on the driver, in the next batch: the files that the subtasks need
    read_subtask_state    in a subtask, at its start: what it starts with, redistributed where the rules say so

A list that did not change since it was written is pointed to and never written again; a digest of every list shows
that. Of broadcast state subtask 0 writes the one copy. Nothing that is missing or was changed goes unseen: counts and
digests are compared. Plays the part of Flink's ``OperatorStateHandle`` and ``DefaultOperatorStateBackend``'s snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import (
    DataFile,
    OperatorStatePart,
    OperatorStateRef,
    OperatorStateSchema,
)
from state_engine.core.checkpoints.state_files import operator_of, write_id_of
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError
from state_engine.core.names import stored_name
from state_engine.core.operator_state.operator_snapshot import (
    BROADCAST,
    RAW_KEYED,
    RAW_OPERATOR,
    StateElements,
    SubtaskSnapshot,
    assign,
)
from state_engine.core.operator_state.operator_state_ref import RAW, StoredList, stored_lists, stored_part
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA, file_name, partition_path
from state_engine.storage.stores.files import PutFile, join, write_parquet
from state_engine.storage.stores.parquet_reading import open_recorded

# -- in a subtask, at its end ------------------------------------------------------------------------------------------


def write_subtask_state(
    snapshot: SubtaskSnapshot,
    *,
    uri: str,
    operator: str,
    write_id: str,
    subtask: int,
    attempt: int,
    parent: OperatorStateRef | None,
    put: PutFile | None = None,
) -> tuple[DataFile | None, list[OperatorStateSchema]]:
    """Write what changed since the parent checkpoint, as one file that no reader of the table sees yet.

    Args:
        snapshot: the state of this subtask at the end of the micro-batch.
        write_id, attempt: name the attempt to write, and this try of the task.
        parent: what the parent checkpoint holds of the operator; None where it does not know it.

    Returns:
        The file, None where nothing changed or all lists are empty; and every state of the subtask with its one part,
        for the report to the driver.
    """
    changed: list[StoredList] = []
    declared: list[OperatorStateSchema] = []
    for one in stored_lists(snapshot):
        part = OperatorStatePart(subtask, write_id, len(one.items), one.digest())
        known = stored_part(parent, one, subtask)
        if one.scheme == BROADCAST and subtask:
            part = replace(
                part, write_id=""
            )  # given for comparison: the copy of subtask 0 is the one that is stored
        elif known is not None and known == replace(part, write_id=known.write_id):
            part = known
        elif one.items:
            changed.append(one)
        declared.append(OperatorStateSchema(one.name, one.scheme, one.type, [part]))
    if not changed:
        return None, declared
    table = pa.concat_tables([_table(operator, subtask, one) for one in changed])
    path = partition_path(
        write_id, file_name(write_id, subtask, attempt, suffix=f"{stored_name(operator)}.parquet")
    )
    file = write_parquet(table, join(uri, path), put=put)
    return DataFile(path, file.bytes, table.num_rows, subtask, footer=file.footer), declared


def _table(operator: str, subtask: int, one: StoredList) -> pa.Table:
    rows = len(one.items)
    raw = one.scheme in RAW
    repeated = partial(pa.repeat, size=rows)
    columns = {
        "operator": repeated(operator),
        "state": repeated(one.name),
        "scheme": repeated(one.scheme),
        "subtask": repeated(subtask),
        "position": pa.array(one.positions, pa.int64()),
        "value": pa.nulls(rows, pa.string()) if raw else pa.array(one.items, pa.string()),
        "bytes": pa.array(one.items, pa.binary()) if raw else pa.nulls(rows, pa.binary()),
    }
    return pa.table(columns, schema=OPERATOR_STATE_SCHEMA)


# -- in a subtask, at its start ----------------------------------------------------------------------------------------


def read_subtask_state(
    ref: OperatorStateRef | None,
    files: Sequence[DataFile],
    *,
    uri: str,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    restored: bool,
) -> SubtaskSnapshot | None:
    """What a subtask starts with; None where no checkpoint knows the operator.

    Between two micro-batches it reads its own lists and the copy of broadcast state; after a restore or a change of
    parallelism those of all subtasks, which are then given out by :func:`assign`.

    Args:
        restored: whether a restore or import lies between the operator's last run and now.
    """
    if ref is None:
        return None
    reader = _Reader(ref, files, uri)
    own_only = ref.parallelism == parallelism and not restored
    snapshots = [
        reader.snapshot(i, broadcast_only=own_only and i != subtask)
        if not own_only or i in (0, subtask)
        else SubtaskSnapshot()
        for i in range(ref.parallelism)
    ]
    given = assign(
        snapshots, parallelism, operator=ref.operator, max_parallelism=max_parallelism, restored=restored
    )
    return given[subtask]


def copy_state(
    ref: OperatorStateRef, files: Sequence[DataFile], *, uri: str, into: str, write_id: str
) -> tuple[OperatorStateRef, list[DataFile]]:
    """Copy all lists of an operator to another table or directory, as if one attempt had written them there."""
    reader, written = _Reader(ref, files, uri), []
    for subtask in range(ref.parallelism):
        file, _ = write_subtask_state(
            reader.snapshot(subtask, broadcast_only=False),
            uri=into,
            operator=ref.operator,
            write_id=write_id,
            subtask=subtask,
            attempt=0,
            parent=None,
        )
        written += [file] if file is not None else []
    states = [replace(s, parts=[replace(p, write_id=write_id) for p in s.parts]) for s in ref.states]
    return replace(ref, write_id=write_id, states=states), written


class _Reader:
    """Reads lists of one operator; a file that holds several of them is read once."""

    def __init__(self, ref: OperatorStateRef, files: Sequence[DataFile], uri: str) -> None:
        self._ref, self._uri = ref, uri
        self._files = {
            (write_id_of(f), f.subtask): f for f in files if operator_of(f) == stored_name(ref.operator)
        }
        self._tables: dict[str, pa.Table] = {}

    def snapshot(self, subtask: int, *, broadcast_only: bool) -> SubtaskSnapshot:
        """What the checkpoint holds of one subtask, or of it only what all subtasks need."""
        states: list[StateElements] = []
        raw_operator, raw_keyed = b"", tuple[tuple[int, bytes], ...]()
        for state in self._ref.states:
            part = next((p for p in state.parts if p.subtask == subtask), None)
            if part is None or (broadcast_only and state.scheme != BROADCAST):
                continue
            stored: Any = self._list(state, part)
            if state.scheme == RAW_OPERATOR:
                raw_operator = stored.items[0]
            elif state.scheme == RAW_KEYED:
                raw_keyed = tuple(zip(stored.positions, stored.items, strict=True))
            else:
                states.append(StateElements(state.name, state.scheme, state.type, tuple(stored.items)))
        return SubtaskSnapshot(tuple(states), raw_operator, raw_keyed)

    def _list(self, state: OperatorStateSchema, part: OperatorStatePart) -> StoredList:
        if not part.elements:
            return StoredList(state.name, state.scheme, state.type, [], [])
        file = self._files.get((part.write_id, part.subtask))
        where = f"operator '{self._ref.operator}', state '{state.name}', subtask {part.subtask}"
        if file is None:
            raise _missing(
                f"{where}: no checkpoint on the path lists a file of attempt {part.write_id} for it"
            )
        table = self._table(file, where)
        rows = table.filter(pc.equal(table["state"], state.name)).sort_by("position")
        items = rows["bytes" if state.scheme in RAW else "value"]
        if rows.num_rows != part.elements or items.null_count:
            present = rows.num_rows - items.null_count
            raise _missing(
                f"{where}: {file.path} holds {counted(present, 'element')}, {part.elements:,} were recorded"
            )
        stored = StoredList(
            state.name, state.scheme, state.type, rows["position"].to_pylist(), items.to_pylist()
        )
        if stored.digest() != part.digest:
            raise _missing(f"{where}: {file.path} does not hold what was written")
        return stored

    def _table(self, file: DataFile, where: str) -> pa.Table:
        if file.path not in self._tables:
            try:
                table = open_recorded(join(self._uri, file.path), file, of=where).read()
            except FileNotFoundError:
                raise _missing(f"{where}: {file.path} does not exist") from None
            if table.num_rows != file.rows:
                raise _missing(
                    f"{where}: {file.path} has {counted(table.num_rows, 'row')}, {file.rows:,} were recorded"
                )
            self._tables[file.path] = table
        return self._tables[file.path]


def _missing(what: str) -> MissingFilesError:
    return MissingFilesError(
        f"{what}: somebody deleted or changed it. Restore an older checkpoint, or a savepoint into another root"
    )
