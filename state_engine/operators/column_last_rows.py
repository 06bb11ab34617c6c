"""Last rows of keys by whole columns: ``LastRow`` and ``NewestRow`` as functions over columns.

The same state, and the same changes: those forms are the definition, and get each batch that columns cannot compute.
Decision 0117.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    KEY,
    KIND,
    ROW,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.keys.entry_codes import equal_rows
from state_engine.core.stable_order import stable_order
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.row import RowKind
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.column_order import dense_ranks
from state_engine.operators.keyed_rows import GONE, ROW_TIME
from state_engine.operators.timed_rows import prefix_largest


@dataclass(frozen=True)
class KeptColumns:
    """The columns that the state keeps of the rows of a batch, then those stored of their keys.

    Attributes:
        columns: that are kept, of the rows and then of the keys.
        rows: how many of them are of rows.
    """

    columns: list[pa.Array]
    rows: int

    @classmethod
    def of(cls, rows: pa.Table, times: pa.Array | None, stored: pa.Array) -> KeptColumns:
        """Those of rows by the names that are stored, with their event time where it is."""
        columns = []
        for field, of_stored in zip(stored.type, stored.flatten(), strict=True):
            given = times if times is not None and field.name == ROW_TIME else one_chunk(rows[field.name])
            columns.append(pa.concat_arrays([given.cast(field.type), of_stored]))
        return cls(columns, rows.num_rows)

    def equal(self, one: Column, other: Column) -> Column:
        """Compare two lists of places: whether the columns have the same there."""
        left, right = ([column.take(pa.array(at)) for column in self.columns] for at in (one, other))
        return equal_rows(left, right)

    def at(self, places: Column) -> list[pa.Array]:
        return [column.take(pa.array(places)) for column in self.columns]

    def ranks(self, names: Sequence[str], kind: pa.DataType, stored: Column) -> Column:
        """Ranks by some columns, the least 1, equal ones equal; 0 of a key where nothing is stored.

        Raises:
            PerElement: a row has a null there, and so no place.
        """
        by = [self.columns[kind.get_field_index(name)] for name in names]
        if any(column.slice(0, self.rows).null_count for column in by):
            raise PerElement
        ranks = 1 + dense_ranks(by)
        ranks[self.rows :][~stored] = 0
        return ranks


class ColumnNewestRow(StandsForElements):
    """Emits the changes of the last row of each key, on a stream of inserts.

    Args:
        row, deleted: descriptors of the states; None without a sequence.
        key: columns of rows that the state does not keep, in the order of the key's.
        sequence: columns that order the rows of a key; without, their order is the total one.
        by_time: whether the state has the event time behind the columns.
    """

    emits_changes = True

    def __init__(
        self,
        row: ValueStateDescriptor,
        deleted: ValueStateDescriptor | None,
        *,
        key: Sequence[str],
        sequence: Sequence[str],
        by_time: bool,
    ) -> None:
        self._row, self._deleted, self._key = row, deleted, key
        self._sequence, self._by_time = sequence, by_time

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(self._row)
        if self._deleted is not None:
            runtime_context.get_state(self._deleted)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        times = ctx.timestamps if self._by_time else None
        if ctx.kinds is not None or (self._by_time and (times is None or times.null_count)):
            raise PerElement
        if self._deleted is not None and state[self._deleted.name].null_count < state.num_rows:
            raise PerElement
        stored = one_chunk(state[self._row.name])
        kept, there = KeptColumns.of(rows, times, stored), stored.is_valid().to_numpy(zero_copy_only=False)
        keys, number = rows[KEY].to_numpy(), rows.num_rows
        order = stable_order(keys)
        if self._sequence:
            ranks = kept.ranks(self._sequence, stored.type, there)
            before, _ = prefix_largest(keys[order], ranks[:number][order], ranks[number:])
            order = order[ranks[:number][order] >= before]
        of_key = keys[order]
        first = np.append(True, of_key[1:] != of_key[:-1])[: len(order)]
        earlier = np.append(-1, order[:-1])[: len(order)]
        earlier[first] = np.where(there[of_key[first]], number + of_key[first], -1)
        last = np.append(first[1:], True)[: len(order)]
        return VectorizedResult(
            outputs=self._changes(kept, order, earlier, rows, state),
            state=pa.table(
                {
                    KEY: of_key[last],
                    self._row.name: pa.StructArray.from_arrays(
                        kept.at(order[last]), fields=list(stored.type)
                    ),
                }
            ),
        )

    def _changes(
        self, kept: KeptColumns, places: Column, earlier: Column, rows: pa.Table, state: pa.Table
    ) -> pa.Table:
        """The changes that rows make of those that were last before them; -1 where there was none."""
        differs = earlier < 0
        differs[~differs] = ~kept.equal(places[~differs], earlier[~differs])
        places, earlier = places[differs], earlier[differs]
        in_rows = np.argsort(places)
        places, earlier = places[in_rows], earlier[in_rows]
        outputs = np.repeat(np.arange(len(places)), 1 + (earlier >= 0))
        last = np.append(outputs[1:] != outputs[:-1], True)[: len(outputs)]
        source = np.where(last, places[outputs], earlier[outputs])
        kinds = np.where(last, np.where(earlier[outputs] < 0, 0, 2), 1)
        columns = dict(zip((f.name for f in self._row.value_type.arrow), kept.at(source), strict=True))
        of_key = rows[KEY].take(pa.array(places[outputs]))
        columns |= {
            name: column.take(of_key) for name, column in zip(self._key, state.columns[1:], strict=False)
        }
        made = {name: columns[name] for name in rows.column_names if name not in (KEY, ROW)}
        texts = pa.array([str(kind) for kind in RowKind])
        return pa.table(made | {ROW: places[outputs], KIND: texts.take(pa.array(kinds))})


class ColumnLastRow(StandsForElements):
    """Keeps the last row of each key; emits nothing.

    Args:
        row, deleted: descriptors of the states; None without a sequence.
        sequence: columns that order the rows of a key; without, their order is the total one.
    """

    accepts_changes = True

    def __init__(
        self, row: ValueStateDescriptor, deleted: ValueStateDescriptor | None, *, sequence: Sequence[str]
    ) -> None:
        self._row, self._deleted, self._sequence = row, deleted, sequence

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(self._row)
        if self._deleted is not None:
            runtime_context.get_state(self._deleted)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        if self._deleted is not None and (
            ctx.kinds is not None or state[self._deleted.name].null_count < state.num_rows
        ):
            raise PerElement
        stored = one_chunk(state[self._row.name])
        kept, there = KeptColumns.of(rows, None, stored), stored.is_valid().to_numpy(zero_copy_only=False)
        keys, number = rows[KEY].to_numpy(), rows.num_rows
        before = np.where(there, number + np.arange(len(there)), -1)
        places = before.copy()
        if self._sequence:
            ranks = kept.ranks(self._sequence, stored.type, there)
            order = np.lexsort((ranks[:number], keys))
            ends = order[np.append(keys[order][1:] != keys[order][:-1], True)[:number]]
            ends = ends[ranks[:number][ends] >= ranks[number:][keys[ends]]]
            places[keys[ends]] = ends
        else:
            self._replace(places, kept, keys, ctx.kinds)
        changed = np.flatnonzero(places != before)
        return VectorizedResult(
            state=pa.table({KEY: changed, self._row.name: self._struct(kept, places[changed], stored.type)})
        )

    @staticmethod
    def _replace(places: Column, kept: KeptColumns, keys: Column, kinds: pa.Array | None) -> None:
        """Update the place of what each key has, by its rows in the total order; -1 of nothing."""
        number = len(keys)
        if kinds is None:
            places[keys] = np.arange(number)
            return
        is_before = pc.equal(kinds, str(RowKind.UPDATE_BEFORE)).to_numpy(zero_copy_only=False)
        is_gone = pc.is_in(kinds, pa.array([str(kind) for kind in GONE])).to_numpy(zero_copy_only=False)
        given = np.flatnonzero(~is_before)
        last = np.full(len(places), -1)
        last[keys[given]] = given
        places[keys[given]] = np.where(is_gone[given], -1, given)
        behind = np.flatnonzero(
            is_before & (np.arange(number) > last[keys])
        )  # they take back what is there now
        behind = behind[places[keys[behind]] >= 0]
        taken = behind[kept.equal(behind, places[keys[behind]])]
        places[keys[taken]] = -1

    @staticmethod
    def _struct(kept: KeptColumns, places: Column, kind: pa.StructType) -> pa.Array:
        there = places >= 0
        struct = pa.StructArray.from_arrays(kept.at(places[there]), fields=list(kind))
        at = np.cumsum(there) - 1
        return (
            struct.take(pa.array(np.maximum(at, 0), mask=~there)) if len(struct) else pa.nulls(len(at), kind)
        )
