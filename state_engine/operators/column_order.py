"""Orders of rows by whole columns: what ``key_order`` and ``same`` say of values, as numbers.

Arrow compares the values of these types as Python does. Others are compared one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.entry_codes import equal_rows
from state_engine.core.types.every_type import (
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)
from state_engine.operators.aggregates.segments import Column

_COMPARED = (
    BooleanType, BytesType, DateType, DecimalType, FloatType, IntegerType, StringType, TimestampType,
)  # fmt: skip
_BITS = 2**63 - 1
"""All bits but that of the sign."""


def are_compared(kind: StructType, names: Sequence[str] | None = None, *, nan: bool = True) -> bool:
    """Whether rows are equal, and stand in order, by columns as they are one by one.

    Args:
        names: those that are compared; None for all.
        nan: whether columns may hold NaN, which sorted maps do not take.
    """
    types = dict(zip(kind.names, kind.types, strict=True))
    of = [types[name] for name in (kind.names if names is None else names)]
    return all(type(part) in _COMPARED and (nan or not isinstance(part, FloatType)) for part in of)


def dense_ranks(columns: Sequence[pa.Array]) -> Column:
    """Numbers that say how rows stand by columns, the least 0: null is below every value, and NaN above all.

    Example:
        >>> dense_ranks([pa.array([2.0, None, -0.0, float("nan"), 0.0, -1.5])]).tolist()
        [3, 0, 2, 4, 2, 1]
    """
    by = [part for column in columns for part in _sortable(column)]
    labels = [str(at) for at in range(len(by))]
    keys = [(label, "ascending") for label in labels]
    order = pc.sort_indices(pa.table(by, names=labels), sort_keys=keys).to_numpy()
    ordered = [column.take(pa.array(order)) for column in by]
    same = equal_rows([c.slice(1) for c in ordered], [c.slice(0, max(len(c) - 1, 0)) for c in ordered])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(np.append(False, ~same)[: len(order)])
    return ranks


def _sortable(column: pa.Array) -> list[pa.Array]:
    """Columns with the same order: whether there is a value, then floats as the numbers of their bits."""
    there = [column.is_valid()] if column.null_count else []
    if not pa.types.is_floating(column.type):
        return [*there, column]
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return [*there, pa.array(np.where(bits < 0, bits ^ np.int64(_BITS), bits))]
