"""A function over columns in a harness: elements and stored entries as columns, as on the engine, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.functions.function_calls import takes_two_inputs
from state_engine.core.functions.vectorized_functions import INPUT
from state_engine.core.harness.subtask_elements import HarnessOperator, SubtaskElements
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.operator.column_outputs import ColumnOutputs
from state_engine.core.operator.column_states import Changed, ChangedEntries, MapEntries, StateColumn
from state_engine.core.operator.element_kinds import ElementChange
from state_engine.core.operator.outputs import ElementOutputs, SideOutputs
from state_engine.core.operator.vectorized_operator import VectorizedOperator, VectorizedRows
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.state_table import DELETE, PUT, Change
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.columns import one_chunk, to_table
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_parsing import arrow_type


class VectorizedElements:
    """The elements of one subtask of a harness, and the state of their keys, as columns.

    Args:
        also: keys with due timers.
    """

    def __init__(
        self,
        given: SubtaskElements,
        operator: HarnessOperator,
        *,
        also: list[Any],
        load: Callable[[StateDescriptor], dict[Any, Any]],
    ) -> None:
        key_type, timed = operator.key_type, operator.has_event_time
        assert key_type is not None
        self._load, keys = load, given.keys or []
        numbers = {key: number for number, key in enumerate(dict.fromkeys([*keys, *also]))}
        self.keys = list(numbers)
        declared = DeclaredKey.of("key", key_type)
        several = len(declared.names) > 1
        parts = (
            [[key[n] for key in self.keys] for n in range(len(declared.names))] if several else [self.keys]
        )
        columns = [
            arrow_type(kind.arrow).to_arrow(list(part), storage=False)
            for kind, part in zip(declared.types, parts, strict=True)
        ]
        rows, inputs = _rows_of(given.values, operator)
        self.rows = VectorizedRows(
            rows,
            np.fromiter((numbers[key] for key in keys), np.int64, len(keys)),
            pa.table(columns, names=list(declared.names)),
            timestamps=pa.array(given.stamps, pa.int64()) if timed else None,
            watermarks=pa.array(given.marks, pa.int64()) if timed else None,
            kinds=None if given.kinds is None else pa.array([k.value for k in given.kinds], pa.int8()),
            inputs=inputs,
        )

    def load(self, descriptor: StateDescriptor) -> StateColumn:
        entries = self._load(descriptor)
        items = [entries.get(key) for key in self.keys]
        values = items if descriptor.ttl is None else [None if i is None else i.value for i in items]
        at_ms = [None if i is None else i.at for i in items] if descriptor.ttl is not None else None
        column = descriptor.value_type.to_arrow(values, storage=False)
        return StateColumn(column, None if at_ms is None else pa.array(at_ms, pa.int64()))

    def entries(self, descriptor: MapStateDescriptor) -> MapEntries:
        stored = self._load(descriptor)
        of_keys = [stored.get(key, {}) for key in self.keys]
        keys = np.repeat(np.arange(len(of_keys)), [len(of_key) for of_key in of_keys])
        map_keys = [map_key for of_key in of_keys for map_key in of_key]
        values = [value for of_key in of_keys for value in of_key.values()]
        made = MapEntries(
            keys.astype(np.int64),
            descriptor.key_type.to_arrow(map_keys, storage=False),
            descriptor.value_type.to_arrow(values, storage=False),
        )
        return made.in_order(descriptor)

    def changes(self, change: Changed) -> list[Change]:
        if isinstance(change, ChangedEntries):
            return self._changed_entries(change)
        made = []
        for key, value in zip(
            change.keys.tolist(), change.descriptor.value_type.from_arrow(change.values), strict=True
        ):
            item = value if change.at_ms is None else Stamped(value, change.at_ms)
            made.append(Change(self.keys[key], *((DELETE, None) if value is None else (PUT, item))))
        return made

    def _changed_entries(self, change: ChangedEntries) -> list[Change]:
        map_keys = change.descriptor.key_type.from_arrow(change.entries.map_keys)
        values = change.descriptor.value_type.from_arrow(change.values)
        return [
            Change(self.keys[key], DELETE if value is None else PUT, (map_key, value))
            for key, map_key, value in zip(change.keys.tolist(), map_keys, values, strict=True)
        ]

    def run(
        self, operator: VectorizedOperator, out: ElementOutputs, output_type: TypeInformation
    ) -> list[Any]:
        """Hand the rows to an opened function; outputs go to ``out``. Returns the changes of each state."""
        if not self.keys:
            return []
        made = operator.process(self.rows)
        _take(made.outputs, output_type, out)
        for tag, given in made.side.items():
            out.side[tag] = SideOutputs()
            assert given.tag is not None
            _take(given, given.tag.type_info, out.side[tag])
        out.refused = made.refused
        return [(change.descriptor, self.changes(change)) for change in made.changes]


def _rows_of(
    values: list[Any], operator: HarnessOperator
) -> tuple[pa.Table, tuple[tuple[np.ndarray[Any, Any], pa.Table], ...]]:
    """The columns of rows; of two streams which one each is of, and the rows of both with their columns."""
    if not takes_two_inputs(operator.function):
        return _columns(values, operator.input_type), ()
    which = np.fromiter((number for number, _ in values), np.int64, len(values))
    inputs = tuple(
        (np.flatnonzero(which == number), _columns([v for at, v in values if at == number], kind))
        for number, kind in enumerate((operator.input_type, operator.second_type))
    )
    return pa.table({INPUT: which}), inputs


def _columns(values: list[Any], kind: TypeInformation | None) -> pa.Table:
    assert kind is not None
    return to_table(values, columns_of_type(kind), scalar=not isinstance(kind, StructType))


def _take(given: ColumnOutputs, kind: TypeInformation, out: ElementOutputs | SideOutputs) -> None:
    columns = columns_of_type(kind)
    arrays = [one_chunk(column) for column in given.table.columns]
    decoded = [of.from_arrow(array) for of, array in zip(columns.types, arrays, strict=True)]
    out.values = columns.from_columns(decoded) if isinstance(kind, StructType) else decoded[0]
    if given.kinds is not None:
        of_each = (RowKind(number) for number in given.kinds.to_pylist())
        out.values = [ElementChange(*both) for both in zip(of_each, out.values, strict=True)]
    out.origins = [given.origins[place] for place in range(len(given.origins))]
    own = [] if given.times_ms is None else given.times_ms.to_pylist()
    out.times_ms = {place: at_ms for place, at_ms in enumerate(own) if at_ms is not None}


def columns_of_type(kind: TypeInformation) -> StructType:
    return kind if isinstance(kind, StructType) else StructType(["value"], [kind])
