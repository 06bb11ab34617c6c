"""How many entries the keyed states of an operator have, by the rows of a path alone.

    counted    a micro-batch reads the state of every key that it touches, so it knows how many entries come and go, and
               its row has the number as of itself
    as of the last compaction
               what the files of the bases hold: of states whose entries expire without a write, and of those that a
               backend or an operation writes without reading what was there

Plays the part of RocksDB's ``estimate-num-keys`` under Flink's backend, which is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import BaseFile, CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.state_files import keyed_state_files
from state_engine.core.state.state_schema import StateSchema


@dataclass(frozen=True)
class EntryCount:
    """How many entries a state has: keys with a value or a list, or entries of all maps.

    Attributes:
        checkpoint_id: as of which checkpoint: the one that was asked for, or that of the last compaction.
    """

    entries: int
    checkpoint_id: int


def entry_counts(path: Sequence[CheckpointRow], uid: str) -> dict[str, EntryCount]:
    """The entries of an operator's states, by name; without those of which nothing is known before a compaction.

    Args:
        path: rows from the first checkpoint to the one that is asked for, oldest first.
    """
    operator = path[-1].operator(uid) if path else None
    if operator is None:
        return {}
    now = path[-1].checkpoint_id
    counts = {s.name: _count(operator.entries, s, now) for s in operator.states}
    missing = [s for s in operator.states if counts[s.name] is None]
    if missing and (based := _in_bases(path, operator)) is not None:
        entries, as_of, changed = based
        for state in missing:
            exact = not changed and not state.ttl
            counts[state.name] = EntryCount(entries.get(state.column_name, 0), now if exact else as_of)
    return {name: count for name, count in counts.items() if count is not None}


def entries_after(
    path: Sequence[CheckpointRow],
    uid: str,
    states: Iterable[StateSchema],
    added: Mapping[str, int | None],
) -> dict[str, int]:
    """What the row of a micro-batch records: entries by column name, of the states that are counted.

    Args:
        added: by column name, how many more entries there are of the states that the code declares; None where that is
            not known.
    """
    operator = path[-1].operator(uid) if path else None
    known = {s.column_name: s for s in operator.states} if operator is not None else {}
    before = dict(operator.entries) if operator is not None else {}
    if any(number is not None and name in known and name not in before for name, number in added.items()):
        now, counts = path[-1].checkpoint_id, entry_counts(path, uid)
        exact = {name: counts[s.name] for name, s in known.items() if s.name in counts}
        before |= {name: count.entries for name, count in exact.items() if count.checkpoint_id == now}
    after: dict[str, int] = {}
    for name in (state.column_name for state in states):
        number = added.get(name, 0)
        was = before.get(name) if name in known else 0
        if was is not None and number is not None:
            after[name] = was + number
    return after


def _count(entries: Mapping[str, int], state: StateSchema, checkpoint_id: int) -> EntryCount | None:
    counted = entries.get(state.column_name)
    return None if counted is None else EntryCount(counted, checkpoint_id)


def _in_bases(
    path: Sequence[CheckpointRow], operator: OperatorCheckpoint
) -> tuple[dict[str, int], int, bool] | None:
    """Entries in the bases in force, the oldest checkpoint that they stand for, and whether anything changed since.

    None where the bases are not of all key groups, or were written by a version that did not count.
    """
    covered = sum(b.key_group_end - b.key_group_start + 1 for b in operator.bases)
    files = keyed_state_files(path, operator.uid)
    if covered != operator.max_parallelism or files.missing_bases:
        return None
    entries: dict[str, int] = {}
    for one in files.base:
        if not isinstance(one.file, BaseFile) or one.file.entries is None:
            return None
        for name, number in one.file.entries.items():
            entries[name] = entries.get(name, 0) + number
    return entries, min(b.checkpoint_id for b in operator.bases), bool(files.changelog)
