"""Rows that the driver holds, as a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ValueTypeError
from state_engine.core.operator.element_kinds import own_kind, split
from state_engine.core.types.row import RowKind
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.output_type import OutputType
from state_engine.sources.stream_columns import ROW_KIND, kind_column


def normal_elements(
    given: Sequence[Any], kind: OutputType, *, changing: bool, source: str
) -> tuple[list[Any], list[RowKind] | None]:
    """Elements as their type has them, and their kinds; None where all are inserts.

    Args:
        given: values or rows; of a source that changes Rows of a kind, or pairs of a kind and an element, too.
    """
    kinds, values = split([own_kind(one) for one in given]) if changing else (None, given)
    normalise = kind.element.normalise
    try:
        return [normalise(value) for value in values], kinds
    except ValueTypeError as error:
        raise ValueTypeError(f"source '{source}': {error}") from None


def local_frame(
    elements: Sequence[Any], kind: OutputType, *, first: int, kinds: Sequence[RowKind] | None = None
) -> SourceFrame:
    """Normal elements as rows in their order.

    Args:
        kinds: of the elements; None where the stream has inserts only.
    """
    values = [(e,) for e in elements] if kind.scalar else list(elements)
    columns = kind.columns.to_arrow(values, storage=False).flatten()
    fields = [*kind.columns.arrow, pa.field(FILE_COLUMN, pa.int32()), pa.field(ROW_COLUMN, pa.int64())]
    numbers = pa.array(range(first, first + len(values)), pa.int64())
    places = pa.repeat(pa.scalar(0, pa.int32()), len(values))
    rows = pa.Table.from_arrays([*columns, places, numbers], schema=pa.schema(fields))
    return SourceFrame(rows if kinds is None else rows.append_column(ROW_KIND, kind_column(kinds)))
