"""Keyed states that tables show, as rows of ``checkpoints`` record them, and the way from one checkpoint to another.

A row records each table among its sinks, with a kind that ``SinkKind.shows_state`` and without files: what the table
gets follows from the rows between the checkpoint that it shows and the head. A row that moves the head may say that a
table does something else, see ``TablePolicy``. Flink has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, OperatorCheckpoint, StagedSink
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import SinkKey
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.state.state_schema import StateSchema
from state_engine.state_tables.base import PublishedTable, ShownCheckpoint

OTHER_FORM = "the state or its key has another form since"
"""Why a table is compared as a whole that may need other columns, too."""
TablePolicy = Literal["follow", "keep", "rebuild"]
"""At a row that moves the head: apply the difference; leave the table as it is; make it anew from the state."""


@dataclass(frozen=True)
class PublishedState:
    """A state that a table shows.

    Attributes:
        name: of the table, among the sinks of its job.
        options: of the target, without secrets.
        policy: at a row that moves the head; of a table that was settled, what was done: ``rebuild`` or ``keep``.
        sink_key: of a keyed sink, the columns of its key; empty of other tables.

    Example:
        >>> one = PublishedState("latest", "delta_state", "file:///t", "sums", "sum")
        >>> PublishedState.of(one.staged()) == one
        True
    """

    name: str
    kind: str
    place: str
    operator: str
    state: str
    map_key: str | None = "map_key"
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: TablePolicy = "follow"
    sink_key: tuple[str, ...] = ()

    @property
    def key(self) -> SinkKey:
        return self.name, self.place

    def table(self, app: str) -> PublishedTable:
        return PublishedTable(self.name, self.kind, self.place, app, dict(self.options))

    def staged(self) -> StagedSink:
        said = {
            "operator": self.operator,
            "state": self.state,
            "map_key": self.map_key,
            "options": dict(self.options),
            "policy": self.policy,
            "sink_key": list(self.sink_key),
        }
        return StagedSink(self.name, self.kind, self.place, "", json.dumps(said, sort_keys=True), [])

    @staticmethod
    def of(staged: StagedSink) -> PublishedState:
        said = json.loads(staged.schema)
        sink_key = tuple(said.pop("sink_key", ()))
        return PublishedState(staged.name, staged.kind, staged.path, **said, sink_key=sink_key)


def published_in(row: CheckpointRow) -> list[PublishedState]:
    return [PublishedState.of(one) for one in row.sinks if SinkKind(one.kind).shows_state]


def published_on(path: Sequence[CheckpointRow]) -> list[PublishedState]:
    """The tables of the newest micro-batch of a path."""
    newest = next((row for row in reversed(path) if row.kind is CheckpointKind.CHECKPOINT), None)
    return [] if newest is None else published_in(newest)


def published_states(history: History, wanted: Collection[SinkKey] | None) -> list[PublishedState]:
    """The tables that follow the head of ``main``, each as the newest row records it.

    Args:
        wanted: name and place of those that may; None where the code is not known: those of the newest micro-batch.
    """
    known: dict[SinkKey, PublishedState] = {}
    for checkpoint_id in reversed(list(history)):
        row = history[checkpoint_id]
        if row.branch != MAIN:
            continue
        for one in published_in(row):
            known.setdefault(one.key, replace(one, policy="follow"))
        if wanted is None and row.kind is CheckpointKind.CHECKPOINT:
            return [known[one.key] for one in published_in(row)]
        if wanted is not None and set(wanted) <= known.keys():
            break
    return [one for key, one in known.items() if wanted is not None and key in wanted]


def without_superseded(path: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """Rows of a path without outputs of sinks in whose place a later row has a table that shows a state.

    The table is brought to the head by that state, whatever earlier rows put into it.
    """
    tables: set[str] = set()
    rows: list[CheckpointRow] = []
    for row in reversed(path):
        left = [one for one in row.sinks if one.name not in tables or SinkKind(one.kind).shows_state]
        rows.append(row if len(left) == len(row.sinks) else replace(row, sinks=left))
        tables |= {one.name for one in published_in(row)}
    return rows[::-1]


def moves_of(history: History, table: SinkKey, since_id: int) -> list[tuple[CheckpointRow, TablePolicy]]:
    """Rows of ``main`` after a checkpoint at which a table does something else than to follow, oldest first."""
    return [
        (row, one.policy)
        for row in history.values()
        if row.branch == MAIN and row.checkpoint_id > since_id and row.kind.moves_head
        for one in published_in(row)
        if one.key == table and one.policy != "follow"
    ]


def state_of(
    row: CheckpointRow | None, uid: str, state: str
) -> tuple[OperatorCheckpoint, StateSchema] | None:
    """A state as a checkpoint declares it; None where the checkpoint does not know it."""
    operator = row.operator(uid) if row else None
    if operator is None:
        return None
    return next(((operator, schema) for schema in operator.states if schema.name == state), None)


def last_knowing(history: History, state: PublishedState) -> CheckpointRow | None:
    """The newest row of ``main`` that knows a state, whether it leads to the head or not."""
    rows = (row for row in reversed(list(history.values())) if row.branch == MAIN)
    return next((row for row in rows if state_of(row, state.operator, state.state)), None)


@dataclass(frozen=True)
class StateWay:
    """How a state gets from one checkpoint to another.

    Attributes:
        back: rows whose changes are taken back, oldest first.
        forth: rows whose changes are made, oldest first.
        expired: compactions on the way that left out expired entries, each with the checkpoint that it stands for.
        whole: why that is not enough, so that all of the state has to be looked at; empty where it is.
    """

    back: tuple[CheckpointRow, ...] = ()
    forth: tuple[CheckpointRow, ...] = ()
    expired: tuple[tuple[int, CheckpointRow], ...] = ()
    whole: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether both ends hold the same."""
        return not (self.back or self.forth or self.expired or self.whole)


