"""Rows that the driver holds, as a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.output_type import OutputType


def local_frame(elements: Sequence[Any], kind: OutputType, *, first: int) -> SourceFrame:
    """Normal elements as rows in their order.

    Args:
        kind: type of the elements.
        first: number of the first of them.
    """
    values = [(e,) for e in elements] if kind.scalar else list(elements)
    columns = kind.columns.to_arrow(values, storage=False).flatten()
    fields = [*kind.columns.arrow, pa.field(FILE_COLUMN, pa.int32()), pa.field(ROW_COLUMN, pa.int64())]
    numbers = pa.array(range(first, first + len(values)), pa.int64())
    places = pa.repeat(pa.scalar(0, pa.int32()), len(values))
    return SourceFrame(pa.Table.from_arrays([*columns, places, numbers], schema=pa.schema(fields)))
