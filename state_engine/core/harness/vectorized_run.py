"""A function over columns in a harness: elements and stored entries as columns, as on the engine, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.operator.outputs import ElementOutputs
from state_engine.core.operator.vectorized_operator import (
    ChangedColumn,
    StateColumn,
    VectorizedOperator,
    VectorizedRows,
)
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.state_table import DELETE, PUT, Change
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.columns import one_chunk, to_table
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.type_parsing import arrow_type


class VectorizedElements:
    """The elements of one subtask of a harness, and the state of their keys, as columns.

    Args:
        keys, values, stamps, marks: of the elements: their times, and the watermarks before them.
    """

    def __init__(
        self,
        keys: list[Any],
        values: list[Any],
        stamps: list[int | None],
        marks: list[int],
        *,
        input_type: TypeInformation,
        key_type: TypeInformation,
        timed: bool,
    ) -> None:
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self.keys = list(numbers)
        declared = DeclaredKey.of("key", key_type)
        parts = list(zip(*self.keys, strict=True)) if len(declared.names) > 1 else [self.keys]
        columns = [
            arrow_type(kind.arrow).to_arrow(list(part), storage=False)
            for kind, part in zip(declared.types, parts, strict=True)
        ]
        self.rows = VectorizedRows(
            to_table(values, columns_of_type(input_type), scalar=not isinstance(input_type, StructType)),
            np.fromiter((numbers[key] for key in keys), np.int64, len(keys)),
            pa.table(columns, names=list(declared.names)),
            timestamps=pa.array(stamps, pa.int64()) if timed else None,
            watermarks=pa.array(marks, pa.int64()) if timed else None,
        )

    def state(self, descriptor: StateDescriptor, entries: dict[Any, Any]) -> StateColumn:
        items = [entries.get(key) for key in self.keys]
        values = items if descriptor.ttl is None else [None if i is None else i.value for i in items]
        at_ms = [None if i is None else i.at for i in items] if descriptor.ttl is not None else None
        column = descriptor.value_type.to_arrow(values, storage=False)
        return StateColumn(column, None if at_ms is None else pa.array(at_ms, pa.int64()))

    def changes(self, change: ChangedColumn) -> list[Change]:
        made = []
        for key, value in zip(
            change.keys.tolist(), change.descriptor.value_type.from_arrow(change.values), strict=True
        ):
            item = value if change.at_ms is None else Stamped(value, change.at_ms)
            made.append(Change(self.keys[key], *((DELETE, None) if value is None else (PUT, item))))
        return made

    def run(
        self, operator: VectorizedOperator, out: ElementOutputs, output_type: TypeInformation
    ) -> list[Any]:
        """Hand the rows to an opened function; outputs go to ``out``. Returns the changes of each state."""
        if not self.rows.rows.num_rows:
            return []
        made = operator.process(self.rows)
        scalar, columns = not isinstance(output_type, StructType), columns_of_type(output_type)
        arrays = [one_chunk(column) for column in made.outputs.columns]
        decoded = [kind.from_arrow(array) for kind, array in zip(columns.types, arrays, strict=True)]
        out.values = decoded[0] if scalar else columns.from_columns(decoded)
        out.origins, out.refused = made.origins.tolist(), made.refused
        return [(change.descriptor, self.changes(change)) for change in made.changes]


def columns_of_type(kind: TypeInformation) -> StructType:
    return kind if isinstance(kind, StructType) else StructType(["value"], [kind])
