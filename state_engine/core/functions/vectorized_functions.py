"""``VectorizedKeyedFunction``: a keyed function over columns, called once for all rows of a subtask's micro-batch.

It gets the rows and the state of their keys as Arrow tables, and gives outputs and changed state so, too: no row
becomes Python values. The state is that of the same descriptors, stored in the same form, so a function per element can
be replaced by one over columns, and the other way round. Plays the part of Spark's ``transformWithStateInPandas``, for
all keys of a subtask at once. Decisions 0075 and 0112.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from state_engine.core.function import Function
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.types.timestamps import MIN_TIMESTAMP

ROW, KEY, ERROR = "_row", "_key", "error"
"""Columns: the number of a row, the number of a key, and why a row is refused."""
INPUT = "_input"
"""Column of the rows of two streams: which one each came on, 0 or 1."""
TIMER, EVENT_TIME, KIND = "_timer", "_event_time", "_kind"
"""Columns of outputs: the time of the timer that one came from, its own event time, and its kind as text."""
MAP_KEY, VALUE = "map_key", "value"
"""Columns of the entries of a map state, beside ``KEY``."""
TIME, DELETED = "time", "deleted"
"""Columns of timers, beside ``KEY``: when they are due, and whether they are deleted."""


@dataclass(frozen=True)
class VectorizedResult:
    """What a function made of a batch. Each part is a ``pyarrow.Table`` or what Arrow can read as one (polars, pandas).

    Attributes:
        outputs: the columns of the output type. With a column ``_row`` each output takes the place of that row in the
            total order; with ``_key`` and ``_timer``, a time in milliseconds, that of a timer of the key. If a
            table has both, each output has one of them. Without, all outputs stand behind the last row of the subtask.
            ``_event_time``, in milliseconds, is an event time of its own. ``_kind`` is ``+I``, ``-U``, ``+U`` or
            ``-D``, if the function ``emits_changes``.
        state: ``_key`` and the columns of some states. Keys that are not in it stay as they are, and so do states; a
            null clears.
        refused: ``_row``, and in ``error`` why: rows that become dead letters, or fail the batch, as the job says.
        maps: by name of a map state, its changed entries: ``_key``, ``map_key`` and ``value``; a null removes.
        timers: event-time timers to set: ``_key`` and ``time``, in milliseconds; where ``deleted`` is true, to delete.
        side: by tag, the columns of a side output, and ``_row``, ``_timer``, ``_event_time``, ``_kind`` as above.
    """

    outputs: Any = None
    state: Any = None
    refused: Any = None
    maps: Mapping[str, Any] = field(default_factory=dict)
    timers: Any = None
    side: Mapping[OutputTag, Any] = field(default_factory=dict)


class VectorizedKeyedFunction(Function):
    """Sees all rows of a subtask's micro-batch at once, with the state of their keys, as columns.

    States are asked for in ``open``, by the descriptors that functions per element use: value states, reducing and
    aggregating states, whose columns hold what is stored, and map states. List states and timers of processing
    time belong to functions per element.

    Attributes:
        uses_timers: whether it sets event-time timers. Then the batch has the keys with a due timer, too, and it is
            called where only timers are due.

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

    uses_timers: bool = False

    @dataclass(frozen=True)
    class Context:
        """What is known about the batch.

        Attributes:
            timestamps: event time of every row in milliseconds, a bigint column; None where the stream has none.
            watermarks: the watermark before every row, likewise.
            kinds: of every row, ``+I``, ``-U``, ``+U`` or ``-D``; None where all are inserts.
            end_watermark_ms: the watermark behind the last row; the largest long while a job is drained.
            maps: by name of a map state, the entries of the keys of the batch: ``_key``, ``map_key`` and ``value``,
                those of a key together, in the order of a function per element.
            due: the event-time timers that the end watermark has reached, with ``_key`` and ``time``. They are gone
                with this batch.
            inputs: of a function of two streams, the rows of each: its columns, ``_row`` and ``_key``.
        """

        processing_time_ms: int
        timestamps: pa.Array | None = None
        watermarks: pa.Array | None = None
        kinds: pa.Array | None = None
        end_watermark_ms: int = MIN_TIMESTAMP
        maps: Mapping[str, pa.Table] = field(default_factory=dict)
        due: pa.Table | None = None
        inputs: tuple[pa.Table, ...] = ()

        def current_processing_time(self) -> int:
            """Processing time of the batch, in milliseconds."""
            return self.processing_time_ms

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Context) -> VectorizedResult | Any:
        """Handle the rows of a subtask. It is not called where there are none, and no timer is due.

        Args:
            rows: the columns of the stream, in total order, and two more: ``_row`` counts the rows from 0, ``_key``
                says which row of ``state`` is of the row's key, so ``state["total"].take(rows["_key"])`` is the state
                before the batch, row by row.
            state: a row for each key of the rows and of the due timers: ``_key``, which counts them from 0, the columns
                of the key, and a column for each state with one value, which is null, or the default of its descriptor,
                where nothing is stored.
            ctx: clocks, entries of map states, and due timers.

        Returns:
            A ``VectorizedResult``; or a table, which are outputs alone; or None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_batch(self, rows, state, ctx)")


class PerElement(Exception):
    """Raised by a function that ``StandsForElements``: this batch is for the one per element."""


class StandsForElements(VectorizedKeyedFunction):
    """A function over columns that does what one per element does, which runs where this one cannot.

    Attributes:
        two_inputs: whether it takes two streams. Then ``rows`` has ``_input``, ``_row`` and ``_key`` alone, and the
            columns of the streams are in ``ctx.inputs``.
    """

    two_inputs: bool = False


def vectorized_form(function: Any) -> VectorizedKeyedFunction | None:
    """The function over columns that a subtask runs; None where it runs one per element.

    A ready-made function per element has such a form where ``vectorized`` gives one.
    """
    if isinstance(function, VectorizedKeyedFunction):
        return function
    make = getattr(function, "vectorized", None)
    form: VectorizedKeyedFunction | None = None if make is None else make()
    return form