def way_to(history: History, shown: ShownCheckpoint, to_id: int, one: PublishedState) -> StateWay:
    """The way of a state from what its table shows to a checkpoint; see ``state_way``."""
    if shown.unseen:
        return StateWay(whole=shown.unseen)
    if shown.checkpoint_id and not is_known(history, shown):
        newest = f"the newest of this root is {history.newest_id}"
        if shown.checkpoint_id in history:
            newest = "that of this root is another one"
        why = f"it shows checkpoint {shown.checkpoint_id}, and {newest}: the root was put back from a backup"
        return StateWay(whole=why)
    return state_way(history, shown.checkpoint_id, to_id, one.operator, one.state)


def is_known(history: History, shown: ShownCheckpoint) -> bool:
    """Whether a root has the very checkpoint that a table shows."""
    row = history.get(shown.checkpoint_id)
    return row is not None and ShownCheckpoint.of(row).is_same(shown)


def state_way(history: History, from_id: int, to_id: int, uid: str, state: str) -> StateWay:
    """The way of a state between two checkpoints; only rows that changed the operator's state are on it."""
    if from_id not in history:
        return StateWay(whole=f"checkpoint {from_id} is not known")
    begin, end = state_of(history[from_id], uid, state), state_of(history[to_id], uid, state)
    if end is None:
        return StateWay(whole=f"checkpoint {to_id} does not know the state")
    ancestor = history.common_ancestor(from_id, to_id)
    if ancestor is None:
        return StateWay(whole=f"checkpoint {from_id} began apart from it")
    back = _after(history, ancestor.checkpoint_id, from_id)
    forth = _after(history, ancestor.checkpoint_id, to_id)
    knows = [row.operator(uid) for row in (*back, *forth)]
    if any(one is None for one in knows) and (ancestor.operator(uid) is not None or begin is not None):
        return StateWay(whole="the operator was not in the job meanwhile")
    if begin is not None and _form(begin) != _form(end):
        return StateWay(whole=OTHER_FORM)
    if any(_writes_anew(row, uid) for row in (*back, *forth)):
        return StateWay(whole="the state was rewritten meanwhile")
    expired = [_left_out(row, uid) for row in (*back, *forth) if _expires(row, uid)]
    # what came after the checkpoint that a compaction stands for was not left out by it, whenever it was committed
    begin_id = min([ancestor.checkpoint_id, *(compacted_id for compacted_id, _ in expired)])
    forth = _after(history, begin_id, to_id) if not back else forth
    return StateWay(tuple(_changing(back, uid)), tuple(_changing(forth, uid)), tuple(expired))


def _after(history: History, ancestor_id: int, to_id: int) -> list[CheckpointRow]:
    return [row for row in history.path(to_id) if row.checkpoint_id > ancestor_id]


def _form(state: tuple[OperatorCheckpoint, StateSchema]) -> tuple[str, str, str]:
    operator, schema = state
    return operator.key_schema, schema.column_name, schema.type


def _writes_anew(row: CheckpointRow, uid: str) -> bool:
    """Whether a row wrote all state of an operator, which is not what it was before."""
    operator = row.operator(uid)
    return operator is not None and bool(operator.base_files) and row.kind is not CheckpointKind.COMPACTION


def _expires(row: CheckpointRow, uid: str) -> bool:
    operator = row.operator(uid)
    return operator is not None and bool(operator.expired)


def _left_out(row: CheckpointRow, uid: str) -> tuple[int, CheckpointRow]:
    """The checkpoint that a compaction stands for, and its row."""
    operator = row.operator(uid)
    assert operator is not None
    return next(base.checkpoint_id for base in operator.bases if base.base_id == row.write_id), row


def _changing(rows: Iterable[CheckpointRow], uid: str) -> Iterable[CheckpointRow]:
    for row in rows:
        operator = row.operator(uid)
        if operator is not None and operator.changelog:
            yield row
