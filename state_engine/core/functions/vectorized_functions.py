"""``VectorizedKeyedFunction``: a keyed function over columns, called once for all rows of a subtask's micro-batch.

It gets the rows and the state of their keys as Arrow tables, and gives outputs and changed state so, too: no row
becomes Python values. The state is that of the same descriptors, stored in the same form, so a function per element can
be replaced by one over columns, and the other way round. Plays the part of Spark's ``transformWithStateInPandas``, for
all keys of a subtask at once. Decision 0075.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state_engine.core.function import Function

ROW, KEY, ERROR = "_row", "_key", "error"
"""Columns: the number of a row, the number of a key, and why a row is refused."""


@dataclass(frozen=True)
class VectorizedResult:
    """What a function made of a batch. Each part is a ``pyarrow.Table`` or what Arrow can read as one (polars, pandas).

    Attributes:
        outputs: the columns of the output type. With a column ``_row`` each output takes the place of that row in the
            total order; without, all of them stand behind the last row of the subtask.
        state: ``_key`` and the columns of some states. Keys that are not in it stay as they are, and so do states; a
            null clears.
        refused: ``_row``, and in ``error`` why: rows that become dead letters, or fail the batch, as the job says.
    """

    outputs: Any = None
    state: Any = None
    refused: Any = None


class VectorizedKeyedFunction(Function):
    """Sees all rows of a subtask's micro-batch at once, with the state of their keys, as columns.

    States are asked for in ``open``, by the descriptors that functions per element use: value states, and reducing and
    aggregating ones, of which the column holds what is stored. List and map states, timers and side outputs belong to
    functions per element.

    Example:
        >>> import pyarrow as pa
        >>> from state_engine.core.state.descriptors import ValueStateDescriptor
        >>> class Totals(VectorizedKeyedFunction):
        ...     def open(self, runtime_context):
        ...         runtime_context.get_state(ValueStateDescriptor("total", int, default=0))
        ...     def process_batch(self, rows, state, ctx):
        ...         added = rows.group_by("_key").aggregate([("amount", "sum")])
        ...         totals = state.join(added, "_key").sort_by("_key")
        ...         total = pa.compute.add(totals["total"], totals["amount_sum"])
        ...         outputs = pa.table({"user": totals["key"], "total": total})
        ...         return VectorizedResult(outputs, state=pa.table({"_key": totals["_key"], "total": total}))
        >>> from state_engine.testing import KeyedHarness
        >>> harness = KeyedHarness(
        ...     Totals(), key_by=lambda row: row[0], key_type=str,
        ...     input_type="user string, amount bigint", output_type="user string, total bigint",
        ... )
        >>> harness.process([("ada", 3), ("bob", 1), ("ada", 4)])
        [Row(user='ada', total=7), Row(user='bob', total=1)]
        >>> harness.process([("bob", 1)])
        [Row(user='bob', total=2)]
    """

    @dataclass(frozen=True)
    class Context:
        """What is known about the batch.

        Attributes:
            timestamps: event time of every row in milliseconds, a bigint column; None where the stream has none.
            watermarks: the watermark before every row, likewise.
        """

        processing_time_ms: int
        timestamps: pa.Array | None = None
        watermarks: pa.Array | None = None

        def current_processing_time(self) -> int:
            """Processing time of the batch, in milliseconds."""
            return self.processing_time_ms

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Context) -> VectorizedResult | Any:
        """Handle the rows of a subtask. It is not called where there are none.

        Args:
            rows: the columns of the stream, in total order, and two more: ``_row`` counts the rows from 0, ``_key``
                says which row of ``state`` is of the row's key, so ``state["total"].take(rows["_key"])`` is the state
                before the batch, row by row.
            state: a row for each key of the batch: ``_key``, which counts them from 0, the columns of the key, and a
                column for each state, which is null, or the default of its descriptor, where nothing is stored.
            ctx: clocks.

        Returns:
            A ``VectorizedResult``; or a table, which are outputs alone; or None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_batch(self, rows, state, ctx)")


class PerElement(Exception):
    """Raised by a function that ``StandsForElements``: this batch is for the one per element."""


class StandsForElements(VectorizedKeyedFunction):
    """A function over columns that does what one per element does, which runs where this one cannot."""


def vectorized_form(function: Any) -> VectorizedKeyedFunction | None:
    """The function over columns that a subtask runs; None where it runs one per element.

    A ready-made function per element has such a form where ``vectorized`` gives one.
    """
    if isinstance(function, VectorizedKeyedFunction):
        return function
    make = getattr(function, "vectorized", None)
    form: VectorizedKeyedFunction | None = None if make is None else make()
    return form
